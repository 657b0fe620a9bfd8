"""spec_benchmark on pytest-benchmark: its table, JSON, comparison and groups, and without it."""

from __future__ import annotations

import json

import pytest

SINGLE = """
import pytest

@pytest.mark.acceptance_rate(rates=[0.75, 0.5, 0.25])
def test_single(spec_benchmark):
    run = spec_benchmark(requests=2, tokens=60)
    assert run.work.engine_steps == 48
"""
SWEEP = """
def test_sweep(spec_benchmark):
    curve = spec_benchmark.sweep([0, 0.5, 1], requests=2, tokens=60)
    assert round(curve.speedup(1).value, 2) == 1.74
    curve.assert_speedup(at=0.5, at_least=1.0)
    curve.assert_break_even_below(0.5)
    curve.assert_monotone()
"""


def test_a_single_rate(bench, clean):
    bench.makepyfile(test_it=SINGLE)
    result = clean(bench.runpytest("--benchmark-json=out.json", "-W", "error"))
    result.assert_outcomes(passed=1)
    data = json.loads((bench.path / "out.json").read_text())
    (found,) = data["benchmarks"]
    assert found["stats"]["rounds"] == 5  # a round takes 1.1 s, by the stub's clock
    assert found["stats"]["median"] == pytest.approx(48 * 0.023, abs=1e-6)
    info = found["extra_info"]
    assert info.pop("versions").keys() == {"vllm", "torch", "triton", "plan"}
    assert info == {
        "plan": "rate 0.5000, length 2.5000, per position 0.7500 0.5000 0.2500 "
        "(exact, seed 0); asked for: rates=[0.75, 0.5, 0.25]",
        "plan_version": 1,
        "cost": "faithful",
        "requested": "rates=[0.75, 0.5, 0.25]",
        "realised_rate": 0.5,
        "realised_length": 2.5,
        "tokens": 120,
        "requests": 2,
        "steps": 48,
        "tokens_per_second": pytest.approx(120 / (48 * 0.023), rel=1e-6),
        "step_seconds": pytest.approx(0.023, abs=1e-6),
        "work": {
            "engine_steps": 48,
            "target_forwards": 48,
            "drafter_forwards": 144,
            "graph_replays": 0,
        },
        "device": "Stub GPU",
    }
    assert data["machine_info"]["synthaccept"] == {"device": "Stub GPU", "plan_version": 1}


def test_a_sweep(bench, clean):
    bench.makepyfile(test_it=SWEEP)
    result = clean(bench.runpytest("--benchmark-json=out.json", "-W", "error"))
    result.assert_outcomes(passed=1)
    (found,) = json.loads((bench.path / "out.json").read_text())["benchmarks"]
    assert found["stats"]["rounds"] == 15
    steps = sum([120, 48, 30])
    assert found["stats"]["median"] == pytest.approx(120 * 0.010 + steps * 0.023, abs=1e-6)
    assert [cell["rate"] for cell in found["extra_info"]["curve"]["cells"]] == [0.0, 0.5, 1.0]
    result.stdout.fnmatch_lines(
        [
            "*- sweep of test_it.py::test_sweep -*",
            "rate  realised  length  steps  step time     speedup (95 %)  expected",
            " 0.5     0.500    2.50     48      23 ms  1.09 (1.09..1.09)      1.09",
            "none         -    1.00    120      10 ms               1.00      1.00",
            "break-even rate 0.433 (*",
        ]
    )


def test_a_false_sentence_is_a_failure_with_the_curve(bench, clean):
    bench.makepyfile(test_it=SWEEP.replace("below(0.5)", "below(0.2)"))
    result = clean(bench.runpytest())
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *AssertionError: break-even rate is 0.433 (0.433..0.433), not below 0.2",
            "E * 0.5     0.500    2.50     48      23 ms  1.09 (1.09..1.09)      1.09",
        ]
    )


def test_too_few_rounds_are_inconclusive(bench, clean):
    bench.makepyfile(test_it=SWEEP.replace("tokens=60", "tokens=60, rounds=3"))
    result = clean(bench.runpytest())
    assert result.parseoutcomes() == {"inconclusive": 1}
    assert (
        "INCONCLUSIVE test_it.py::test_sweep: speedup is too noisy to tell from 3 rounds; "
        "measure 5 at least (rounds=)"
    ) in result.outlines


def test_the_tests_own_marker_keeps_its_say(bench):
    bench.makepyfile(
        test_it=SINGLE.replace(
            "@pytest.mark.acc",
            '@pytest.mark.benchmark(group="mine", min_rounds=7)\n@pytest.mark.acc',
        )
    )
    result = bench.runpytest("--benchmark-json=out.json", "--benchmark-group-by=group")
    result.assert_outcomes(passed=1)
    (found,) = json.loads((bench.path / "out.json").read_text())["benchmarks"]
    assert (found["group"], found["stats"]["rounds"]) == ("mine", 7)
    assert found["options"]["timer"] == "engine_seconds"
    result.stdout.fnmatch_lines(["*benchmark 'mine': 1 tests*"])


