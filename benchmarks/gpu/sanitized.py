"""Every kernel of the sampler over odd shapes, for a checker of memory accesses and races.

``PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m
benchmarks.gpu.sanitized``, and the same with ``racecheck``: without torch's cache each buffer
is an allocation of its own, whose ends are known.
"""

from __future__ import annotations

import itertools

import torch

from benchmarks.gpu.sampler import Calls, Case


def main() -> None:
    """Call each kernel once per shape; results are not looked at."""
    shapes = itertools.product(
        (1, 5, 64), (1, 3), (0.0, 1.0), (7, 512, 5003), ("float32", "bfloat16")
    )
    count = 0
    for requests, k, temperature, vocab, dtype in shapes:
        case = Case(requests, k, temperature, vocab, dtype)
        rows = requests * (k + 1)
        pool = torch.zeros(rows * vocab + 3 * vocab, device="cuda")
        calls = Calls(case, pool[: rows * vocab])
        calls.lean(0)
        calls.faithful(0)
        torch.cuda.synchronize()
        assert len(calls.state.drain()) == 2 * requests
        count += 2
    print(f"{count} calls done")


if __name__ == "__main__":
    main()
