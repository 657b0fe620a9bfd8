"""The ``acceptance_rate`` marker: registered, looked up and checked at collection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_synthaccept import options
from pytest_synthaccept.errors import AcceptanceError

if TYPE_CHECKING:
    from pytest_synthaccept.acceptance.request import AcceptanceRequest

NAME = "acceptance_rate"
LINE = (
    f"{NAME}(rate=None, *, length=None, rates=None, script=None, trace=None, law='geometric', "
    "sampling='exact', lossless=False, cost='lean', seed=0): force what the engines of this test "
    "accept. Exactly one of rate (mean accepted/drafted, 0..1), length (tokens per verification "
    "step with the bonus, 1..K+1), rates (unconditional per position, non-increasing, K long), "
    "script (accepted counts per step, repeated, or request key -> counts) and trace (not "
    "available yet). The closest marker wins."
)

# Fixtures that hand out engines with the test's plan; a marker is for tests that use one.
ENGINE_FIXTURES = ("spec_engine", "spec_engine_factory", "spec_benchmark", "spec_server")
BENCHMARK_FIXTURE = "spec_benchmark"
SEED_FIXTURE, PATTERN_FIXTURE = "spec_seed", "spec_pattern"
RATE_FIXTURE = "_spec_rate"  # carries a value of --acceptance-rate to the test


def register(config: pytest.Config) -> None:
    """Make the marker known, with its signature."""
    config.addinivalue_line("markers", LINE)


def closest(item: pytest.Item) -> pytest.Mark | None:
    """The marker that applies: of the parameter set, the function, the class, the module."""
    # pytest itself puts a function's marker before the one of a pytest.param.
    for mark in _of_parameters(item):
        if mark.name == NAME:
            return mark
    return item.get_closest_marker(NAME)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Run an unmarked test that uses an engine once per value of ``--acceptance-rate``.

    And one that uses ``spec_seed`` once per value of ``--synthaccept-seed``.
    """
    settings = options.settings(metafunc.config)
    rates = settings.rates
    if settings.seeds and SEED_FIXTURE in metafunc.fixturenames:
        ids = [f"seed={seed}" for seed in settings.seeds]
        metafunc.parametrize(SEED_FIXTURE, settings.seeds, indirect=True, ids=ids)
    if PATTERN_FIXTURE in metafunc.fixturenames:  # which brings plans of its own
        return
    marked = metafunc.definition.get_closest_marker(NAME)
    if not rates or marked or RATE_FIXTURE not in metafunc.fixturenames:
        return
    # A pytest.param may carry the marker, which does not show yet: the hidden None makes the
    # items that such a parameter set keeps, and select() drops the ones that are too many.
    values = [pytest.param(None, id=pytest.HIDDEN_PARAM)]
    values += [pytest.param(rate, id=f"rate={repr(rate).removesuffix('.0')}") for rate in rates]
    metafunc.parametrize(RATE_FIXTURE, values, indirect=True)


def select(collected: Any) -> Any:
    """Check the markers of the collected functions and drop what ``parametrize`` made too many."""
    items = collected if isinstance(collected, list) else [collected]
    functions = [item for item in items if isinstance(item, pytest.Function)]
    for item in functions:
        if problem := _problem(item):
            pytest.fail(problem, pytrace=False)
    return [item for item in items if _wanted(item)] if isinstance(collected, list) else collected


def request_of(item: pytest.Item, rate: float | None) -> tuple[AcceptanceRequest | None, str]:
    """What a test asks for (None: nothing) and how messages name the place.

    ``rate`` is its value of ``--acceptance-rate``. Raises AcceptanceError.
    """
    from pytest_synthaccept.acceptance.request import AcceptanceRequest

    if mark := closest(item):
        where = _where(item, mark)
        return AcceptanceRequest.parse(mark.args, mark.kwargs, where=where), where
    if rate is not None:
        where = f"{item.nodeid} {options.settings(item.config).place('rates')}"
        return AcceptanceRequest.parse((rate,), {}, where=where), where
    return None, item.nodeid


def _problem(item: pytest.Function) -> str | None:
    mark = closest(item)
    if mark is None:
        return None
    if not set(ENGINE_FIXTURES).intersection(item.fixturenames):
        # A class or module may hold tests without an engine beside those that it is meant for.
        if not _among(mark, item.own_markers):
            return None
        fixtures = ", ".join(ENGINE_FIXTURES)
        return f"{_where(item, mark)}: the test uses no engine; let it use one of {fixtures}"
    try:
        request_of(item, None)
    except AcceptanceError as error:
        return str(error)
    return None


def _wanted(item: Any) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    if RATE_FIXTURE not in parameters:
        return True
    return (closest(item) is None) == (parameters[RATE_FIXTURE] is not None)


def _where(item: pytest.Item, mark: pytest.Mark) -> str:
    nodeid = item.nodeid
    if isinstance(item, pytest.Function) and not _among(mark, _of_parameters(item)):
        # Parameters that the marker knows nothing of are left out.
        nodeid = nodeid.removesuffix(item.name) + item.originalname
    given = [repr(value) for value in mark.args]
    given += [f"{name}={value!r}" for name, value in mark.kwargs.items()]
    return f"{nodeid} @pytest.mark.{NAME}({_short(', '.join(given))})"


def _short(text: str, most: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def _among(mark: pytest.Mark, marks: Iterable[pytest.Mark]) -> bool:
    """Identity: arguments of equal marks may be arrays, which do not compare to one bool."""
    return any(mark is other for other in marks)


def _of_parameters(item: pytest.Item) -> list[pytest.Mark]:
    callspec = getattr(item, "callspec", None)
    return [] if callspec is None else list(callspec.marks)
