"""The sampler that stands in for vLLM's `rejection_sample`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton

from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.sampler.handles import launch
from pytest_synthaccept.sampler.kernels import verify_kernel
from pytest_synthaccept.sampler.state import SamplerState

# Entries of the vocabulary that a warp reduces at once, and the warps of a program. In the
# interpreter a program costs much more than its entries, and has one warp.
BLOCK = 512
WARPS = 4
INTERPRETED_BLOCK = 131_072
# Programs that one processor of the GPU runs at a time, and the registers of a thread that let it.
# Few rows are cut into that many programs; many rows into programs so small that none is long.
PROGRAMS_PER_PROCESSOR, REGISTERS = 7, 72
FEWEST_PROGRAMS, SMALL_PROGRAMS = 3, 7  # of a row


class Tiling(NamedTuple):
    """How a call is cut into programs."""

    num_blocks: int  # of a logits row
    programs: int  # of a logits row
    warps: int
    constants: tuple[int, ...]  # of the kernel, in its order


@lru_cache(maxsize=4096)
def tiling(num_reqs: int, vocab_size: int, k: int, itemsize: int, processors: int) -> Tiling:
    """Cut `num_reqs` rows of `vocab_size` logits; `processors` are the GPU's, 0 without one."""
    enough = max(16, triton.next_power_of_2(vocab_size))
    if processors:
        block, warps = min(BLOCK, enough), WARPS
        width = min(512 // itemsize, block)  # 16 bytes of each thread
    else:
        block = width = min(INTERPRETED_BLOCK, enough)
        warps = 1
    num_blocks = triton.cdiv(vocab_size, block)
    tiles = triton.cdiv(num_blocks, warps)
    programs = processors * PROGRAMS_PER_PROCESSOR // num_reqs
    programs = min(tiles, programs if programs >= FEWEST_PROGRAMS else SMALL_PROGRAMS)
    pads = triton.next_power_of_2(k + 1), triton.next_power_of_2(num_blocks)
    constants = (vocab_size, k, pads[0], block, width, warps, tiles, num_blocks, pads[1])
    return Tiling(num_blocks, programs, warps, constants)


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

    cut = tiling(num_reqs, target_logits.shape[1], k, target_logits.itemsize, state.processors)
    ledger, ledger_row = state.ledger_rows(num_reqs)
    tensors = (
        sampled,
        num_sampled,
        ledger,
        *state.scratch(num_reqs, cut.num_blocks),
        cu_num_logits.contiguous(),
        idx_mapping.contiguous(),
        temperature.contiguous(),
        draft_sampled.contiguous(),
        pos.contiguous(),
        state.prefill_len,
        state.slots,
        state.lanes,
        state.plans,
        state.scripts,
        target_logits,
    )
    # The kernel reads wide where every logits row starts at a multiple of 16 bytes.
    stride = target_logits.stride(0)
    special = (target_logits.data_ptr() % 16 == 0, stride % 16 == 0, stride == 1)
    launch(
        verify_kernel,
        (num_reqs, cut.programs),
        tensors,
        (stride, ledger_row),
        cut.constants,
        special,
        num_warps=cut.warps,
        maxnreg=REGISTERS,
    )
    return sampled, num_sampled