def test_a_cost_of_the_tests_own(bench):
    bench.makepyfile(test_it=SINGLE.replace("0.25])", '0.25], cost="lean")'))
    bench.runpytest("--benchmark-json=out.json").assert_outcomes(passed=1)
    (found,) = json.loads((bench.path / "out.json").read_text())["benchmarks"]
    assert found["extra_info"]["cost"] == "lean"


def test_calibration(bench, monkeypatch):
    """A run too short for one reading of the clock is repeated within a round."""
    monkeypatch.setenv("SLOW", "1e-7")
    mark = "@pytest.mark.benchmark(max_time=1e-4)"
    bench.makepyfile(test_it=SINGLE.replace("@pytest.mark.acc", f"{mark}\n@pytest.mark.acc"))
    bench.runpytest("--benchmark-json=out.json").assert_outcomes(passed=1)
    (found,) = json.loads((bench.path / "out.json").read_text())["benchmarks"]
    assert found["stats"]["iterations"] >= 40
    assert found["stats"]["rounds"] >= 5
    # A round reads the timer once more than it starts: a nanosecond over all its iterations.
    assert found["stats"]["median"] == pytest.approx(48 * 0.023e-7, abs=0.1e-9)


def test_a_timer_of_the_tests_own_wins(bench):
    bench.makepyfile(
        test_it="import time\n"
        + SINGLE.replace(
            "@pytest.mark.acc", "@pytest.mark.benchmark(timer=time.monotonic)\n@pytest.mark.acc"
        )
    )
    bench.runpytest("--benchmark-json=out.json").assert_outcomes(passed=1)
    (found,) = json.loads((bench.path / "out.json").read_text())["benchmarks"]
    assert found["options"]["timer"] == "monotonic"
    assert found["stats"]["median"] < 1  # the stub does not really sleep


