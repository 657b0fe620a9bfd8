"""The sampler in plain Python: slow, without blocks, lanes of threads or device buffers.

`ReferenceState` and `rejection_sample` here take what `SamplerState` and the Triton launcher
take and give what they give, decision for decision and token for token. (Tokens above
temperature 0 come from float64 sums here and from float32 sums there: a u within about 1e-6
of a boundary between two tokens may fall on either side.)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile
from typing import Any

import torch

from pytest_synthaccept.acceptance.sequence import KEY_STRIDE, STEP_STRIDE, U32, mix32
from pytest_synthaccept.run.ledger import DRAFTLESS, NO_ALTERNATIVE, PADDED, VERIFICATION
from pytest_synthaccept.sampler.kernels import TOKEN_SALT
from pytest_synthaccept.sampler.state import Plan


def token_u32(seed: int, key: int, sample: int, index: int) -> int:
    """u * 2^32 of the draw of a request's token at `index` (0-based, prompt included)."""
    h = mix32(mix32(mix32(seed) ^ TOKEN_SALT) + key * KEY_STRIDE)
    return mix32(mix32(h + sample * KEY_STRIDE) + index * STEP_STRIDE)


def decide(plan: Plan, key: int, step: int) -> int:
    """Accepted count that the plan asks for in this verification step, 0..K."""
    for of, counts in plan.script:
        if of in (-1, key):
            return counts[step % len(counts)]
    if plan.script:
        return 0
    u = U32[plan.sampling](plan.seed, key, step)
    return sum(u < threshold for threshold in plan.thresholds)


def choose_token(logits: Sequence[float], temperature: float, rejected: int, u: int) -> int | None:
    """The target's token, `rejected` left out; None if no logit is usable.

    Temperature 0: the lowest index of the maximum. Above: inverse CDF of softmax(logits) at
    u / 2^32. NaN counts as -inf; +inf leaves no probability to finite entries.
    """
    row = [-math.inf if token == rejected or math.isnan(x) else x for token, x in enumerate(logits)]
    top = max(row)
    if top == -math.inf:
        return None
    if not temperature > 0:
        return row.index(top)
    ends = list(accumulate(1.0 if x == top else math.exp(x - top) for x in row))
    return bisect_right(ends, u / 2**32 * ends[-1])


class ReferenceState:
    """`SamplerState` on Python lists; the ledger is a list of rows."""

    def __init__(
        self,
        *,
        num_slots: int,
        num_speculative_tokens: int,
        prefill_len: torch.Tensor | Callable[[], torch.Tensor],
    ) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self._prefill_len = prefill_len
        self._num_slots = num_slots
        self.slot_lane = [-1] * num_slots
        self.slot_version = [0] * num_slots
        self.lanes: list[tuple[int, int]] = []
        self.steps: list[int] = []
        self.plans: list[Plan] = []
        self.ledger: list[list[int]] = []

    @property
    def prefill_len(self) -> torch.Tensor:
        """The engine's current prefill lengths, [num_slots] int."""
        source = self._prefill_len
        return source if isinstance(source, torch.Tensor) else source()

    def begin(self, plan: Plan) -> None:
        """As `SamplerState.begin`."""
        self.slot_lane = [-1] * self._num_slots
        self.slot_version = [0] * self._num_slots
        self.lanes, self.steps, self.plans, self.ledger = [], [], [plan], []

    def set_plan(self, plan: Plan) -> int:
        """As `SamplerState.set_plan`."""
        self.plans.append(plan)
        return len(self.plans) - 1

    def open_lane(self, key: int, sample: int) -> int:
        """As `SamplerState.open_lane`."""
        self.lanes.append((key, sample))
        self.steps.append(0)
        return len(self.lanes) - 1

    def assign(self, slot: int, lane: int) -> None:
        """As `SamplerState.assign`."""
        self.slot_lane[slot] = lane
        self.slot_version[slot] = len(self.plans) - 1

    def mark_proposed(self, idx_mapping: torch.Tensor) -> None:
        """As `SamplerState.mark_proposed`."""
        for slot in idx_mapping.tolist():
            self.slot_version[slot] = len(self.plans) - 1

    def drain(self) -> list[list[int]]:
        """As `SamplerState.drain`."""
        rows, self.ledger = self.ledger, []
        return rows


def rejection_sample(
    state: ReferenceState,
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_sampled: torch.Tensor,
    cu_num_logits: torch.Tensor,
    pos: torch.Tensor,
    idx_mapping: torch.Tensor,
    expanded_idx_mapping: torch.Tensor | None,
    expanded_local_pos: torch.Tensor | None,
    temperature: torch.Tensor,
    seed: torch.Tensor | None,
    num_speculative_steps: int,
    *args: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the Triton launcher of that name; tensors on the CPU come back."""
    bounds, positions, ids = cu_num_logits.tolist(), pos.tolist(), draft_sampled.tolist()
    prefill_len, temperatures = state.prefill_len.tolist(), temperature.tolist()
    rows = [
        _verify(
            state,
            slot,
            target_logits[start:end],
            ids[start + 1 : end],
            positions[start] if end > start else 0,
            prefill_len[slot],
            temperatures[slot],
        )
        for slot, start, end in zip(idx_mapping.tolist(), bounds, bounds[1:], strict=False)
    ]
    width = num_speculative_steps + 1
    padded = [row + [-1] * (width - len(row)) for row in rows]
    sampled = torch.tensor(padded, dtype=torch.int64).reshape(len(rows), width)
    return sampled, torch.tensor([len(row) for row in rows], dtype=torch.int32)


def _verify(
    state: ReferenceState,
    slot: int,
    # [scheduled + 1, V]
    logits: torch.Tensor,
    drafts: list[int],
    pos: int,
    prefill_len: int,
    temperature: float,
) -> list[int]:
    """One row's tokens; logs the row and bumps its counter."""
    if not len(logits):
        return []
    lane, version = state.slot_lane[slot], state.slot_version[slot]
    key, sample = state.lanes[lane] if lane >= 0 else (0, 0)
    step = state.steps[lane] if lane >= 0 else 0
    real = list(takewhile(lambda draft: draft >= 0, drafts)) if pos >= prefill_len else []
    planned = decide(state.plans[version], key, step) if real and lane >= 0 else 0
    accepted = min(planned, len(real))

    rejected = real[accepted] if accepted < len(real) else -1
    plan_seed = state.plans[version].seed
    u = token_u32(plan_seed, key, sample, pos + 1 + accepted)
    vocab = logits[accepted].float().tolist()
    chosen = choose_token(vocab, temperature, rejected, u)
    fallback = rejected if 0 <= rejected < len(vocab) else 0
    token = fallback if chosen is None else chosen

    flags = VERIFICATION if real else PADDED if drafts else DRAFTLESS
    if chosen is None:
        flags |= NO_ALTERNATIVE
    if lane >= 0:
        state.steps[lane] += bool(real)
        columns = [lane, step, pos + 1, len(drafts), len(real), planned, accepted, version]
        padding = [-1] * (state.num_speculative_tokens - len(drafts))
        state.ledger.append([*columns, flags, token, *drafts, *padding])
    return [*real[:accepted], token]
