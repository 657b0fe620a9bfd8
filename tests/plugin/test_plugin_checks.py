"""Automatic checks: after a body that passed, on every run, chosen by the option."""

from __future__ import annotations

import pytest

FAILING = """
import pytest

@pytest.mark.acceptance_rate(0.5)
def test_it(spec_engine):
    spec_engine.generate()
    spec_engine.generate(broken="accounting")
"""
MESSAGE = "accounting: request 0, step 3: planned 2, accepted 1"
HINT = "(automatic check; --synthaccept-checks chooses; run 2 of 2 of this test)"


def test_failed_check_fails_the_test(stub, clean):
    stub.makepyfile(FAILING)
    result = clean(stub.runpytest())
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    rule = next(i for i, line in enumerate(result.outlines) if " test_it " in line)
    assert result.outlines[rule + 1 : rule + 3] == [MESSAGE, HINT]


@pytest.mark.parametrize(("checks", "passed"), [("none", 1), ("acceptance", 1), ("accounting", 0)])
def test_selection(stub, checks, passed):
    stub.makepyfile(FAILING)
    result = stub.runpytest(f"--synthaccept-checks={checks}")
    result.assert_outcomes(passed=passed, failed=1 - passed)


def test_selected_checks_run_and_no_other(stub):
    stub.makepyfile(
        """
        import pytest

        @pytest.fixture
        def after(spec_engine):
            yield
            print(f"checked: {[run.checked for run in spec_engine.runs]}")

        @pytest.mark.acceptance_rate(0.5)
        def test_it(after, spec_engine):
            spec_engine.generate()
        """
    )
    passed = "'acceptance': 'passed'"
    for value, expected in (
        ("all", "{" + passed + ", 'accounting': 'skipped: no statistics'}"),
        ("acceptance", "{" + passed + "}"),
        ("none", "{}"),
    ):
        result = stub.runpytest("-rP", f"--synthaccept-checks={value}")
        assert f"checked: [{expected}]" in result.outlines


def test_body_that_failed_is_not_checked(stub):
    stub.makepyfile(FAILING + "    assert 1 == 2\n")
    result = stub.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E       assert 1 == 2"])
    result.stdout.no_fnmatch_line("accounting: request*")


def test_every_engine_of_the_test_is_checked(stub):
    stub.makepyfile(
        """
        import pytest

        @pytest.mark.acceptance_rate(0.5)
        def test_it(spec_engine, spec_engine_factory):
            spec_engine.generate()
            spec_engine_factory(seed=1).generate(broken="acceptance")
        """
    )
    result = stub.runpytest()
    result.assert_outcomes(failed=1)
    assert "acceptance: request 0, step 3: planned 2, accepted 1" in result.outlines


def test_runs_of_another_test_are_not_checked(stub):
    stub.makepyfile(FAILING + "\ndef test_other(spec_engine): ...\n")
    stub.runpytest().assert_outcomes(failed=1, passed=1)


def test_expected_failure(stub):
    stub.makepyfile(FAILING.replace("@pytest.mark.acc", "@pytest.mark.xfail\n@pytest.mark.acc"))
    stub.runpytest().assert_outcomes(xfailed=1)


def test_a_run_left_open_fails_the_test(stub, clean):
    stub.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.acceptance_rate(0.5)
        def test_it(spec_engine):
            spec_engine.has_open_run = True
        """
    )
    result = clean(stub.runpytest())
    result.assert_outcomes(failed=1)
    assert (
        "test_it.py::test_it: a run was entered and never left, so nothing of it can be checked; "
        "use `with spec_engine.run() as run:`"
    ) in result.outlines
