"""The two kernels of the synthetic rejection sampler.

All integer arithmetic of the decision is done in int64 and masked to 32 bits: well defined on
a GPU and in Triton's interpreter alike, and equal bit for bit to `acceptance.sequence`.
Index spaces: `req` is a row of this call, `slot` the engine's persistent request slot, `lane`
one (request key, sample) of the current run, -1 for nobody's. The ledger row of a request is
also what the first kernel tells the second.

In the interpreter an operation costs some 25 us and a call of a jit function, `tl.sum` and
`tl.max` included, 500 us: hence `tl.reduce` with Triton's own combine functions, which the
interpreter hands to NumPy and which compile to the same code, and few device functions. Each
global constant costs a launch about 1 us on the host: hence the ledger's columns by number.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803 (constexpr arguments are upper-case, as everywhere in Triton)

from __future__ import annotations

import triton
import triton.language as tl

from pytest_synthaccept.acceptance import sequence
from pytest_synthaccept.run import ledger

# Salt of the token draws: their own domain, apart from both decision sequences.
TOKEN_SALT = 0x2545_F491

_MASK32 = tl.constexpr(sequence.MASK32)
_STEP_STRIDE = tl.constexpr(sequence.STEP_STRIDE)
_BLOCK_SALT = tl.constexpr(sequence.BLOCK_SALT)
_VERIFICATION = tl.constexpr(ledger.VERIFICATION)
_PADDED = tl.constexpr(ledger.PADDED)
_DRAFTLESS = tl.constexpr(ledger.DRAFTLESS)
_NO_ALTERNATIVE = tl.constexpr(ledger.NO_ALTERNATIVE)
_sum = tl.standard._sum_combine
_max = tl.standard._elementwise_max
_min = tl.standard._elementwise_min
_argmax = tl.standard._argmax_combine_tie_break_left


@triton.jit
def _hash(h, a, b, c, TERMS: tl.constexpr):
    """mix32 over the running hash plus each of the first TERMS of (a, b, c) in turn."""
    for _ in tl.static_range(TERMS):
        h = (h + a) & _MASK32
        h = h ^ (h >> 16)
        h = (h * 0x7FEB352D) & _MASK32
        h = h ^ (h >> 15)
        h = (h * 0x846CA68B) & _MASK32
        h = h ^ (h >> 16)
        a = b
        b = c
    return h


@triton.jit
def _weights(x):
    """The block's maximum m and its integer weights round(exp(x - m) * 2^30).

    Integers, so that a sum is the same in any order. -inf weighs 0; +inf counts as the
    largest float32, beside which everything else weighs 0. The difference is taken in halves,
    so that no pair of float32 overflows.
    """
    usable = x > float("-inf")
    x = tl.where(usable, tl.minimum(x, 3.4028234663852886e38), -3.4028234663852886e38)
    m = tl.reduce(x, 0, _max)
    half = tl.maximum(x * 0.5 - m * 0.5, -1000.0)
    weights = (tl.exp(half * 2.0) * 1073741824.0 + 0.5).to(tl.int32)
    return m, tl.where(usable, weights, 0).to(tl.int64)


@triton.jit(do_not_specialize=["ledger_row"])
def decide_and_reduce_kernel(
    # [chunk_rows, 10 + K]: ledger.COLUMNS, draft ids
    ledger_ptr,
    ledger_row,
    # [num_reqs, num_blocks]
    block_max_ptr,
    # [num_reqs, num_blocks]: argmax at temperature 0, else the sum of weights
    block_stat_ptr,
    # [num_logits, V]
    logits_ptr,
    logits_stride,
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
    # [num_slots]
    slot_lane_ptr,
    # [num_slots]
    slot_version_ptr,
    # [num_lanes, 3]: key term, sample term, step
    lanes_ptr,
    # [num_versions, K + 5]: thresholds, mode, decision seed, token seed, script entries
    plans_ptr,
    # entries (key term or -1, offset, length) and the counts they point at
    scripts_ptr,
    vocab_size,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Decide each row's accepted length and reduce the one logits row that it needs.

    L = min(#{i : u < threshold_i}, drafted), with u keyed by (plan seed, request key, step), or
    what a script says for (request key, step);
    only then is a logits row chosen, start + L, so that one row per request is read whatever
    K is. drafted = the leading draft ids >= 0 of a row past its prefill (before it, drafts are
    placeholders whatever their id). On L < drafted the rejected draft is left out of the
    reduction. Rows of lane -1 accept nothing; rows without logits are only logged as nobody's.
    """
    req = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    ledger_ptr += (ledger_row + req) * (10 + K)
    start = tl.load(cu_num_logits_ptr + req).to(tl.int64)
    scheduled = tl.load(cu_num_logits_ptr + req + 1).to(tl.int64) - start - 1
    if scheduled < 0:
        if block == 0:
            tl.store(ledger_ptr, -1)
            tl.store(ledger_ptr + 6, -1)
        return

    slot = tl.load(idx_mapping_ptr + req).to(tl.int64)
    lane = tl.load(slot_lane_ptr + slot)
    version = tl.load(slot_version_ptr + slot)
    temperature = tl.load(temperature_ptr + slot)
    position = tl.load(pos_ptr + start).to(tl.int64) + 1
    draft_sampled_ptr += start + 1
    i = tl.arange(0, K_PAD)
    drafts = tl.load(draft_sampled_ptr + i, mask=i < tl.minimum(scheduled, K), other=-1)
    drafted = tl.reduce(tl.where(drafts < 0, i, K_PAD), 0, _min)
    if position <= tl.load(prefill_len_ptr + slot):
        drafted = drafted * 0

    step = tl.full((), 0, tl.int64)
    planned = tl.full((), 0, tl.int32)
    if lane >= 0:
        step = tl.load(lanes_ptr + lane * 3 + 2)
        if drafted > 0:
            key = tl.load(lanes_ptr + lane * 3)
            plan_ptr = plans_ptr + version * (K + 5)
            seed = tl.load(plan_ptr + K + 1)
            mode = tl.load(plan_ptr + K)
            if mode == 0:
                # The step moves inside its block of eight: three rounds of an affine map and
                # a shift mod 8. odd = 2 * bits + 1 and add = bits >> 2 need no mask before it.
                bits = _hash(seed + _BLOCK_SALT, (step >> 3) * _STEP_STRIDE, 0, 0, 1)
                inside = step & 7
                j = inside
                for _ in tl.static_range(3):
                    j = (j * (2 * bits + 1) + (bits >> 2)) & 7
                    j = j ^ (j >> 1)
                    bits = bits >> 5
                u = ((step - inside + j) * _STEP_STRIDE + key + seed) & _MASK32
            else:
                u = _hash(seed, key, step * _STEP_STRIDE, 0, 2)
            thresholds = tl.load(plan_ptr + i, mask=i < K, other=0)
            planned = tl.reduce((u < thresholds).to(tl.int32), 0, _sum)
            if mode == 2:
                planned = planned * 0
                entry_ptr = scripts_ptr + tl.load(plan_ptr + K + 3)
                for _ in range(tl.load(plan_ptr + K + 4).to(tl.int32)):
                    of = tl.load(entry_ptr)
                    offset = tl.load(entry_ptr + 1)
                    length = tl.load(entry_ptr + 2)
                    count = tl.load(scripts_ptr + offset + step % length).to(tl.int32)
                    planned = tl.where((of == -1) | (of == key), count, planned)
                    entry_ptr += 3
    accepted = tl.minimum(planned, drafted)

    if block == 0:
        flags = tl.where(scheduled > 0, _PADDED, _DRAFTLESS)
        tl.store(ledger_ptr, lane)
        tl.store(ledger_ptr + 1, step)
        tl.store(ledger_ptr + 2, position)
        tl.store(ledger_ptr + 3, scheduled)
        tl.store(ledger_ptr + 4, drafted)
        tl.store(ledger_ptr + 5, planned)
        tl.store(ledger_ptr + 6, accepted)
        tl.store(ledger_ptr + 7, version)
        tl.store(ledger_ptr + 8, tl.where(drafted > 0, _VERIFICATION, flags))
        tl.store(ledger_ptr + 10 + i, drafts, mask=i < K)

    rejected = tl.load(draft_sampled_ptr + accepted, mask=accepted < drafted, other=-1)
    inside_block = tl.arange(0, BLOCK)
    token_ids = block * BLOCK + inside_block
    x = tl.load(
        logits_ptr + (start + accepted) * logits_stride + token_ids,
        mask=(token_ids < vocab_size) & (token_ids != rejected),
        other=float("-inf"),
    ).to(tl.float32)
    x = tl.where(x == x, x, float("-inf"))
    out = req * tl.num_programs(1) + block
    if temperature > 0.0:
        m, weights = _weights(x)
        tl.store(block_max_ptr + out, m)
        tl.store(block_stat_ptr + out, tl.reduce(weights, 0, _sum))
    else:
        m, index = tl.reduce((x, inside_block), 0, _argmax)
        tl.store(block_max_ptr + out, m)
        tl.store(block_stat_ptr + out, block * BLOCK + index)


