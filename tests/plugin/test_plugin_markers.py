"""The marker: registered, checked at collection, the closest wins."""

from __future__ import annotations

import pytest

from pytest_synthaccept.acceptance.request import AcceptanceRequest
from pytest_synthaccept.errors import AcceptanceError

NO_ENGINE = (
    "the test uses no engine; let it use one of "
    "spec_engine, spec_engine_factory, spec_benchmark, spec_server"
)

# Arguments that are wrong whatever K is.
BAD = {
    "too_high": "1.5",
    "negative": "-0.1",
    "nan": "float('nan')",
    "string": "'0.5'",
    "bool": "True",
    "nothing": "",
    "rate_and_length": "0.5, length=2",
    "rate_and_rates": "0.5, rates=[0.5, 0.4, 0.3]",
    "length_and_rates": "length=2, rates=[0.5, 0.4, 0.3]",
    "two_positional": "0.5, 2",
    "rising_rates": "rates=[0.5, 0.9, 0.1]",
    "unknown_law": "0.5, law='linear'",
    "unknown_keyword": "0.5, lengths=2",
    "unknown_sampling": "0.5, sampling='greedy'",
    "bad_seed": "0.5, seed=-1",
}


def given(text: str) -> tuple[tuple[object, ...], dict[str, object]]:
    return eval(f"(lambda *args, **kwargs: (args, kwargs))({text})")


def error_line(nodeid: str, text: str) -> str:
    """The line of the request's own error, for a marker written ``acceptance_rate(text)``."""
    args, kwargs = given(text)
    shown = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])
    with pytest.raises(AcceptanceError) as info:
        AcceptanceRequest.parse(
            args, kwargs, where=f"{nodeid} @pytest.mark.acceptance_rate({shown})"
        )
    message = str(info.value)
    assert "\n" not in message
    return message


def bad_modules(pytester: pytest.Pytester) -> list[str]:
    """One module per bad marker; the lines expected."""
    pytester.makepyfile(
        **{
            f"test_{name}": f"""
                import pytest

                @pytest.mark.parametrize("x", [1, 2])
                @pytest.mark.acceptance_rate({text})
                def test_it(spec_engine, x):
                    raise SystemError
                """
            for name, text in BAD.items()
        }
    )
    return [error_line(f"test_{name}.py::test_it", text) for name, text in BAD.items()]


def test_registered_with_its_signature(pytester):
    result = pytester.runpytest("--markers")
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.acceptance_rate(rate=None, [*], length=None, rates=None, script=None, "
            "trace=None, law='geometric', sampling='exact', lossless=False, cost='lean', seed=0): "
            "force what the engines of this test accept. Exactly one of rate (mean "
            "accepted/drafted, 0..1), length (tokens per verification step with the bonus, "
            "1..K+1), rates (unconditional per position, non-increasing, K long), script "
            "(accepted counts per step, repeated, or request key -> counts) and trace (not "
            "available yet). The closest marker wins."
        ]
    )


def test_signature_in_the_help_is_the_real_one():
    import inspect

    from pytest_synthaccept import markers

    parameters = inspect.signature(AcceptanceRequest).parameters.values()
    stated = markers.LINE.split("):")[0]
    for parameter in parameters:
        assert f"{parameter.name}={parameter.default!r}" in stated


def test_bad_marker_is_one_line_at_collection(stub, clean):
    expected = bad_modules(stub)
    result = clean(stub.runpytest())
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=len(BAD))
    for line in expected:
        assert result.outlines.count(line) == 1, line


