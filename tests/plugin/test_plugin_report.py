"""The results on their way: table, xdist, JUnit, narrow terminals."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from pytest_synthaccept.report import terminal

MODULE = """
import pytest

@pytest.mark.acceptance_rate(0.5)
def test_rate(spec_engine):
    spec_engine.generate()
    spec_engine.generate()

@pytest.mark.acceptance_rate(rates=[0.75, 0.5, 0.25])
def test_rates(spec_engine):
    spec_engine.generate()

@pytest.mark.acceptance_rate(length=2, law="constant")
def test_broken(spec_engine):
    spec_engine.generate(broken="accounting")

def test_plain(): ...

def test_idle(spec_engine): ...
"""
# Columns are compared by their words; test_rows_fit_and_align looks at the alignment.
TABLE = """
test requested rate length per position steps checks
test_it.py::test_rate rate=0.5 0.500 2.500 75 48 26 64 1 passed, 1 skipped
test_it.py::test_rate rate=0.5 0.500 2.500 75 48 26 64 1 passed, 1 skipped
test_it.py::test_rates rates=[0.75, 0.5, 0.25] 0.500 2.500 75 50 25 64 1 passed, 1 skipped
test_it.py::test_broken length=2.0 (constant) 0.333 2.000 54 30 16 64 1 passed, 1 failed
rate: accepted/drafted; length: tokens per verification step with the bonus;
per position: % of the steps with a draft 1, 2, ... that accepted it.
Checks that passed: acceptance.
accounting skipped: no statistics (3 runs)
"""


def table_of(result: pytest.RunResult) -> list[str]:
    start = next(i for i, x in enumerate(result.outlines) if x.strip("= ") == "synthaccept")
    rest = result.outlines[start + 1 :]
    end = next(i for i, line in enumerate(rest) if line.startswith("Checks took "))
    return rest[:end]


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def words(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def test_table(stub, wide):
    stub.makepyfile(test_it=MODULE)
    assert words(table_of(stub.runpytest())) == words(TABLE.strip().splitlines())


def test_same_table_and_properties_under_xdist(stub, wide):
    stub.makepyfile(test_it=MODULE)
    serial = stub.runpytest("--junit-xml=serial.xml")
    parallel = stub.runpytest("-n2", "--junit-xml=parallel.xml")
    assert parallel.ret == serial.ret == pytest.ExitCode.TESTS_FAILED
    assert table_of(parallel) == table_of(serial)
    expected = properties(stub.path / "serial.xml")
    assert properties(stub.path / "parallel.xml") == expected
    assert json.loads(expected["test_rates"]) == [
        {
            "requested": "rates=[0.75, 0.5, 0.25]",
            "rate": 0.5,
            "length": 2.5,
            "steps": 64,
            "checks": {"acceptance": "passed", "accounting": "skipped: no statistics"},
        }
    ]
    assert len(json.loads(expected["test_rate"])) == 2
    assert "test_plain" not in expected
    assert "test_idle" not in expected


def properties(path) -> dict[str, str]:
    return {
        case.get("name"): prop.get("value")
        for case in ElementTree.parse(path).iter("testcase")
        for prop in case.iter("property")
        if prop.get("name") == "synthaccept"
    }


@pytest.mark.parametrize("args", [["-k", "plain or idle"], ["-q", "-q"], ["--collect-only"]])
def test_no_table(stub, args):
    stub.makepyfile(test_it=MODULE)
    assert not any(line.strip("= ") == "synthaccept" for line in stub.runpytest(*args).outlines)


def test_run_before_a_failing_set_up(stub, wide):
    stub.makepyfile(
        test_it="""
        import pytest

        @pytest.fixture
        def warm(spec_engine):
            spec_engine.generate()
            raise OSError("no room")

        @pytest.mark.acceptance_rate(0.5)
        def test_it(warm): ...
        """
    )
    result = stub.runpytest()
    result.assert_outcomes(errors=1)
    assert table_of(result)[1].split()[-1] == "-"  # nothing was checked


def test_half_made_run_does_not_crash_the_session(stub, clean):
    stub.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.acceptance_rate(0.5)
        def test_it(spec_engine):
            spec_engine.generate(broken="summary")
            assert 1 == 2
        """
    )
    result = clean(stub.runpytest())
    result.assert_outcomes(failed=1)
    assert "no summary of this test's runs: RuntimeError('half-made')" in result.outlines


