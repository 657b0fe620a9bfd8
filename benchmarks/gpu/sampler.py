"""Verification alone: our sampler, lean and faithful, beside vLLM's and beside what bounds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from benchmarks.gpu import two_kernels
from benchmarks.gpu.timing import gpu_microseconds, host_microseconds
from pytest_synthaccept.engine import verdict_seam
from pytest_synthaccept.sampler import SamplerState, note_tokens, override, rejection_sample

VOCAB = 151_936
READ = 4 * 60_000_000  # bytes between two uses of the same logits row: four times the L2
ACCEPTED = 0.7  # conditional rate at each position


@dataclass(frozen=True)
class Case:
    """One shape; every request has K drafts."""

    requests: int
    k: int
    temperature: float
    vocab: int = VOCAB
    dtype: str = "float32"


CASES = [
    Case(256, 3, 1.0),
    Case(256, 3, 0.0),
    Case(64, 3, 1.0),
    Case(64, 3, 0.0),
    Case(64, 7, 0.0),
    Case(8, 3, 1.0),
    Case(1, 3, 0.0),
    Case(1, 3, 1.0),
    Case(64, 3, 0.0, dtype="bfloat16"),
    Case(64, 3, 1.0, vocab=32_003),
]


class PlannedRates:
    """An acceptance plan as the sampler reads it."""

    sampling, seed, script = "exact", 0, ()

    def __init__(self, k: int) -> None:
        self.thresholds = [round(ACCEPTED ** (i + 1) * 2**32) for i in range(k)]


class Calls:
    """The providers' calls of a case, each over its own share of a pool of logits rows."""

    def __init__(self, case: Case, pool: torch.Tensor) -> None:
        n, k = case.requests, case.k
        self.case = case
        self.rows = n * (k + 1)
        size = case.vocab * torch.empty(0, dtype=getattr(torch, case.dtype)).element_size()
        self.pool = pool.view(getattr(torch, case.dtype))
        self.pool = self.pool[: len(self.pool) // case.vocab * case.vocab].view(-1, case.vocab)
        self.shares = max(1, len(self.pool) // self.rows)
        self.calls = max(20, -(-READ // (size * n)))

        def ints(values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.as_tensor(values, device="cuda").to(dtype)

        ids = ints(torch.randint(0, case.vocab, (self.rows,)))
        cu = ints(range(0, self.rows + 1, k + 1))
        pos, slots = ints(range(5, 5 + self.rows), torch.int64), ints(range(n))
        rows = slots.repeat_interleave(k + 1)
        local = ints(list(range(k + 1)) * n)
        temperature = torch.full((n,), case.temperature, device="cuda")
        seeds = ints(range(n), torch.int64)
        self.batch = (ids, cu, pos, slots, temperature)
        self.after = (ids, cu, pos, slots, rows, local, temperature, seeds, k)
        conditional = [ACCEPTED] * k
        self.rates = torch.tensor(conditional, dtype=torch.float32, device="cuda")
        self.state = SamplerState(
            num_slots=n,
            num_speculative_tokens=k,
            prefill_len=torch.zeros(n, dtype=torch.int32, device="cuda"),
            device="cuda",
            ledger_chunk_rows=1 << 20,
        )
        self.state.begin(PlannedRates(k))
        for slot in range(n):
            self.state.assign(slot, self.state.open_lane(slot, 0))

    def logits(self, i: int) -> torch.Tensor:
        """[num_logits, V]: the next share of the pool."""
        first = i % self.shares * self.rows
        return self.pool[first : first + self.rows]

    def lean(self, i: int) -> object:
        return rejection_sample(self.state, self.logits(i), None, *self.after)

    def faithful(self, i: int) -> object:
        state = self.state
        ledger = state.ledger_rows(self.case.requests)
        result = verdict_seam.overridden(
            lambda verdict: override(state, ledger, verdict, *self.batch),
            self.logits(i),
            None,
            *self.after,
        )
        note_tokens(state, ledger, *result)
        return result

    def builtin(self, i: int) -> object:
        return verdict_seam.rejection_sample(
            self.logits(i), None, *self.after, synthetic_conditional_rates=self.rates
        )

    def standard(self, i: int) -> object:
        return verdict_seam.rejection_sample(self.logits(i), None, *self.after)

    def two_kernels(self, i: int) -> object:
        return two_kernels.rejection_sample(self.state, self.logits(i), *self.batch)

    def accepting(self, i: int) -> object:
        """The standard verdict on drafts of which it accepts as many as the plan does."""
        return verdict_seam.rejection_sample(
            self.logits(i), None, self.accepted_ids[i % self.shares], *self.after[1:]
        )

    @cached_property
    def accepted_ids(self) -> list[torch.Tensor]:
        """[num_logits] per share: the target's own tokens up to an accepted length."""
        n, k = self.case.requests, self.case.k
        u = torch.tensor([(r * 0.618034) % 1 for r in range(n)], device="cuda")
        rates = torch.tensor([ACCEPTED ** (j + 1) for j in range(k)], device="cuda")
        accepted = u[:, None] < rates
        found = []
        for i in range(self.shares):
            best = self.logits(i).argmax(-1).view(n, k + 1)
            ids = torch.zeros_like(best)
            other = (best[:, :k] + 1) % self.case.vocab
            ids[:, 1:] = torch.where(accepted, best[:, :k], other)
            found.append(ids.flatten().to(torch.int32))
        return found

    def outputs(self, i: int) -> object:
        """The two tensors that a call returns."""
        logits, n = self.logits(i), self.case.requests
        sampled = logits.new_empty(n, self.case.k + 1, dtype=torch.int64)
        return sampled, logits.new_empty(n, dtype=torch.int32)

    def argmax(self, i: int) -> object:
        shape = (self.case.requests, self.case.k + 1, self.case.vocab)
        return self.logits(i).view(shape)[:, 0].argmax(-1)


PROVIDERS: dict[str, Callable[[Calls, int], object]] = {
    "ours, lean": Calls.lean,
    "ours, faithful": Calls.faithful,
    "two plain kernels": Calls.two_kernels,
    "vLLM, synthetic": Calls.builtin,
    "vLLM, standard": Calls.standard,
    "torch.argmax of one row": Calls.argmax,
}
ACCEPTING = {"vLLM, standard, accepting as many": Calls.accepting}  # at temperature 0 alone
ON_THE_HOST = {"two outputs allocated": Calls.outputs}


def copy_bandwidth() -> float:
    """Bytes per microsecond of a device-to-device copy, read and written ones together."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * (1 << 30) / gpu_microseconds(lambda i: target.copy_(source), 4)["p50"]


def measure() -> Iterator[dict[str, Any]]:
    """The records of all cases."""
    bandwidth = copy_bandwidth()
    pool = torch.empty(1100 * VOCAB * 4, device="cuda").normal_()  # 2.7 GB
    for case in CASES:
        calls = Calls(case, pool)
        shape = vars(case)
        for provider, call in (PROVIDERS if case.temperature else PROVIDERS | ACCEPTING).items():
            times = gpu_microseconds(lambda i, c=call, x=calls: c(x, i), calls.calls)
            yield {"op": "verify, GPU us", "provider": provider, "shape": shape, **times}
        size = torch.empty(0, dtype=getattr(torch, case.dtype)).element_size()
        floor = round(case.requests * case.vocab * size / bandwidth, 2)
        floors = dict.fromkeys(("p20", "p50", "p80"), floor)
        yield {"op": "verify, GPU us", "provider": "one row, copied", "shape": shape, **floors}
        if case == Case(64, 3, 0.0):
            for provider, call in (PROVIDERS | ON_THE_HOST).items():
                times = host_microseconds(lambda i, c=call, x=calls: c(x, i))
                yield {"op": "verify, host us", "provider": provider, "shape": shape, **times}