@triton.jit(do_not_specialize=["ledger_row"])
def emit_kernel(
    # [num_reqs, K + 1]
    sampled_ptr,
    # [num_reqs]
    num_sampled_ptr,
    # [chunk_rows, 10 + K]: ledger.COLUMNS, draft ids
    ledger_ptr,
    ledger_row,
    # [num_reqs, num_blocks]
    block_max_ptr,
    # [num_reqs, num_blocks]: argmax at temperature 0, else the sum of weights
    block_stat_ptr,
    # [num_logits, V]
    logits_ptr,
    logits_stride,
    # [num_reqs + 1]
    cu_num_logits_ptr,
    # [num_reqs]
    idx_mapping_ptr,
    # [num_slots]
    temperature_ptr,
    # [num_lanes, 3]: key term, sample term, step
    lanes_ptr,
    # [num_versions, K + 5]: thresholds, mode, decision seed, token seed, script entries
    plans_ptr,
    vocab_size,
    num_blocks,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS_PAD: tl.constexpr,
):
    """Choose the target's token, write the row's tokens, bump its step counter, log the token.

    Temperature 0: the lowest index of the maximum. Above: inverse CDF with one u per row keyed
    by (plan seed, request key, sample, the token's index in its sequence) in a domain of its
    own; t = floor(u * W / 2^32) picks the block whose share of the total weight W holds t, then
    the token inside it; other blocks are not read again. Nothing left to choose: the rejected
    draft, or 0. Only a verification step of an open lane bumps its counter.
    """
    req = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, K_PAD)
    sampled_ptr += req * (K + 1)
    ledger_ptr += (ledger_row + req) * (10 + K)
    accepted = tl.load(ledger_ptr + 6)
    tl.store(num_sampled_ptr + req, accepted + 1)
    if accepted < 0:
        tl.store(sampled_ptr + i, tl.full((K_PAD,), -1, tl.int64), mask=i <= K)
        return

    lane = tl.load(ledger_ptr)
    drafted = tl.load(ledger_ptr + 4)
    rejected = tl.load(ledger_ptr + 10 + accepted, mask=accepted < drafted, other=-1)
    blocks = tl.arange(0, BLOCKS_PAD)
    in_row = blocks < num_blocks
    block_max_ptr += req * num_blocks
    block_stat_ptr += req * num_blocks
    maxima = tl.load(block_max_ptr + blocks, mask=in_row, other=float("-inf"))
    top, top_block = tl.reduce((maxima, blocks), 0, _argmax)
    slot = tl.load(idx_mapping_ptr + req).to(tl.int64)
    if tl.load(temperature_ptr + slot) > 0.0:
        # Padding has weight 0; its maximum is lifted so that no -inf is subtracted.
        half = tl.maximum(tl.where(in_row, maxima, top) * 0.5 - top * 0.5, -1000.0)
        sums = tl.load(block_stat_ptr + blocks, mask=in_row, other=0)
        shares = (sums.to(tl.float64) * tl.exp(half * 2.0).to(tl.float64)).to(tl.int64)
        total = tl.reduce(shares, 0, _sum)
        found = total > 0

        key = tl.full((), 0, tl.int64)
        sample = tl.full((), 0, tl.int64)
        if lane >= 0:
            key = tl.load(lanes_ptr + lane * 3)
            sample = tl.load(lanes_ptr + lane * 3 + 1)
        seed = tl.load(plans_ptr + tl.load(ledger_ptr + 7) * (K + 5) + K + 2)
        index = tl.load(ledger_ptr + 2) + accepted
        u = _hash(seed, key, sample, index * _STEP_STRIDE, 3)
        # floor(u * total / 2^32), in two parts because the product has up to 80 bits.
        t = (u * (total >> 30) + ((u * (total & 0x3FFFFFFF)) >> 30)) >> 2
        ends = tl.associative_scan(shares, 0, _sum)
        chosen = tl.reduce((ends <= t).to(tl.int32), 0, _sum)
        t -= tl.reduce(tl.where(blocks < chosen, shares, 0), 0, _sum)
        share = tl.reduce(tl.where(blocks == chosen, shares, 0), 0, _sum)

        start = tl.load(cu_num_logits_ptr + req).to(tl.int64)
        token_ids = chosen * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(
            logits_ptr + (start + accepted) * logits_stride + token_ids,
            mask=(token_ids < vocab_size) & (token_ids != rejected),
            other=float("-inf"),
        ).to(tl.float32)
        _, weights = _weights(tl.where(x == x, x, float("-inf")))
        weight = tl.reduce(weights, 0, _sum)
        # t of `share` becomes t of `weight`; where the two are equal it stays exactly t.
        scale = weight.to(tl.float64) / tl.maximum(share, 1).to(tl.float64)
        t = tl.minimum((t.to(tl.float64) * scale).to(tl.int64), weight - 1)
        ends = tl.associative_scan(weights, 0, _sum)
        token = (chosen * BLOCK + tl.reduce((ends <= t).to(tl.int32), 0, _sum)).to(tl.int64)
    else:
        found = top > float("-inf")
        token = tl.load(block_stat_ptr + top_block)
    if found == 0:
        token = tl.where((rejected >= 0) & (rejected < vocab_size), rejected, 0)
        flags = tl.load(ledger_ptr + 8)
        tl.store(ledger_ptr + 8, flags | _NO_ALTERNATIVE)

    drafts = tl.load(ledger_ptr + 10 + i, mask=i < K, other=-1)
    tokens = tl.where(i < accepted, drafts, tl.where(i == accepted, token, -1))
    tl.store(sampled_ptr + i, tokens, mask=i <= K)
    tl.store(ledger_ptr + 9, token)
    if lane >= 0 and drafted > 0:
        tl.store(lanes_ptr + lane * 3 + 2, tl.load(ledger_ptr + 1) + 1)
