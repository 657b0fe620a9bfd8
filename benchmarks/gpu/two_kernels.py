"""The plain way: one kernel to decide and reduce blocks of 4096, one to choose and write.

What the sampler is measured against. It writes what the sampler writes, but takes no care of
NaN, infinities or rows without logits, and draws by another random number.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pytest_synthaccept.sampler import SamplerState
from pytest_synthaccept.sampler.kernels import decide, log

BLOCK = 4096


@triton.jit
def reduce_kernel(
    # [num_reqs, num_blocks], as the next two
    max_ptr,
    sum_ptr,
    argmax_ptr,
    logits_ptr,
    logits_stride,
    cu_num_logits_ptr,
    idx_mapping_ptr,
    temperature_ptr,
    draft_sampled_ptr,
    pos_ptr,
    prefill_len_ptr,
    slots_ptr,
    lanes_ptr,
    plans_ptr,
    scripts_ptr,
    vocab_size,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    req, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = tl.load(cu_num_logits_ptr + req).to(tl.int64)
    scheduled = tl.load(cu_num_logits_ptr + req + 1).to(tl.int64) - start - 1
    slot = tl.load(idx_mapping_ptr + req).to(tl.int64)
    drafts = draft_sampled_ptr + start + 1
    _, drafted, planned, _, _, _, _, _, _ = decide(
        start,
        scheduled,
        slot,
        drafts,
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
    rejected = tl.load(drafts + accepted, mask=accepted < drafted, other=-1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    row = logits_ptr + (start + accepted) * logits_stride
    x = tl.load(row + ids, mask=(ids < vocab_size) & (ids != rejected), other=float("-inf"))
    out = req * tl.num_programs(1) + block
    if tl.load(temperature_ptr + slot) > 0.0:
        m = tl.max(x, 0)
        tl.store(max_ptr + out, m)
        tl.store(sum_ptr + out, tl.sum(tl.exp(x - m), 0))
    else:
        m, index = tl.max(x, 0, return_indices=True)
        tl.store(max_ptr + out, m)
        tl.store(argmax_ptr + out, block * BLOCK + index)


@triton.jit
def choose_kernel(
    sampled_ptr,
    num_sampled_ptr,
    ledger_ptr,
    max_ptr,
    sum_ptr,
    argmax_ptr,
    logits_ptr,
    logits_stride,
    cu_num_logits_ptr,
    idx_mapping_ptr,
    temperature_ptr,
    draft_sampled_ptr,
    pos_ptr,
    prefill_len_ptr,
    slots_ptr,
    lanes_ptr,
    plans_ptr,
    scripts_ptr,
    vocab_size,
    num_blocks,
    ledger_row,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS_PAD: tl.constexpr,
):
    req = tl.program_id(0).to(tl.int64)
    start = tl.load(cu_num_logits_ptr + req).to(tl.int64)
    scheduled = tl.load(cu_num_logits_ptr + req + 1).to(tl.int64) - start - 1
    slot = tl.load(idx_mapping_ptr + req).to(tl.int64)
    draft_sampled_ptr += start + 1
    drafts, drafted, planned, position, lane, version, key, _, step = decide(
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
    rejected = tl.load(draft_sampled_ptr + accepted, mask=accepted < drafted, other=-1)
    blocks = tl.arange(0, BLOCKS_PAD)
    at = req * num_blocks + blocks
    maxima = tl.load(max_ptr + at, mask=blocks < num_blocks, other=float("-inf"))
    top, top_block = tl.max(maxima, 0, return_indices=True)
    if tl.load(temperature_ptr + slot) > 0.0:
        sums = tl.load(sum_ptr + at, mask=blocks < num_blocks, other=0.0)
        shares = sums * tl.exp(maxima - top)
        t = tl.rand(key.to(tl.int32), step.to(tl.int32)) * tl.sum(shares, 0)
        ends = tl.cumsum(shares, 0)
        chosen = tl.sum((ends <= t).to(tl.int32), 0)
        t -= tl.sum(tl.where(blocks < chosen, shares, 0.0), 0)
        ids = chosen * BLOCK + tl.arange(0, BLOCK)
        row = logits_ptr + (start + accepted) * logits_stride
        x = tl.load(row + ids, mask=(ids < vocab_size) & (ids != rejected), other=float("-inf"))
        ends = tl.cumsum(tl.exp(x - top), 0)
        token = (chosen * BLOCK + tl.sum((ends <= t).to(tl.int32), 0)).to(tl.int64)
    else:
        token = tl.load(argmax_ptr + req * num_blocks + top_block).to(tl.int64)
    i = tl.arange(0, K_PAD)
    tokens = tl.where(i < accepted, drafts, tl.where(i == accepted, token, -1))
    tl.store(sampled_ptr + req * (K + 1) + i, tokens, mask=i <= K)
    tl.store(num_sampled_ptr + req, accepted + 1)
    log(
        ledger_ptr + (ledger_row + req) * (10 + K),
        lanes_ptr,
        0,
        token,
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


def rejection_sample(
    state: SamplerState,
    logits: torch.Tensor,
    ids: torch.Tensor,
    cu_num_logits: torch.Tensor,
    pos: torch.Tensor,
    idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the sampler's; the arguments are those of `rejection_sample` of that name."""
    k, vocab_size = state.num_speculative_tokens, logits.shape[1]
    n, num_blocks = len(cu_num_logits) - 1, triton.cdiv(vocab_size, BLOCK)
    sampled = logits.new_empty(n, k + 1, dtype=torch.int64)
    num_sampled = logits.new_empty(n, dtype=torch.int32)
    floats = [logits.new_empty(n, num_blocks, dtype=torch.float32) for _ in range(2)]
    stats = (*floats, logits.new_empty(n, num_blocks, dtype=torch.int32))
    chunk, row = state.ledger_rows(n)
    shared = (
        *(*stats, logits, logits.stride(0), cu_num_logits, idx_mapping, temperature, ids, pos),
        *(state.prefill_len, state.slots, state.lanes, state.plans, state.scripts, vocab_size),
    )
    sizes = {"K": k, "K_PAD": triton.next_power_of_2(k + 1), "BLOCK": BLOCK}
    reduce_kernel[(n, num_blocks)](*shared, **sizes)
    pad = triton.next_power_of_2(num_blocks)
    choose_kernel[(n,)](
        sampled, num_sampled, chunk, *shared, num_blocks, row, **sizes, BLOCKS_PAD=pad
    )
    return sampled, num_sampled
