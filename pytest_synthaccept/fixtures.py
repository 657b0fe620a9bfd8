"""The fixtures. Thin: an engine is built by ``engine/``, and nothing heavy loads before it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_synthaccept import markers, options
from pytest_synthaccept.errors import EngineError, SynthacceptError
from pytest_synthaccept.report import USED, Used
from pytest_synthaccept.report.terminal import progress

if TYPE_CHECKING:
    from pytest_synthaccept.engine.config import Drafter, EngineConfig
    from pytest_synthaccept.engine.engine import SpecEngine
    from pytest_synthaccept.engine.pool import EnginePool
    from pytest_synthaccept.suite.parametrize import BoundPattern

POOL = pytest.StashKey["EnginePool"]()


class SpecEngineFactory(Protocol):
    """The type of ``spec_engine_factory``."""

    def __call__(self, **vllm_engine_args: Any) -> SpecEngine:
        """An engine with these vLLM arguments over ``spec_engine_args``, at this test's plan."""


@pytest.fixture(scope="session")
def spec_engine_args(pytestconfig: pytest.Config) -> dict[str, Any]:
    """Engine arguments for vLLM: those of ``--synthaccept-engine-args``, or none.

    Override it in a conftest, a module or a class.
    """
    return dict(options.settings(pytestconfig).engine_args)


@pytest.fixture(scope="session")
def spec_target(pytestconfig: pytest.Config) -> str | None:
    """Path or hub name of the target model; None is a tiny Llama. Override it at will."""
    return options.settings(pytestconfig).model


@pytest.fixture(scope="session")
def spec_drafter(pytestconfig: pytest.Config) -> Drafter:
    """How drafts are made: a ``Drafter``, by default tiny EAGLE with K = 3. Override it at will."""
    return options.settings(pytestconfig).to_drafter()


@pytest.fixture
def _spec_rate(request: pytest.FixtureRequest) -> float | None:
    """This test's value of ``--acceptance-rate``."""
    return getattr(request, "param", None)


@pytest.fixture
def spec_engine_factory(
    request: pytest.FixtureRequest,
    spec_engine_args: Mapping[str, Any],
    spec_target: str | None,
    spec_drafter: Drafter,
    _spec_rate: float | None,
) -> Iterator[SpecEngineFactory]:
    """``spec_engine_factory(**vllm_engine_args)``: another engine, pooled by its arguments.

    The arguments go over ``spec_engine_args``. The engine has this test's acceptance plan.
    """
    item, config = request.node, request.config
    # Anew at each set-up: a plugin may run the same item again.
    used = item.stash[USED] = Used()

    def make(**vllm_engine_args: Any) -> SpecEngine:
        __tracebackhide__ = True
        asked, where = markers.request_of(item, _spec_rate)
        wanted = _engine_config(
            config, spec_engine_args, vllm_engine_args, spec_target, spec_drafter
        )
        engine = _pool(config).get(wanted)
        # Handed out a second time, it keeps the runs and the plan that it has by now.
        if not any(engine is other for other in used.engines):
            engine.begin_test(asked, where=where, poison=options.settings(config).poison)
            used.engines.append(engine)
        return engine

    yield make
    # The runs of a large suite would add up.
    used.engines.clear()


@pytest.fixture
def spec_engine(spec_engine_factory: SpecEngineFactory) -> SpecEngine:
    """A live vLLM engine, shared between tests, with this test's acceptance plan."""
    try:
        return spec_engine_factory()
    except SynthacceptError as error:
        message = str(error)
    # Outside the except block, or the cause is printed too.
    pytest.fail(message, pytrace=False)


@pytest.fixture
def spec_seed(request: pytest.FixtureRequest) -> int:
    """Seed of the prompts and plans of ``spec_pattern``; ``--synthaccept-seed`` gives others."""
    seed: int = getattr(request, "param", 0)
    return seed


@pytest.fixture
def spec_pattern(
    request: pytest.FixtureRequest,
    spec_engine_factory: SpecEngineFactory,
    spec_engine_args: Mapping[str, Any],
    spec_drafter: Drafter,
    spec_seed: int,
) -> BoundPattern:
    """The acceptance pattern of ``spec_patterns``, on engines with this test's arguments."""
    from pytest_synthaccept.suite.parametrize import BoundPattern
    from pytest_synthaccept.suite.patterns import PATTERNS

    name = getattr(request, "param", None)
    if name is None:
        raise EngineError("spec_pattern: mark the test with @spec_patterns(), or with some names")
    k = spec_drafter.num_speculative_tokens
    return BoundPattern(PATTERNS[name], spec_engine_factory, spec_engine_args, k, spec_seed)


def close_pool(config: pytest.Config) -> None:
    """Shut the engines of this process down."""
    if pool := config.stash.get(POOL, None):
        pool.close()


def _pool(config: pytest.Config) -> EnginePool:
    if POOL not in config.stash:
        from pytest_synthaccept.engine.pool import EnginePool

        config.stash[POOL] = EnginePool(progress=progress(config))
    return config.stash[POOL]


def _engine_config(
    config: pytest.Config,
    args: Mapping[str, Any],
    more_args: Mapping[str, Any],
    target: str | os.PathLike[str] | None,
    drafter: Drafter | None,
) -> EngineConfig:
    """The configuration of an engine; EngineError where an overridden fixture returns nonsense."""
    from pytest_synthaccept.engine.config import Drafter, EngineConfig

    for name, value, kinds, allowed in (
        ("spec_engine_args", args, Mapping, "a dict of vLLM engine arguments"),
        ("spec_target", target, str | os.PathLike | None, "a path, a model name or None"),
        ("spec_drafter", drafter, Drafter | None, "a Drafter or None"),
    ):
        if not isinstance(value, kinds):
            raise EngineError(f"fixture {name} returned {value!r}; it must return {allowed}")
    return EngineConfig(
        model=None if target is None else os.fspath(target),
        drafter=drafter,
        device=options.settings(config).device,
        args={**args, **more_args},
    )
