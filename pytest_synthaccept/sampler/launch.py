"""The sampler that stands in for vLLM's `rejection_sample`."""

from __future__ import annotations

from typing import Any

import torch
import triton

from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.sampler.kernels import decide_and_reduce_kernel, emit_kernel
from pytest_synthaccept.sampler.state import SamplerState

# Vocabulary entries of one program at most, by device; a smaller vocabulary takes the next
# power of two. In the interpreter a program costs much more than its entries.
MAX_BLOCK = {"cuda": 4096, "cpu": 131_072}
MIN_BLOCK = 16
ENTRIES_PER_WARP = 1024


def rejection_sample(
    state: SamplerState,
    # [num_logits, V]
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    # [num_logits]
    draft_sampled: torch.Tensor,
    # [num_reqs + 1]
    cu_num_logits: torch.Tensor,
    # [num_logits]
    pos: torch.Tensor,
    # [num_reqs]
    idx_mapping: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    # [num_slots]
    temperature: torch.Tensor,
    seed: torch.Tensor | None,
    num_speculative_steps: int,
    *args: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept as many drafts per row as the plan says, then emit one token of the target.

    The positional arguments are vLLM's, of which `draft_logits`, the two `expanded` mappings,
    `seed` and everything after `num_speculative_steps` are not used.

    `target_logits` (float32, bfloat16 or float16, any row stride) arrive as
    `Sampler.apply_sampling_params` left them: in vLLM 0.26 and 0.32 alike the temperature is
    divided out there, before min_p, top_k and top_p mask with -inf (0.32 skips it all when
    every temperature is 0 or 1, which needs no division). So softmax(row) is drawn from as it
    is, and `temperature` only tells argmax (0) from a draw (above).

    A request slot may stand in one row of a call only; a call may hold any part of a batch.

    Returns:
        sampled [num_reqs, K + 1] int64: accepted drafts, the target's token, then -1.
        num_sampled [num_reqs] int32: accepted + 1 (0 for a row without logits).

    Raises:
        EngineError: the engine's K is not the state's, or the logits' layout is unknown.
    """
    k = state.num_speculative_tokens
    if num_speculative_steps != k:
        raise EngineError(
            f"rejection_sample: the engine verifies {num_speculative_steps} drafts, "
            f"this sampler was made for {k}"
        )
    if target_logits.ndim != 2 or (target_logits.stride(-1) != 1 and target_logits.shape[1] > 1):
        raise EngineError(
            f"rejection_sample: target_logits of shape {tuple(target_logits.shape)} and stride "
            f"{target_logits.stride()}; needed: [num_logits, V] with a last stride of 1"
        )
    num_reqs = cu_num_logits.shape[0] - 1
    sampled = target_logits.new_empty(num_reqs, k + 1, dtype=torch.int64)
    num_sampled = target_logits.new_empty(num_reqs, dtype=torch.int32)
    if num_reqs == 0:
        return sampled, num_sampled

    vocab_size = target_logits.shape[1]
    max_block = MAX_BLOCK.get(state.device.type, MAX_BLOCK["cuda"])
    block = min(max_block, max(MIN_BLOCK, triton.next_power_of_2(vocab_size)))
    num_blocks = triton.cdiv(vocab_size, block)
    num_warps = max(1, block // ENTRIES_PER_WARP)
    k_pad = triton.next_power_of_2(k + 1)
    # [num_reqs + 1], [num_reqs], [num_slots]
    rows = [t.contiguous() for t in (cu_num_logits, idx_mapping, temperature)]
    shared = (
        *state.ledger_rows(num_reqs),
        *state.scratch(num_reqs, num_blocks),
        target_logits,
        target_logits.stride(0),
        *rows,
    )

    decide_and_reduce_kernel[(num_reqs, num_blocks)](
        *shared,
        draft_sampled.contiguous(),
        pos.contiguous(),
        state.prefill_len,
        state.slot_lane,
        state.slot_version,
        state.lanes,
        state.plans,
        state.scripts,
        vocab_size,
        K=k,
        K_PAD=k_pad,
        BLOCK=block,
        num_warps=num_warps,
    )
    emit_kernel[(num_reqs,)](
        sampled,
        num_sampled,
        *shared,
        state.lanes,
        state.plans,
        vocab_size,
        num_blocks,
        K=k,
        K_PAD=k_pad,
        BLOCK=block,
        BLOCKS_PAD=triton.next_power_of_2(num_blocks),
        num_warps=num_warps,
    )
    return sampled, num_sampled
