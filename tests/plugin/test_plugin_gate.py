"""--synthaccept-baseline and its companions: verdicts, exit codes, the file, clean screens."""

from __future__ import annotations

import json

import pytest

MODULE = """
import pytest

@pytest.mark.acceptance_rate(rates=[0.75, 0.5, 0.25])
def test_single(spec_benchmark):
    spec_benchmark(requests=2, tokens=60)

def test_sweep(spec_benchmark):
    spec_benchmark.sweep([0, 0.5, 1], requests=2, tokens=60)
"""
FILE = "--synthaccept-baseline=baseline.json"
ALL = "--synthaccept-fail=work,break-even:0.05,step-time:10%,speedup@0.75:10%"


@pytest.fixture
def gated(bench):
    """A project with a baseline of both its benchmarks."""
    bench.makepyfile(test_it=MODULE)
    result = bench.runpytest(FILE, "--synthaccept-update=new")
    assert result.ret == pytest.ExitCode.OK
    assert "wrote 2 benchmarks to baseline.json" in result.outlines
    return bench


def section_of(result):
    start = next(i for i, x in enumerate(result.outlines) if "synthaccept gate: " in x)
    rest = result.outlines[start:]
    end = next((i for i, x in enumerate(rest[1:], 1) if x.startswith(("==", "--")) or not x), None)
    return [rest[0].strip("= "), *rest[1:end]]


def test_the_same_again_passes(gated, clean):
    result = clean(gated.runpytest(FILE, ALL))
    assert result.ret == pytest.ExitCode.OK
    assert section_of(result) == [
        "synthaccept gate: passed",
        "6 of 6 conditions hold against baseline.json",
    ]


def test_more_work_fails_without_a_clock(gated, clean, monkeypatch):
    monkeypatch.setenv("EXTRA", "1")
    result = clean(gated.runpytest(FILE))
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert section_of(result) == [
        "synthaccept gate: FAILED",
        "REGRESSED test_it.py::test_single work: run: 96 target forwards, in the baseline 48",
        "REGRESSED test_it.py::test_sweep work: rate 0: 240 target forwards, in the baseline 120; "
        "rate 0.5: 96 target forwards, in the baseline 48; "
        "rate 1: 60 target forwards, in the baseline 30",
        "0 of 2 conditions hold against baseline.json",
        "where the change is meant, accept it with --synthaccept-update=all",
    ]


def test_work_is_gated_where_nothing_is_timed(gated, monkeypatch):
    assert gated.runpytest(FILE, "--benchmark-disable").ret == pytest.ExitCode.OK
    monkeypatch.setenv("EXTRA", "1")
    assert gated.runpytest(FILE, "--benchmark-disable").ret == pytest.ExitCode.TESTS_FAILED


def test_slower_steps_fail(gated, clean, monkeypatch):
    monkeypatch.setenv("SLOW", "1.2")
    result = clean(gated.runpytest(FILE, ALL))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lines = section_of(result)
    assert lines[0] == "synthaccept gate: FAILED"
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["REGRESSED", "test_it.py::test_single", "step-time:10%:"],
        ["REGRESSED", "test_it.py::test_sweep", "break-even:0.05:"],
        ["REGRESSED", "test_it.py::test_sweep", "step-time:10%:"],
        ["REGRESSED", "test_it.py::test_sweep", "speedup@0.75:10%:"],
    ]
    assert lines[1] == (
        "REGRESSED test_it.py::test_single step-time:10%: 27.6 ms (27.6 ms..27.6 ms), "
        "in the baseline 23 ms, allowed 25.3 ms"
    )
    assert lines[5] == "2 of 6 conditions hold against baseline.json"


def test_the_section_is_red(gated, monkeypatch):
    monkeypatch.setenv("EXTRA", "1")
    result = gated.runpytest(FILE, "--color=yes")
    assert any(
        "\x1b[31m" in line and "synthaccept gate: FAILED" in line for line in result.outlines
    )


def test_verbose_shows_what_passed(gated):
    lines = section_of(gated.runpytest(FILE, "-v"))
    assert lines[1] == "PASSED test_it.py::test_single work: the same in 1 cells"


def test_a_gate_that_measured_nothing_fails(gated, clean):
    gated.makepyfile(test_other="def test_plain(): ...")
    result = clean(gated.runpytest(FILE, "test_other.py"))
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert section_of(result)[:2] == [
        "synthaccept gate: FAILED",
        "MISSING nothing was measured: the gate has nothing to judge",
    ]


def test_what_a_failed_test_measured_does_not_count(gated, clean):
    gated.makepyfile(test_it=MODULE.replace("tokens=60)\n\ndef", "tokens=60)\n    assert 0\n\ndef"))
    result = clean(gated.runpytest(FILE, "-k", "single"))
    result.assert_outcomes(failed=1, deselected=1)
    assert "MISSING nothing was measured: the gate has nothing to judge" in section_of(result)


