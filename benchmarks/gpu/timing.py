"""How a time is taken: GPU time by replay of a CUDA graph, host time by eager calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

REPLAYS, HOST_TRIALS, HOST_CALLS = 25, 7, 300
ROUNDS = 7  # of whole engines by turns


def percentiles(values: list[float]) -> dict[str, float]:
    """p20, p50 and p80."""
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return {"p20": round(cuts[1], 2), "p50": round(cuts[4], 2), "p80": round(cuts[7], 2)}


def gpu_microseconds(call: Callable[[int], object], calls: int) -> dict[str, float]:
    """Of one ``call(i)``: a graph of ``calls`` of them, i counting up, replayed again and again."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(i) for i in range(calls)]  # the graph writes to what they have returned
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / calls)
    del kept
    return percentiles(times)


def host_microseconds(call: Callable[[int], object]) -> dict[str, float]:
    """Of one eager ``call(0)``, the device's queue never full."""
    for _ in range(10):
        call(0)
    times = []
    for _ in range(HOST_TRIALS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            call(0)
        times.append((time.perf_counter() - start) * 1e6 / HOST_CALLS)
    torch.cuda.synchronize()
    return percentiles(times)
