"""The time of sections of code, on the device's own clock where it has one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class DeviceClock:
    """Adds up sections. CUDA events are queued with the work; only ``seconds`` waits for them."""

    def __init__(self, *, cuda: bool) -> None:
        self._cuda = cuda
        self.reset()

    def reset(self) -> None:
        """Start at 0."""
        self._seconds = 0.0
        self._events: list[tuple[Any, Any]] = []

    @contextmanager
    def section(self) -> Iterator[None]:
        """Count the time in this block; not in one that raised."""
        if not self._cuda:
            began = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - began
            return
        import torch

        event: Any = torch.cuda.Event
        first, last = (event(enable_timing=True) for _ in range(2))
        first.record()
        yield
        last.record()
        self._events.append((first, last))

    def seconds(self) -> float:
        """All sections so far. A CUDA event counts milliseconds, in steps of half a microsecond."""
        for first, last in self._events:
            last.synchronize()
            self._seconds += first.elapsed_time(last) / 1000
        self._events.clear()
        return self._seconds