def test_skipped_benchmarks_on_the_command_line_fail_the_gate(gated):
    result = gated.runpytest(FILE, "--benchmark-skip")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_another_device_is_refused_for_times_and_not_for_work(gated, monkeypatch):
    monkeypatch.setenv("STUB_GPU", "Other GPU")
    assert gated.runpytest(FILE).ret == pytest.ExitCode.OK
    result = gated.runpytest(FILE, "--synthaccept-fail=step-time:10%")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert section_of(result)[1] == (
        "REFUSED test_it.py::test_single step-time:10%: times of other devices do not compare: "
        "device is 'Other GPU', in the baseline 'Stub GPU'"
    )


# --- updates ---


def test_a_new_benchmark_fails_until_it_is_added(gated, monkeypatch):
    gated.makepyfile(
        test_it=MODULE
        + MODULE[MODULE.index("@") : MODULE.index("def test_sweep")].replace(
            "test_single", "test_more"
        )
    )
    result = gated.runpytest(FILE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert section_of(result)[1] == (
        "MISSING test_it.py::test_more is not in the baseline; add it with --synthaccept-update=new"
    )
    monkeypatch.setenv("EXTRA", "1")
    before = json.loads((gated.path / "baseline.json").read_text())["benchmarks"]
    result = gated.runpytest(FILE, "--synthaccept-update=new")
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # the others are judged all the same
    assert "wrote 1 benchmarks to baseline.json" in result.outlines
    after = json.loads((gated.path / "baseline.json").read_text())["benchmarks"]
    assert after.pop("test_it.py::test_more")["work"]["run"]["target_forwards"] == 96
    assert after == before


def test_all_are_replaced_and_none_is_lost(gated, monkeypatch):
    monkeypatch.setenv("EXTRA", "1")
    result = gated.runpytest(FILE, "--synthaccept-update=all", "-k", "sweep")
    assert result.ret == pytest.ExitCode.OK
    assert "wrote 1 benchmarks to baseline.json" in result.outlines
    result = gated.runpytest(FILE)
    assert [line.split()[1] for line in section_of(result)[1:2]] == ["test_it.py::test_single"]
    assert "1 of 2 conditions hold against baseline.json" in result.outlines


@pytest.mark.parametrize("update", ["new", "all"])
def test_an_update_that_measured_nothing_fails(gated, update):
    before = (gated.path / "baseline.json").read_text()
    gated.makepyfile(test_other="def test_plain(): ...")
    result = gated.runpytest(FILE, f"--synthaccept-update={update}", "test_other.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert (gated.path / "baseline.json").read_text() == before


# --- what can be no gate ---


def usage(result):
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    return line.removeprefix("ERROR: ")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            [FILE],
            "--synthaccept-baseline: 'baseline.json' does not exist; "
            "write it with --synthaccept-update=new",
        ),
        (
            ["--synthaccept-fail=work"],
            "--synthaccept-fail: there is no baseline; give --synthaccept-baseline",
        ),
        (
            ["--synthaccept-update=new"],
            "--synthaccept-update: there is no baseline; give --synthaccept-baseline",
        ),
        (
            [FILE, "--synthaccept-update=some"],
            "--synthaccept-update: 'some' is no way to update a baseline; allowed: new, all",
        ),
        (
            [FILE, "--synthaccept-fail=speedup:5%"],
            "--synthaccept-fail: 'speedup:5%' has 'speedup:5%'; "
            "write it as speedup@0.7:10%, or speedup@0.7:0.2",
        ),
        (["--synthaccept-baseline="], "--synthaccept-baseline: '' is empty; give a file"),
        (
            [FILE, "-p", "no:benchmark"],
            "--synthaccept-baseline: the gate needs pytest-benchmark, which is not active",
        ),
    ],
)
def test_usage_errors(bench, clean, args, says):
    bench.makepyfile(test_it=MODULE)
    assert usage(clean(bench.runpytest(*args))) == says


def test_a_gate_under_xdist_is_refused(gated, clean):
    result = clean(gated.runpytest_subprocess(FILE, "-n2"))
    assert usage(result) == (
        "--synthaccept-baseline: pytest-benchmark switches itself off under xdist, so the gate "
        "would measure nothing; run `-n auto --benchmark-skip`, and the benchmarks apart: "
        "`-n0 --benchmark-only`"
    )


def test_a_damaged_baseline_can_only_be_replaced(gated):
    (gated.path / "baseline.json").write_text("{")
    assert usage(gated.runpytest(FILE, "--synthaccept-update=new")).startswith(
        "--synthaccept-baseline: 'baseline.json' cannot be read: Expecting property name"
    )
    assert gated.runpytest(FILE, "--synthaccept-update=all").ret == pytest.ExitCode.OK
    assert gated.runpytest(FILE).ret == pytest.ExitCode.OK


def test_an_ini_path_is_beside_the_ini_file(gated, monkeypatch):
    gated.makeini("[pytest]\nsynthaccept_baseline = baseline.json\nsynthaccept_fail = work")
    below = gated.mkdir("below")
    monkeypatch.chdir(below)
    assert gated.runpytest("..", "-c", "../tox.ini").ret == pytest.ExitCode.OK


def test_collecting_is_no_gate(gated):
    assert gated.runpytest(FILE, "--collect-only").ret == pytest.ExitCode.OK
