"""``spec_patterns``: a test once per acceptance pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_synthaccept.errors import AcceptanceError
from pytest_synthaccept.suite.patterns import PATTERNS, Pattern, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_synthaccept.engine.engine import SpecEngine
    from pytest_synthaccept.fixtures import SpecEngineFactory
    from pytest_synthaccept.run import SpecRun


def spec_patterns(*names: str) -> pytest.MarkDecorator:
    """Run a test once per named pattern, by default per each in ``PATTERNS``.

    The test takes the fixture ``spec_pattern`` and calls ``spec_pattern.play()``.
    ``AcceptanceError`` for an unknown name.
    """
    for name in names:
        if name not in PATTERNS:
            raise AcceptanceError(
                f"spec_patterns: {name!r} is not a pattern; give some of {', '.join(PATTERNS)}"
            )
    return pytest.mark.parametrize("spec_pattern", names or tuple(PATTERNS), indirect=True)


class BoundPattern:
    """A pattern and the engines of a test: the value of the fixture ``spec_pattern``."""

    def __init__(
        self,
        pattern: Pattern,
        factory: SpecEngineFactory,
        given: Mapping[str, Any],
        num_speculative_tokens: int,
        seed: int,
    ) -> None:
        self.name, self.says = pattern.name, pattern.says
        self.occurred: list[str] = []
        self._pattern, self._factory = pattern, factory
        self._args = pattern.engine_args(given, num_speculative_tokens)
        self._seed = seed

    def play(self, **vllm_engine_args: Any) -> list[SpecRun]:
        """Play it on the engine that it needs; the runs it made.

        ``vllm_engine_args`` go over its own. ``PatternError`` where its situation did not occur.
        The checks judge the runs after the test, as always.
        """
        __tracebackhide__ = True
        engine: SpecEngine = self._factory(**self._args | vllm_engine_args)
        before = len(engine.runs)
        stage = Stage(self.name, engine, self._seed)
        try:
            self._pattern.play(stage)
        finally:
            self.occurred = stage.occurred
        return engine.runs[before:]
