"""Test speculative decoding in a real vLLM engine at exactly the acceptance rate you ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_synthaccept.acceptance.plan import AcceptancePlan
    from pytest_synthaccept.bench.curve import Curve
    from pytest_synthaccept.bench.fixture import SpecBenchmark
    from pytest_synthaccept.engine.config import Drafter
    from pytest_synthaccept.engine.engine import SpecEngine
    from pytest_synthaccept.run import SpecRun
    from pytest_synthaccept.suite.parametrize import spec_patterns

__all__ = [
    "AcceptancePlan",
    "Curve",
    "Drafter",
    "SpecBenchmark",
    "SpecEngine",
    "SpecRun",
    "spec_patterns",
]

# Every pytest run of every project that has the plugin installed imports this package, so a
# name is loaded when it is first used.
_HOMES = {
    "AcceptancePlan": "pytest_synthaccept.acceptance.plan",
    "Curve": "pytest_synthaccept.bench.curve",
    "SpecBenchmark": "pytest_synthaccept.bench.fixture",
    "Drafter": "pytest_synthaccept.engine.config",
    "SpecEngine": "pytest_synthaccept.engine.engine",
    "SpecRun": "pytest_synthaccept.run",
    "spec_patterns": "pytest_synthaccept.suite.parametrize",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
