"""The fixtures: overridden, merged, pooled, and their errors as one line."""

from __future__ import annotations

import pytest


def test_overrides_reach_the_engine(stub):
    stub.makepyfile(
        """
        import pathlib
        import pytest
        from pytest_synthaccept import Drafter

        @pytest.fixture(scope="module")
        def spec_engine_args():
            return {"max_model_len": 64, "block_size": 16}

        @pytest.fixture
        def spec_target(tmp_path):
            return tmp_path

        @pytest.fixture(scope="session")
        def spec_drafter():
            return Drafter("mtp", num_speculative_tokens=2)

        @pytest.mark.acceptance_rate(rates=[0.5, 0.25])
        def test_it(spec_engine, spec_engine_factory, tmp_path):
            assert spec_engine.config.model == str(tmp_path)
            assert spec_engine.config.drafter.method == "mtp"
            assert spec_engine.config.args == {"max_model_len": 64, "block_size": 16}
            other = spec_engine_factory(block_size=32, dtype="float32")
            assert other.config.args == {
                "max_model_len": 64, "block_size": 32, "dtype": "float32"
            }
            assert other.plan.rates == (0.5, 0.25)
        """
    )
    stub.runpytest("--synthaccept-tokens=7").assert_outcomes(passed=1)


def test_defaults(stub):
    stub.makepyfile(
        """
        from pytest_synthaccept import Drafter

        def test_it(spec_engine_args, spec_target, spec_drafter):
            assert (spec_engine_args, spec_target) == ({}, None)
            assert spec_drafter == Drafter("eagle", num_speculative_tokens=3)
        """
    )
    stub.runpytest().assert_outcomes(passed=1)


def test_engines_are_pooled_and_begun_once_per_test(stub):
    stub.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.acceptance_rate(0.5)

        def test_one(spec_engine, spec_engine_factory):
            spec_engine.generate()
            assert spec_engine_factory() is spec_engine
            assert (spec_engine.begun, len(spec_engine.runs)) == (1, 1)
            assert spec_engine_factory(seed=1) is not spec_engine

        def test_two(spec_engine):
            assert (spec_engine.begun, spec_engine.runs) == (2, [])
        """
    )
    result = stub.runpytest("-s")
    result.assert_outcomes(passed=2)
    assert "stub pool: 2 engines, closed 1 times" in result.outlines


@pytest.mark.parametrize(
    ("fixture", "value", "allowed"),
    [
        ("spec_engine_args", "None", "a dict of vLLM engine arguments"),
        ("spec_target", "3", "a path, a model name or None"),
        ("spec_drafter", "'eagle'", "a Drafter or None"),
    ],
)
def test_override_that_returns_nonsense(stub, clean, fixture, value, allowed):
    stub.makepyfile(
        f"""
        import pytest

        @pytest.fixture
        def {fixture}():
            return {value}

        def test_it(spec_engine): ...
        """
    )
    result = clean(stub.runpytest())
    result.assert_outcomes(errors=1)
    assert f"fixture {fixture} returned {value}; it must return {allowed}" in result.outlines


def test_engine_that_does_not_start_is_one_line(stub, clean):
    stub.makepyfile(
        """
        import pytest

        @pytest.fixture
        def spec_engine_args():
            return {"max_model_len": 0}

        def test_it(spec_engine): ...
        """
    )
    result = clean(stub.runpytest())
    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    rule = next(i for i, line in enumerate(result.outlines) if "ERROR at setup of test_it" in line)
    assert result.outlines[rule + 1] == "the engine did not start: max_model_len=0"
    assert "short test summary" in result.outlines[rule + 2]


def test_factory_raises_in_the_body(stub):
    stub.makepyfile(
        """
        import pytest
        from pytest_synthaccept.errors import EngineError

        def test_it(spec_engine_factory):
            with pytest.raises(EngineError, match="did not start"):
                spec_engine_factory(max_model_len=0)
        """
    )
    stub.runpytest().assert_outcomes(passed=1)


def test_no_plan_fails_at_the_first_generate(stub):
    stub.makepyfile(
        """
        import pytest

        @pytest.mark.acceptance_rate(0.5)
        def test_marked(spec_engine):
            spec_engine.generate()

        def test_it(spec_engine):
            spec_engine.generate()
        """
    )
    result = stub.runpytest()
    result.assert_outcomes(passed=1, failed=1)
    assert "test_no_plan_fails_at_the_first_generate.py:8: no acceptance plan: mark the test" in (
        result.outlines
    )
    assert not any(line.startswith(("E ", ">")) for line in result.outlines)


@pytest.mark.parametrize("args", [["--collect-only"], ["--fixtures"], ["--setup-plan"]])
def test_no_engine_without_a_test(stub, args):
    stub.makepyfile("def test_it(spec_engine): ...")
    result = stub.runpytest("-s", "--acceptance-rate=0.5", *args)
    assert result.ret == 0
    assert any(line.startswith("stub pool: 0 engines") for line in result.outlines)


def test_fixtures_are_documented(pytester):
    lines = pytester.runpytest("--fixtures").outlines
    for name in ("spec_engine_args [session scope]", "spec_target [session scope]", "spec_engine"):
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{name} -- "))
        assert lines[at + 1].strip()
        assert lines[at + 1].strip() != "no docstring available"
    assert not any(line.startswith("_spec_rate") for line in lines)
