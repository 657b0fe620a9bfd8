"""The plan's decision in place of the engine's own, in the midst of the engine's verification.

A step then costs what it costs in production: the engine's kernels reduce every logits row,
compare drafts with the target, resample and insert. Between the engine's comparison and its
resampling `override` puts the planned accepted length in place of the one it found, with what
the resampling needs to know about that row; `note_tokens` logs what came of it.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803 (constexpr arguments are upper-case, as everywhere in Triton)

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from pytest_synthaccept.sampler.handles import launch
from pytest_synthaccept.sampler.kernels import decide, log
from pytest_synthaccept.sampler.state import SamplerState

_max = tl.standard._elementwise_max
_sum = tl.standard._sum_combine
_min = tl.standard._elementwise_min


@dataclass(frozen=True)
class Verdict:
    """The buffers that the engine's comparison has filled and its resampling will read.

    Of the target's logits rows there are maximum, argmax (temperature 0) and sum of exponentials
    (above) by block of the vocabulary; of the drafter's, where it keeps logits, maximum and sum.
    """

    sampled: torch.Tensor  # [num_reqs, K + 1] int64: drafts up to the first rejected one
    accepted: torch.Tensor  # [num_reqs] int32
    target_max: torch.Tensor  # [num_logits, num_blocks] float32, as the next four
    target_argmax: torch.Tensor  # int64
    target_sumexp: torch.Tensor
    draft_max: torch.Tensor
    draft_sumexp: torch.Tensor
    target_logsumexp: torch.Tensor  # [num_reqs] float32, of the row that is resampled
    draft_logsumexp: torch.Tensor  # [num_reqs] float32
    has_draft_logits: bool


@triton.jit
def _logsumexp(max_ptr, sumexp_ptr, row, NUM_BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr):
    blocks = tl.arange(0, BLOCKS_PAD)
    real = blocks < NUM_BLOCKS
    maxima = tl.load(max_ptr + row * NUM_BLOCKS + blocks, mask=real, other=float("-inf"))
    sums = tl.load(sumexp_ptr + row * NUM_BLOCKS + blocks, mask=real, other=0.0)
    top = tl.reduce(maxima, 0, _max)
    return top + tl.log(tl.reduce(sums * tl.exp(maxima - top), 0, _sum))


_OF_OVERRIDE = [
    *("sampled_ptr", "accepted_ptr", "target_max_ptr", "target_argmax_ptr", "target_sumexp_ptr"),
    *("draft_max_ptr", "draft_sumexp_ptr", "target_logsumexp_ptr", "draft_logsumexp_ptr"),
    *("ledger_ptr", "cu_num_logits_ptr", "idx_mapping_ptr", "temperature_ptr", "pos_ptr"),
    *("draft_sampled_ptr", "prefill_len_ptr", "slots_ptr", "lanes_ptr", "plans_ptr"),
    "scripts_ptr",
]


@triton.jit(do_not_specialize=["ledger_row"], do_not_specialize_on_alignment=_OF_OVERRIDE)
def override_kernel(
    # [num_reqs, K + 1]
    sampled_ptr,
    # [num_reqs]
    accepted_ptr,
    # [num_logits, num_blocks]
    target_max_ptr,
    # [num_logits, num_blocks]
    target_argmax_ptr,
    # [num_logits, num_blocks]
    target_sumexp_ptr,
    # [num_logits, num_blocks]
    draft_max_ptr,
    # [num_logits, num_blocks]
    draft_sumexp_ptr,
    # [num_reqs]
    target_logsumexp_ptr,
    # [num_reqs]
    draft_logsumexp_ptr,
    # [chunk_rows, 10 + K]: ledger.COLUMNS, draft ids
    ledger_ptr,
    # [num_reqs + 1]
    cu_num_logits_ptr,
    # [num_reqs]
    idx_mapping_ptr,
    # [num_slots]
    temperature_ptr,
    # [num_logits]
    draft_sampled_ptr,
    # [num_logits]
    pos_ptr,
    # [num_slots]
    prefill_len_ptr,
    # [num_slots, 2]: lane, plan version
    slots_ptr,
    # [num_lanes, 3]: key term, sample term, step
    lanes_ptr,
    # [num_versions, K + 5], as `verify_kernel`'s
    plans_ptr,
    scripts_ptr,
    # the call's first row in the ledger
    ledger_row,
    NUM_BLOCKS: tl.constexpr,
    HAS_DRAFT_LOGITS: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    BLOCKS_PAD: tl.constexpr,
):
    """Put the planned accepted length in place of the engine's, and log the row without its token.

    Grid: (num_reqs,). At temperature 0 a rejected draft is followed by the row's argmax, as in
    the engine, be it the rejected draft itself; above, the engine resamples.
    """
    req = tl.program_id(0).to(tl.int64)
    ledger_ptr += (ledger_row + req) * (10 + K)
    start = tl.load(cu_num_logits_ptr + req).to(tl.int64)
    scheduled = tl.load(cu_num_logits_ptr + req + 1).to(tl.int64) - start - 1
    if scheduled < 0:
        tl.store(ledger_ptr, -1)
        return
    slot = tl.load(idx_mapping_ptr + req).to(tl.int64)
    temperature = tl.load(temperature_ptr + slot)
    draft_sampled_ptr += start + 1
    drafts, drafted, planned, position, lane, version, _, _, step = decide(
        start,
        scheduled,
        slot,
        draft_sampled_ptr,
        pos_ptr,
        prefill_len_ptr,
        slots_ptr,
        lanes_ptr,
        plans_ptr,
        scripts_ptr,
        K,
        K_PAD,
    )
    accepted = tl.minimum(planned, drafted)
    i = tl.arange(0, K_PAD)
    sampled_ptr += req * (K + 1)
    tl.store(sampled_ptr + i, drafts.to(tl.int64), mask=i < accepted)
    tl.store(accepted_ptr + req, accepted)
    if accepted < scheduled:
        row = start + accepted
        if temperature == 0.0:
            blocks = tl.arange(0, BLOCKS_PAD)
            at = row * NUM_BLOCKS + blocks
            maxima = tl.load(target_max_ptr + at, mask=blocks < NUM_BLOCKS, other=float("-inf"))
            tokens = tl.load(target_argmax_ptr + at, mask=blocks < NUM_BLOCKS, other=0)
            top = tl.reduce(maxima, 0, _max)
            token = tl.reduce(tl.where(maxima == top, tokens, 0x7FFFFFFF), 0, _min)
            tl.store(sampled_ptr + accepted, token)
        else:
            lse = _logsumexp(target_max_ptr, target_sumexp_ptr, row, NUM_BLOCKS, BLOCKS_PAD)
            tl.store(target_logsumexp_ptr + req, lse)
            if HAS_DRAFT_LOGITS:
                lse = _logsumexp(draft_max_ptr, draft_sumexp_ptr, row, NUM_BLOCKS, BLOCKS_PAD)
                tl.store(draft_logsumexp_ptr + req, lse)
    log(
        ledger_ptr,
        lanes_ptr,
        0,
        -1,
        scheduled,
        accepted,
        drafts,
        drafted,
        planned,
        position,
        lane,
        version,
        step,
        K,
        K_PAD,
    )


@triton.jit(
    do_not_specialize=["ledger_row"],
    do_not_specialize_on_alignment=["ledger_ptr", "sampled_ptr", "num_sampled_ptr"],
)
def note_tokens_kernel(
    # [chunk_rows, 10 + K]
    ledger_ptr,
    # [num_reqs, K + 1]
    sampled_ptr,
    # [num_reqs]
    num_sampled_ptr,
    # the call's first row in the ledger
    ledger_row,
    K: tl.constexpr,
):
    """Log the token that ends each row. Grid: (num_reqs,)."""
    req = tl.program_id(0).to(tl.int64)
    last = tl.load(num_sampled_ptr + req) - 1
    token = tl.load(sampled_ptr + req * (K + 1) + last, mask=last >= 0, other=-1)
    tl.store(ledger_ptr + (ledger_row + req) * (10 + K) + 9, token)


def override(
    state: SamplerState,
    ledger: tuple[torch.Tensor, int],
    verdict: Verdict,
    # [num_logits]
    draft_sampled: torch.Tensor,
    # [num_reqs + 1]
    cu_num_logits: torch.Tensor,
    # [num_logits]
    pos: torch.Tensor,
    # [num_reqs]
    idx_mapping: torch.Tensor,
    # [num_slots]
    temperature: torch.Tensor,
) -> None:
    """To be called between the engine's comparison and its resampling, on their stream.

    The arguments after `verdict` are those of `rejection_sample` of that name; `ledger` is what
    `SamplerState.ledger_rows` gave for num_reqs rows.
    """
    k = state.num_speculative_tokens
    num_blocks = verdict.target_max.shape[1]
    pads = triton.next_power_of_2(k + 1), triton.next_power_of_2(num_blocks)
    tensors = (
        verdict.sampled,
        verdict.accepted,
        verdict.target_max,
        verdict.target_argmax,
        verdict.target_sumexp,
        verdict.draft_max,
        verdict.draft_sumexp,
        verdict.target_logsumexp,
        verdict.draft_logsumexp,
        ledger[0],
        cu_num_logits,
        idx_mapping,
        temperature,
        draft_sampled,
        pos,
        state.prefill_len,
        state.slots,
        state.lanes,
        state.plans,
        state.scripts,
    )
    constants = (num_blocks, verdict.has_draft_logits, k, *pads)
    grid = (len(verdict.accepted), 1)
    launch(override_kernel, grid, tensors, (ledger[1],), constants, num_warps=1)


def note_tokens(
    state: SamplerState,
    ledger: tuple[torch.Tensor, int],
    # [num_reqs, K + 1]
    sampled: torch.Tensor,
    # [num_reqs]
    num_sampled: torch.Tensor,
) -> None:
    """Complete the rows that `override` logged, from the engine's result."""
    tensors = (ledger[0], sampled, num_sampled)
    constants = (state.num_speculative_tokens,)
    grid = (len(num_sampled), 1)
    launch(note_tokens_kernel, grid, tensors, (ledger[1],), constants, num_warps=1)