def test_bad_marker_under_xdist(stub, clean):
    expected = bad_modules(stub)
    result = clean(stub.runpytest("-n2"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for line in expected:
        assert result.outlines.count(line) == 2, line  # once per worker


def test_bad_marker_of_a_parameter_set(stub, clean):
    stub.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.parametrize(
            "x", [1, pytest.param(2, marks=pytest.mark.acceptance_rate(2)), 3]
        )
        def test_it(spec_engine, x):
            raise SystemError
        """
    )
    result = clean(stub.runpytest())
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert error_line("test_it.py::test_it[2]", "2") in result.outlines


def test_bad_marker_of_a_class_and_of_a_module(stub, clean):
    stub.makepyfile(
        test_class="""
        import pytest

        @pytest.mark.acceptance_rate(2)
        class TestIt:
            def test_it(self, spec_engine): ...
        """,
        test_module="""
        import pytest

        pytestmark = pytest.mark.acceptance_rate(3)

        def test_it(spec_engine): ...
        """,
    )
    result = clean(stub.runpytest())
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert error_line("test_class.py::TestIt::test_it", "2") in result.outlines
    assert error_line("test_module.py::test_it", "3") in result.outlines


def test_long_argument_is_cut(stub, clean):
    stub.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.acceptance_rate(rates=[0.5] * 200, law="constant")
        def test_it(spec_engine): ...
        """
    )
    [line] = [x for x in clean(stub.runpytest()).outlines if x.startswith("test_it.py::test_it @")]
    assert line.startswith(
        "test_it.py::test_it @pytest.mark.acceptance_rate(rates=[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, "
        "0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ...): "
    )


@pytest.mark.parametrize("args", [[], ["--acceptance-rate=0.5"]])
def test_marker_without_an_engine(stub, clean, args):
    stub.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.acceptance_rate(0.5)
        def test_it(tmp_path): ...
        """
    )
    result = clean(stub.runpytest(*args))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert f"test_it.py::test_it @pytest.mark.acceptance_rate(0.5): {NO_ENGINE}" in result.outlines


def test_engine_through_another_fixture(stub):
    stub.makepyfile(
        """
        import pytest

        @pytest.fixture
        def mine(spec_engine_factory):
            return spec_engine_factory()

        @pytest.mark.acceptance_rate(0.5)
        def test_indirect(mine):
            assert mine.plan.rate == pytest.approx(0.5)

        @pytest.mark.acceptance_rate(0.5)
        @pytest.mark.usefixtures("spec_engine")
        def test_usefixtures(): ...
        """
    )
    stub.runpytest("-W", "error", "--strict-markers").assert_outcomes(passed=2)


def test_class_marker_leaves_tests_without_an_engine_alone(stub):
    stub.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.acceptance_rate(0.5)

        def test_plain(): ...

        def test_engine(spec_engine):
            assert spec_engine.plan.rate == pytest.approx(0.5)
        """
    )
    stub.runpytest().assert_outcomes(passed=2)


def test_closest_marker_wins(stub):
    stub.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.acceptance_rate(0.1)
        own = pytest.param(0.4, marks=pytest.mark.acceptance_rate(0.4))

        def test_module(spec_engine):
            assert spec_engine.plan.rate == pytest.approx(0.1)

        @pytest.mark.acceptance_rate(0.2)
        class TestClass:
            def test_class(self, spec_engine):
                assert spec_engine.plan.rate == pytest.approx(0.2)

            @pytest.mark.acceptance_rate(0.3)
            @pytest.mark.parametrize("rate", [0.3, own])
            def test_function(self, spec_engine, rate):
                assert spec_engine.plan.rate == pytest.approx(rate)

            @pytest.mark.parametrize("rate", [0.2, own])
            def test_parameter_set(self, spec_engine, rate):
                assert spec_engine.plan.rate == pytest.approx(rate)
        """
    )
    for args in [], ["--acceptance-rate=0.9"]:
        stub.runpytest(*args).assert_outcomes(passed=6)


def test_marker_added_to_the_item_later(stub, clean):
    """The item is not seen again by the collection: its set-up reports the marker."""
    stub.makepyfile(
        test_it="""
        import pytest

        @pytest.fixture(autouse=True)
        def late(request):
            request.node.add_marker(pytest.mark.acceptance_rate(2))

        def test_it(spec_engine): ...
        """
    )
    result = clean(stub.runpytest())
    result.assert_outcomes(errors=1)
    assert error_line("test_it.py::test_it", "2") in result.outlines


def test_what_needs_k_appears_at_set_up(stub, clean):
    stub.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.acceptance_rate(length=4.5, law="constant")
        def test_length(spec_engine): ...

        @pytest.mark.acceptance_rate(rates=[0.5, 0.4])
        def test_rates(spec_engine): ...

        @pytest.mark.acceptance_rate(length=4)
        def test_fits(spec_engine): ...
        """
    )
    result = clean(stub.runpytest())
    result.assert_outcomes(passed=1, errors=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    for name, text in (
        ("test_length", "length=4.5, law='constant'"),
        ("test_rates", "rates=[0.5, 0.4]"),
    ):
        where = f"test_it.py::{name} @pytest.mark.acceptance_rate({text})"
        with pytest.raises(AcceptanceError) as info:
            AcceptanceRequest.parse((), given(text)[1], where=where).plan(3, where=where)
        assert str(info.value) in result.outlines
    assert stub.runpytest("--synthaccept-tokens=4", "-k", "length").ret == 0
