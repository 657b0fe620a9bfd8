"""What the sampler's tests share: plans, batches, and the kernels beside the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from pytest_synthaccept.sampler import SamplerState, rejection_sample
from pytest_synthaccept.sampler import reference as plain

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GEOMETRIC = (0.7539, 0.4830, 0.2631)


class Plan(NamedTuple):
    thresholds: tuple[int, ...]
    sampling: str = "exact"
    seed: int = 0
    script: tuple[tuple[int, tuple[int, ...]], ...] = ()


def scripted(*script: tuple[int, tuple[int, ...]]) -> Plan:
    """A plan of K = 3 by script; the key -1 is every request's."""
    return Plan((0, 0, 0), script=script)


def plan(*rates: float, sampling: str = "exact", seed: int = 0) -> Plan:
    return Plan(tuple(round(p * 2**32) for p in rates), sampling, seed)


@dataclass
class Row:
    """One request of a call: its drafts as scheduled, and the position of its first logits row."""

    slot: int
    drafts: Sequence[int]
    pos: int = 10


@dataclass
class Batch:
    """The tensors of one call, on the CPU until `arguments` places them."""

    rows: list[Row]
    logits: torch.Tensor  # [num_logits, V]
    temperature: torch.Tensor  # [num_slots]
    k: int
    index_dtype: torch.dtype = torch.int64
    extra: dict[str, Any] = field(default_factory=dict)

    def arguments(self, device: str) -> tuple[Any, ...]:
        lengths = [len(row.drafts) + 1 for row in self.rows]
        bounds = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        ids = [token for row in self.rows for token in (99, *row.drafts)]
        pos = [row.pos + n for row in self.rows for n in range(len(row.drafts) + 1)]
        slots = [row.slot for row in self.rows]

        def index(values: list[int], dtype: torch.dtype = self.index_dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        logits = self.logits if device == "cpu" else _on(self.logits, device)
        return (
            logits,
            None,
            index(ids),
            index(bounds, torch.int32),
            index(pos),
            index(slots),
            None,
            None,
            self.temperature.to(device),
            None,
            self.k,
        )


def _on(logits: torch.Tensor, device: str) -> torch.Tensor:
    """The same values and strides on `device`."""
    moved = torch.empty_strided(logits.shape, logits.stride(), dtype=logits.dtype, device=device)
    return moved.copy_(logits)


class Pair:
    """The kernels and the reference, driven alike; every answer is compared."""

    def __init__(self, k: int, num_slots: int = 16, prefill_len: int = 5, **options: Any) -> None:
        self.k = k
        self.prefill_len = torch.full((num_slots,), prefill_len, dtype=torch.int32)
        sizes: dict[str, int] = {"num_slots": num_slots, "num_speculative_tokens": k}
        moved = self.prefill_len.to(DEVICE)
        self.device = SamplerState(**sizes, prefill_len=moved, device=DEVICE, **options)
        self.plain = plain.ReferenceState(**sizes, prefill_len=self.prefill_len)

    def begin(self, plan: Plan) -> Pair:
        self.device.begin(plan)
        self.plain.begin(plan)
        return self

    def set_plan(self, plan: Plan) -> None:
        assert self.device.set_plan(plan) == self.plain.set_plan(plan)

    def open(self, slot: int, key: int, sample: int = 0) -> int:
        lane = self.device.open_lane(key, sample)
        assert lane == self.plain.open_lane(key, sample)
        self.assign(slot, lane)
        return lane

    def assign(self, slot: int, lane: int) -> None:
        self.device.assign(slot, lane)
        self.plain.assign(slot, lane)

    def mark(self, slots: Sequence[int]) -> None:
        self.device.mark_proposed(torch.tensor(slots, dtype=torch.int32, device=DEVICE))
        self.plain.mark_proposed(torch.tensor(slots))

    def sample(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        got = rejection_sample(self.device, *batch.arguments(DEVICE), **batch.extra)
        want = plain.rejection_sample(self.plain, *batch.arguments("cpu"), **batch.extra)
        for name, left, right in zip(("sampled", "num_sampled"), got, want, strict=True):
            assert left.dtype == right.dtype
            assert left.tolist() == right.tolist(), (name, left.tolist(), right.tolist())
        return want

    def drain(self) -> list[list[int]]:
        rows = self.device.drain()
        assert rows == self.plain.drain()
        return rows


def make_logits(
    num_rows: int,
    vocab: int,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    stride: int | None = None,
) -> torch.Tensor:
    """[num_rows, vocab] of N(0, 2^2); a stride above vocab leaves NaN between the rows."""
    generator = torch.Generator().manual_seed(seed)
    values = 2 * torch.randn(num_rows, vocab, generator=generator)
    padded = torch.full((num_rows, stride or vocab), float("nan"), dtype=dtype)
    padded[:, :vocab] = values.to(dtype)
    return padded[:, :vocab]


def make_batch(
    rows: list[Row],
    vocab: int,
    k: int,
    *,
    temperature: float = 0.0,
    num_slots: int = 16,
    **how: Any,
) -> Batch:
    num_rows = sum(len(row.drafts) + 1 for row in rows)
    temperatures = torch.full((num_slots,), temperature)
    return Batch(rows, make_logits(num_rows, vocab, **how), temperatures, k)


def columns(rows: list[list[int]], *names: str) -> list[tuple[int, ...]]:
    """These ledger columns of every row."""
    from pytest_synthaccept.run.ledger import COLUMNS

    at = [COLUMNS.index(name) for name in names]
    return [tuple(row[n] for n in at) for row in rows]


def tokens_of(result: tuple[torch.Tensor, torch.Tensor]) -> list[list[int]]:
    """The emitted tokens of every row."""
    sampled, num_sampled = result
    return [row[:n] for row, n in zip(sampled.tolist(), num_sampled.tolist(), strict=True)]


__all__ = [
    "DEVICE",
    "GEOMETRIC",
    "Batch",
    "Pair",
    "Plan",
    "Row",
    "columns",
    "make_batch",
    "make_logits",
    "plan",
    "scripted",
    "tokens_of",
]