def test_subtests_do_not_repeat_the_runs(stub, wide):
    stub.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.acceptance_rate(0.5)
        def test_it(spec_engine, subtests):
            for i in range(3):
                with subtests.test(i=i):
                    spec_engine.generate()
        """
    )
    result = stub.runpytest("--junit-xml=out.xml")
    if "fixture 'subtests' not found" in str(result.stdout):  # before pytest 9
        return
    assert sum(line.startswith("test_it.py::test_it ") for line in table_of(result)) == 3
    values = [x.get("value") for x in ElementTree.parse(stub.path / "out.xml").iter("property")]
    assert [len(json.loads(value)) for value in values] == [3]


def record(**changed):
    return {
        "requested": "rate=0.5 (geometric)",
        "rate": 0.5,
        "length": 2.5,
        "per_position": [0.75, 0.48, 0.26],
        "steps": 128,
        "checks": {"acceptance": "passed"},
        "failed": False,
    } | changed


ROWS = [
    ("tests/test_scheduler.py::TestBudget::test_budget[rate=0.3-block_size=16]", record()),
    ("tests/test_a.py::test_b", record(rate=None, length=None, per_position=[], steps=0)),
]


@pytest.mark.parametrize("width", [160, 100, 80, 60, 40])
def test_rows_fit_and_align(width):
    rows = terminal.table(ROWS, width)[:3]
    assert max(map(len, rows)) < width
    end = rows[0].index("  rate ") + len("  rate ")
    assert rows[1][end - 6 : end].strip() == "0.500"
    assert rows[2][end - 6 : end].strip() == "-"


def test_narrowest_table_keeps_the_rate():
    rows = terminal.table(ROWS, 10)[:3]
    assert rows[0].split() == ["test", "rate", "steps"]
    assert rows[1].split() == ["....3-block_size=16]", "0.500", "128"]


def test_nothing_is_left_out_of_80_columns():
    long = record(requested="rate=0.0 (geometric); then rate=1.0 (geometric)")
    lines = terminal.table([*ROWS, (ROWS[0][0], long)], 80)
    assert not any("Left out" in line for line in lines)
    assert "  rate=0.0...  " in lines[3]


def test_columns_left_out_are_named():
    assert not any("Left out" in line for line in terminal.table(ROWS, 160))
    narrow = terminal.table(ROWS, 50)
    assert "Left out for want of width: requested, per position, checks." in narrow
    assert narrow[1].split()[0] == "...[rate=0.3-block_size=16]"


def test_reasons_are_counted():
    skipped = record(checks={"acceptance": "passed", "accounting": "skipped: V0 statistics"})
    lines = terminal.table([("a", skipped), ("b", skipped), ("c", record())], 80)
    assert "accounting skipped: V0 statistics (2 runs)" in lines
    assert terminal.table([("a", skipped)], 80)[-1] == "accounting skipped: V0 statistics (1 run)"


INCONCLUSIVE = """
import pytest

@pytest.mark.acceptance_rate(0.25)
def test_near_tie(spec_engine):
    spec_engine.generate(broken="near-tie")

@pytest.mark.acceptance_rate(0.25)
def test_in_the_body(spec_engine):
    spec_engine.generate(broken="near-tie").check("accounting")

@pytest.mark.acceptance_rate(0.25)
def test_passes(spec_engine):
    spec_engine.generate()
"""


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_an_inconclusive_test_is_counted_apart_and_not_passed(stub, clean, workers):
    stub.makepyfile(test_it=INCONCLUSIVE)
    result = clean(stub.runpytest_subprocess(workers, "-v"))
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes() == {"passed": 1, "inconclusive": 2}
    lines = [line for line in result.outlines if line.startswith("INCONCLUSIVE ")]
    assert sorted(lines) == [
        "INCONCLUSIVE test_it.py::test_in_the_body: accounting: request 0: a near-tie",
        "INCONCLUSIVE test_it.py::test_near_tie: acceptance: request 0: a near-tie",
    ]


def test_the_cost_of_checks_and_reference_runs_is_said(stub, clean):
    stub.makepyfile(test_it=INCONCLUSIVE)
    result = clean(stub.runpytest())
    (line,) = [line for line in result.outlines if line.startswith("Checks took ")]
    assert line.startswith("Checks took 0.00 s")
    assert line.endswith("; reference runs, made once, 9.0 s.")
