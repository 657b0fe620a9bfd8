"""The kernel of the synthetic rejection sampler.

All integer arithmetic of the decision is done in int64 and masked to 32 bits: well defined on
a GPU and in Triton's interpreter alike, and equal bit for bit to `acceptance.sequence`.
Index spaces: `req` is a row of this call, `slot` the engine's persistent request slot, `lane`
one (request key, sample) of the current run, -1 for nobody's.

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
_HIGHEST = tl.constexpr(3.4028234663852886e38)
_LOWEST = tl.constexpr(-3.4028234663852886e38)
_NOWHERE = tl.constexpr(2147483647)
_sum = tl.standard._sum_combine
_max = tl.standard._elementwise_max
_min = tl.standard._elementwise_min


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
def decide(
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
    K: tl.constexpr,
    K_PAD: tl.constexpr,
):
    """What a row holds, and the accepted length that the plan asks for; pointers as the kernels'.

    planned = #{i : u < threshold_i}, with u keyed by (plan seed, request key, step), or what a
    script says for (request key, step). drafted = the leading draft ids >= 0 of a row past its
    prefill (before it, drafts are placeholders whatever their id). A row without real drafts, or
    of lane -1, is planned to accept nothing.

    Returns (drafts [K_PAD], drafted, planned, position, lane, version, key term, sample term,
    step).
    """
    lane = tl.load(slots_ptr + slot * 2)
    version = tl.load(slots_ptr + slot * 2 + 1)
    prefill_len = tl.load(prefill_len_ptr + slot)
    position = tl.load(pos_ptr + start).to(tl.int64) + 1
    i = tl.arange(0, K_PAD)
    drafts = tl.load(draft_sampled_ptr + i, mask=i < tl.minimum(scheduled, K), other=-1)
    drafted = tl.reduce(tl.where(drafts < 0, i, K_PAD), 0, _min)
    if position <= prefill_len:
        drafted = drafted * 0

    key = tl.full((), 0, tl.int64)
    sample = tl.full((), 0, tl.int64)
    step = tl.full((), 0, tl.int64)
    planned = tl.full((), 0, tl.int32)
    plan_ptr = plans_ptr + version * (K + 5)
    if lane >= 0:
        key = tl.load(lanes_ptr + lane * 3)
        sample = tl.load(lanes_ptr + lane * 3 + 1)
        step = tl.load(lanes_ptr + lane * 3 + 2)
        if drafted > 0:
            thresholds = tl.load(plan_ptr + i, mask=i < K, other=0)
            mode = tl.load(plan_ptr + K)
            seed = tl.load(plan_ptr + K + 1)
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
    return drafts, drafted, planned, position, lane, version, key, sample, step


@triton.jit
def log(
    # [10 + K]
    ledger_ptr,
    lanes_ptr,
    flags,
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
    K: tl.constexpr,
    K_PAD: tl.constexpr,
):
    """Write a row's ledger row; a verification step of an open lane bumps its step counter."""
    kind = tl.where(drafted > 0, _VERIFICATION, tl.where(scheduled > 0, _PADDED, _DRAFTLESS))
    if lane >= 0 and drafted > 0:
        tl.store(lanes_ptr + lane * 3 + 2, step + 1)
    tl.store(ledger_ptr, lane)
    tl.store(ledger_ptr + 1, step)
    tl.store(ledger_ptr + 2, position)
    tl.store(ledger_ptr + 3, scheduled)
    tl.store(ledger_ptr + 4, drafted)
    tl.store(ledger_ptr + 5, planned)
    tl.store(ledger_ptr + 6, accepted)
    tl.store(ledger_ptr + 7, version)
    tl.store(ledger_ptr + 8, kind | flags)
    tl.store(ledger_ptr + 9, token)
    i = tl.arange(0, K_PAD)
    tl.store(ledger_ptr + 10 + i, drafts, mask=i < K)


@triton.jit
def _weight(x, m):
    """exp(x - m) for m >= x, m finite; 1 for +inf.

    The difference is taken in halves, so that no pair of float32 overflows.
    """
    half = tl.minimum(tl.maximum(x * 0.5 - m * 0.5, -1000.0), 0.0)
    return tl.exp2(half * 2.8853900817779268)