@pytest.mark.parametrize(("args", "skipped"), [("--benchmark-skip", 1), ("--benchmark-only", 1)])
def test_lanes(bench, args, skipped):
    bench.makepyfile(test_it=SINGLE, test_other="def test_plain(): ...")
    bench.runpytest(args).assert_outcomes(passed=1, skipped=skipped)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "spec_benchmark(tokens=0)",
            "spec_benchmark: tokens=0 must be an integer >= 1",
        ),
        (
            "spec_benchmark([[1]], requests=2)",
            "spec_benchmark: got prompts and requests; give one: requests makes random prompts",
        ),
        (
            "spec_benchmark()",
            "spec_benchmark: no acceptance plan: mark the test with "
            "@pytest.mark.acceptance_rate(0.5), call set_acceptance(0.5) before generate(), or "
            "run pytest with --acceptance-rate=0.5",
        ),
        (
            "spec_benchmark.sweep(0.5)",
            "sweep: rates=0.5 is not a list of one rate or more; give e.g. [0, 0.5, 1]",
        ),
        (
            "spec_benchmark.sweep([0.5, 50])",
            "sweep: rate=50 is not a number in 0..1; rate is accepted/drafted (50 % is 0.5); for "
            "tokens per verification step give length=",
        ),
        (
            "spec_benchmark.sweep([0.5, 0.5])",
            "sweep: rates=[0.5, 0.5] has a rate twice; give each once",
        ),
        (
            "spec_benchmark.sweep(rounds=0)",
            "sweep: rounds=0 must be an integer >= 1",
        ),
        (
            "spec_benchmark.sweep([0, 1]).assert_speedup(at=1.5, at_least=1)",
            "assert_speedup: at=1.5 is outside the measured rates 0, 1; give sweep(rates=...) "
            "one on either side of it",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all")
def test_mistakes_are_one_line(bench, clean, body, says):
    bench.makepyfile(test_it=f"def test_it(spec_benchmark):\n    {body}")
    result = clean(bench.runpytest())
    result.assert_outcomes(failed=1)
    assert f"test_it.py:2: {says}" in result.outlines
    assert says not in result.outlines  # once, not with its cause again


def test_without_pytest_benchmark(bench, clean):
    bench.makepyfile(test_it=SINGLE)
    result = clean(bench.runpytest("-p", "no:benchmark"))
    result.assert_outcomes(errors=1)
    assert (
        "spec_benchmark needs pytest-benchmark, which is not active; pip install "
        "'pytest-synthaccept[benchmark]', and do not disable it by -p no:benchmark"
    ) in result.outlines


# --- comparison ---


def test_compare(bench, clean, monkeypatch):
    bench.makepyfile(test_it=SINGLE)
    bench.runpytest("--benchmark-save=one").assert_outcomes(passed=1)
    monkeypatch.setenv("SLOW", "2")
    compare = ["--benchmark-compare=0001", "-W", "error"]
    result = clean(bench.runpytest(*compare))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_single (NOW) *(2.00)*"])
    fail = bench.runpytest(*compare, "--benchmark-compare-fail=mean:50%")
    assert fail.ret == pytest.ExitCode.TESTS_FAILED


def test_compare_across_devices_is_refused(bench, clean, monkeypatch):
    bench.makepyfile(test_it=SINGLE)
    bench.runpytest("--benchmark-save=one").assert_outcomes(passed=1)
    monkeypatch.setenv("STUB_GPU", "Other GPU")
    result = clean(bench.runpytest("--benchmark-compare"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "ERROR: --benchmark-compare: device is 'Other GPU' here, 'Stub GPU' in the saved run; "
        "compare runs of one machine and plan"
    ) in result.errlines


def test_compare_across_versions_of_the_plan_is_refused(bench, clean):
    bench.makepyfile(test_it=SINGLE)
    bench.runpytest("--benchmark-save=one").assert_outcomes(passed=1)
    with open(bench.path / "conftest.py", "a") as conftest:
        conftest.write("\nidentity.PLAN_VERSION = 2\n")
    result = clean(bench.runpytest_subprocess("--benchmark-compare"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "ERROR: --benchmark-compare: plan version is 2 here, 1 in the saved run; "
        "compare runs of one machine and plan"
    ) in result.errlines


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used at all")
def test_compare_with_another_plan_of_the_same_test_is_refused(bench, clean):
    bench.makepyfile(test_it=SINGLE)
    bench.runpytest("--benchmark-save=one").assert_outcomes(passed=1)
    bench.makepyfile(test_it=SINGLE.replace("0.25]", "0.125]"))
    result = clean(bench.runpytest("--benchmark-compare"))
    result.assert_outcomes(failed=1)
    (line,) = [x for x in result.outlines if x.startswith("test_it.py:5: --benchmark-compare: ")]
    assert "measured another plan then: 'rate 0.5000" in line
    assert line.endswith("; compare with a run of the same plan, or rename the test")


def test_comparisons_without_our_benchmarks_are_left_alone(bench, clean):
    bench.makepyfile(test_it="def test_other(benchmark): benchmark(lambda: None)")
    bench.runpytest("--benchmark-save=one").assert_outcomes(passed=1)
    clean(bench.runpytest("--benchmark-compare", "-W", "error")).assert_outcomes(passed=1)
    (saved,) = bench.path.rglob("0001_one.json")
    assert "synthaccept" not in json.loads(saved.read_text())["machine_info"]


def test_a_comparison_with_several_runs_of_which_one_is_not_ours(bench, clean):
    bench.makepyfile(test_it=SINGLE, test_other="def test_other(benchmark): benchmark(int)")
    bench.runpytest("--benchmark-save=ours", "test_it.py").assert_outcomes(passed=1)
    bench.runpytest("--benchmark-save=theirs", "test_other.py").assert_outcomes(passed=1)
    result = clean(bench.runpytest("--benchmark-compare=*", "-W", "error"))
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines_random(["test_single (NOW) *", "test_other (NOW) *"])


# --- xdist ---


def test_under_xdist_nothing_is_timed_and_no_claim_passes(bench, clean):
    bench.makepyfile(test_it=SINGLE + SWEEP.replace("assert round", "# "))
    result = clean(bench.runpytest_subprocess("-n2"))
    assert result.parseoutcomes() == {"passed": 1, "inconclusive": 1}
    recipe = "run `-n auto --benchmark-skip`, and the benchmarks apart: `-n0 --benchmark-only`"
    why = f"pytest-benchmark switches itself off under xdist; {recipe}"
    assert f"synthaccept: 2 benchmarks ran once and untimed: {why}" in result.outlines
    assert (
        f"INCONCLUSIVE test_it.py::test_sweep: speedup was not measured: {why}"
    ) in result.outlines


def test_switched_off_by_hand(bench, clean):
    bench.makepyfile(test_it=SINGLE)
    result = clean(bench.runpytest("--benchmark-disable"))
    result.assert_outcomes(passed=1)
    assert (
        "synthaccept: 1 benchmark ran once and untimed: pytest-benchmark is switched off; "
        "leave --benchmark-disable out"
    ) in result.outlines


def test_two_lanes(bench, clean):
    """The recipe: everything but the benchmarks in parallel, then the benchmarks alone."""
    bench.makepyfile(test_it=SINGLE + SWEEP, test_other="def test_plain(): ...")
    bench.makeini("[pytest]\naddopts = -n2\nsynthaccept_baseline = baseline.json")
    gate = ["-n0", "--benchmark-only"]
    first = clean(bench.runpytest_subprocess(*gate, "--synthaccept-update=new"))
    assert first.ret == pytest.ExitCode.OK
    parallel = clean(bench.runpytest_subprocess("--benchmark-skip"))
    assert parallel.parseoutcomes() == {"passed": 1, "skipped": 2}
    assert parallel.ret == pytest.ExitCode.OK
    alone = clean(bench.runpytest_subprocess(*gate, "--benchmark-json=out.json"))
    assert alone.parseoutcomes() == {"passed": 2, "skipped": 1}
    assert alone.ret == pytest.ExitCode.OK
    assert "2 of 2 conditions hold against" in str(alone.stdout)
    assert len(json.loads((bench.path / "out.json").read_text())["benchmarks"]) == 2
