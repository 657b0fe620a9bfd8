"""The timer given to pytest-benchmark: it runs only while an engine is being timed.

So set-up and draining of a run, and the pauses of a sweep, are in no measurement, though
pytest-benchmark calibrates and repeats whole calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_synthaccept.engine.device_clock import DeviceClock

# pytest-benchmark learns a timer's precision by reading it until it moves.
TICK = 1e-9


class Meter:
    """Seconds of timed sections, added up; on a GPU by CUDA events."""

    def __init__(self) -> None:
        self._clock: DeviceClock | None = None
        self._ticks = 0

    def use(self, *, cuda: bool) -> None:
        """Choose the clock: CUDA events are for an engine whose device this process has open."""
        from pytest_synthaccept.engine.device_clock import DeviceClock

        self._clock = DeviceClock(cuda=cuda)

    def engine_seconds(self) -> float:
        """The timer. Each reading is a nanosecond after the one before."""
        self._ticks += 1
        return self._seconds + self._ticks * TICK

    @contextmanager
    def section(self, into: list[float]) -> Iterator[None]:
        """Time this block; its seconds are appended to ``into``."""
        assert self._clock is not None  # see use()
        before = self._seconds
        with self._clock.section():
            yield
        into.append(self._seconds - before)

    @property
    def _seconds(self) -> float:
        return 0.0 if self._clock is None else self._clock.seconds()