# All but the logits: their alignment decides how wide a load may be.
_ANY_ALIGNMENT = [
    *("sampled_ptr", "num_sampled_ptr", "ledger_ptr", "block_max_ptr", "block_stat_ptr"),
    *("done_ptr", "cu_num_logits_ptr", "idx_mapping_ptr", "temperature_ptr", "draft_sampled_ptr"),
    *("pos_ptr", "prefill_len_ptr", "slots_ptr", "lanes_ptr", "plans_ptr", "scripts_ptr"),
]


@triton.jit(do_not_specialize=["ledger_row"], do_not_specialize_on_alignment=_ANY_ALIGNMENT)
def verify_kernel(
    # [num_reqs, K + 1]
    sampled_ptr,
    # [num_reqs]
    num_sampled_ptr,
    # [chunk_rows, 10 + K]: ledger.COLUMNS, draft ids
    ledger_ptr,
    # [num_reqs, num_blocks]
    block_max_ptr,
    # [num_reqs, num_blocks]: argmax at temperature 0, else the sum of weights as float bits
    block_stat_ptr,
    # [num_reqs]: programs of a row that are done; 0 between calls
    done_ptr,
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
    # [num_versions, K + 5]: thresholds, mode, decision seed, token seed, script entries
    plans_ptr,
    # entries (key term or -1, offset, length) and the counts they point at
    scripts_ptr,
    # [num_logits, V]
    logits_ptr,
    logits_stride,
    # the call's first row in the ledger
    ledger_row,
    V: tl.constexpr,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    WARPS: tl.constexpr,
    TILES: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    BLOCKS_PAD: tl.constexpr,
):
    """Decide each row's accepted length, and choose the target's token after the accepted drafts.

    Grid: (num_reqs, programs of a row).

    Every program of a row finds its L = min(planned, drafted) for itself; only then is a logits
    row chosen, start + L, so that one row per request is read whatever K is. On L < drafted the
    rejected draft is left out. Rows without logits are only logged as nobody's.

    The programs share the row out by tiles of WARPS blocks and leave maximum and statistic of
    each block; the last of them to be done chooses the token, writes the row's tokens, bumps its
    step counter and logs it. Temperature 0: the lowest index of the maximum. Above: inverse CDF
    with one u per row keyed by (plan seed, request key, sample, the token's index in its
    sequence) in a domain of its own; t = floor(u * W / 2^32) picks the block whose share of the
    total weight W holds t, then the token inside it; other blocks are not read again. Nothing
    left to choose: the rejected draft, or 0.
    """
    req = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    start = tl.load(cu_num_logits_ptr + req).to(tl.int64)
    scheduled = tl.load(cu_num_logits_ptr + req + 1).to(tl.int64) - start - 1
    slot = tl.load(idx_mapping_ptr + req).to(tl.int64)
    i = tl.arange(0, K_PAD)
    sampled_ptr += req * (K + 1)
    ledger_ptr += (ledger_row + req) * (10 + K)
    if scheduled < 0:
        if part == 0:
            tl.store(sampled_ptr + i, tl.full((K_PAD,), -1, tl.int64), mask=i <= K)
            tl.store(num_sampled_ptr + req, 0)
            tl.store(ledger_ptr, -1)
        return

    temperature = tl.load(temperature_ptr + slot)
    draft_sampled_ptr += start + 1
    drafts, drafted, planned, position, lane, version, key, sample, step = decide(
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
    rejected = rejected.to(tl.int32)

    logits_ptr += (start + accepted) * logits_stride
    block_max_ptr += req * NUM_BLOCKS
    block_stat_ptr += req * NUM_BLOCKS
    # A warp reads a block of the row, WIDTH entries at a time, and reduces it alone.
    blocks = tl.arange(0, WARPS)[:, None, None]
    entries = tl.arange(0, BLOCK // WIDTH)[None, :, None] * WIDTH
    entries += blocks * BLOCK + tl.arange(0, WIDTH)[None, None, :]
    for tile in tl.range(part, TILES, tl.num_programs(1)):
        first = tile * (WARPS * BLOCK)
        x = tl.load(
            logits_ptr + first + entries,
            mask=entries < V - first,
            other=float("-inf"),
            eviction_policy="evict_first",  # read once
        )
        x = tl.maximum(x.to(tl.float32), float("-inf"))  # of NaN: -inf
        if (rejected >= first) & (rejected < first + WARPS * BLOCK):
            x = tl.where(entries == rejected - first, float("-inf"), x)
        m = tl.reduce(tl.reduce(x, 1, _max, keep_dims=True), 2, _max, keep_dims=True)
        if temperature > 0.0:
            m = tl.minimum(tl.maximum(m, _LOWEST), _HIGHEST)
            stat = tl.reduce(_weight(x, m), 1, _sum, keep_dims=True)
            stat = tl.reduce(stat, 2, _sum, keep_dims=True).to(tl.int32, bitcast=True)
        else:
            stat = tl.reduce(tl.where(x == m, entries, _NOWHERE), 1, _min, keep_dims=True)
            stat = tl.reduce(stat, 2, _min, keep_dims=True) + first
        mine = tile * WARPS + blocks
        tl.store(block_max_ptr + mine, m, mask=mine < NUM_BLOCKS)
        tl.store(block_stat_ptr + mine, stat, mask=mine < NUM_BLOCKS)

    # The last program of a row to get here sees what all of them stored.
    tl.debug_barrier()
    if tl.atomic_add(done_ptr + req, 1, sem="acq_rel") < tl.num_programs(1) - 1:
        return
    tl.store(done_ptr + req, 0)
    row = tl.arange(0, BLOCKS_PAD)
    real = row < NUM_BLOCKS
    maxima = tl.load(block_max_ptr + row, mask=real, other=float("-inf"), cache_modifier=".cg")
    stats = tl.load(block_stat_ptr + row, mask=real, other=0, cache_modifier=".cg")
    if temperature > 0.0:
        u = _hash(
            tl.load(plans_ptr + version * (K + 5) + K + 2),
            key,
            sample,
            (position + accepted) * _STEP_STRIDE,
            3,
        )
        top = tl.reduce(maxima, 0, _max)
        sums = stats.to(tl.float32, bitcast=True) * _weight(maxima, top)
        shares = (sums.to(tl.float64) * 1073741824.0).to(tl.int64)
        total = tl.reduce(shares, 0, _sum)
        found = total > 0
        # floor(u * total / 2^32), in two parts because the product has up to 80 bits.
        t = (u * (total >> 30) + ((u * (total & 0x3FFFFFFF)) >> 30)) >> 2
        ends = tl.associative_scan(shares, 0, _sum)
        chosen = tl.reduce((ends <= t).to(tl.int32), 0, _sum)
        chosen = tl.minimum(chosen, NUM_BLOCKS - 1)  # where there is nothing to choose
        peak = tl.load(block_max_ptr + chosen, cache_modifier=".cg")
        ids = chosen * BLOCK + tl.arange(0, BLOCK)
        z = tl.load(logits_ptr + ids, mask=ids < V, other=float("-inf"))
        t -= tl.reduce(tl.where(row < chosen, shares, 0), 0, _sum)
        # From the scale of the row's maximum to that of the block's.
        scale = 1.0 / tl.maximum(_weight(peak, top), 1e-30)
        z = tl.maximum(z.to(tl.float32), float("-inf"))
        z = tl.where(ids == rejected, float("-inf"), z)
        weights = (_weight(z, peak) * 1073741824.0 + 0.5).to(tl.int32).to(tl.int64)
        t = (t.to(tl.float64) * scale.to(tl.float64)).to(tl.int64)
        t = tl.minimum(t, tl.reduce(weights, 0, _sum) - 1)
        ends = tl.associative_scan(weights, 0, _sum)
        token = (chosen * BLOCK + tl.reduce((ends <= t).to(tl.int32), 0, _sum)).to(tl.int64)
    else:
        top = tl.reduce(maxima, 0, _max)
        found = top > float("-inf")
        token = tl.reduce(tl.where(maxima == top, stats, _NOWHERE), 0, _min).to(tl.int64)
    flags = 0
    if found == 0:
        flags = _NO_ALTERNATIVE
        token = tl.where((rejected >= 0) & (rejected < V), rejected, 0).to(tl.int64)
    tokens = tl.where(i < accepted, drafts, tl.where(i == accepted, token, -1))
    tl.store(sampled_ptr + i, tokens, mask=i <= K)
    tl.store(num_sampled_ptr + req, accepted + 1)
    log(
        ledger_ptr,
        lanes_ptr,
        flags,
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
