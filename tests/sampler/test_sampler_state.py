"""The state: growth, the ledger's chunks, what it refuses, and that it never waits."""

from __future__ import annotations

import warnings
from contextlib import contextmanager

import pytest
import torch
from sampler_cases import (
    DEVICE,
    GEOMETRIC,
    Pair,
    Plan,
    Row,
    columns,
    make_batch,
    plan,
    scripted,
)
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_synthaccept.errors import AcceptanceError, EngineError
from pytest_synthaccept.sampler import Oracle, SamplerState, launch, rejection_sample

# Operators that only enqueue work on the device, whatever it is.
ENQUEUED = {
    "copy_",
    "detach",
    "empty",
    "fill_",
    "full",
    "index_fill_",
    "new_empty",
    "new_zeros",
    "select",
    "slice",
    "zero_",
    "_to_copy",  # int32 -> int64 on the same device
    # Of a list of the host, before it is copied to the device.
    "lift_fresh",
    "is_pinned",
    "_pin_memory",
}
# Operators whose result the host must wait for; all others of the oracle are arithmetic.
WAITED_FOR = {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "unique"}


def set_sync_debug_mode(mode: str) -> None:
    if DEVICE == "cuda":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "a prototype feature", says torch
            torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def recorded_operators():
    names: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    set_sync_debug_mode("error")
    try:
        with Recorder():
            yield names
    finally:
        set_sync_debug_mode("default")


class NoKernel:
    """Takes a launch and does nothing."""

    def __getitem__(self, grid):
        return lambda *args, **kwargs: None


@pytest.fixture
def no_kernels(monkeypatch):
    """The interpreter's own handling of tensors would be recorded too."""
    if DEVICE == "cpu":
        monkeypatch.setattr(launch, "verify_kernel", NoKernel())


def make_state(k: int = 3, **options) -> SamplerState:
    prefill_len = torch.zeros(16, dtype=torch.int32, device=DEVICE)
    sizes = {"num_slots": 16, "num_speculative_tokens": k}
    return SamplerState(**sizes, prefill_len=prefill_len, device=DEVICE, **options)


def test_a_call_allocates_its_two_outputs_and_waits_for_nothing(no_kernels):
    state = make_state()
    state.begin(plan(*GEOMETRIC))
    arguments = make_batch([Row(0, [1, 2, 3]), Row(1, [1])], 40, 3).arguments(DEVICE)
    rejection_sample(state, *arguments)
    scratch = [t.data_ptr() for t in state.scratch(2, 1)]
    with recorded_operators() as names:
        rejection_sample(state, *arguments)
    assert names == ["new_empty", "new_empty"]
    assert [t.data_ptr() for t in state.scratch(1, 1)] == scratch


def test_nothing_but_drain_waits(no_kernels):
    """A whole run with growth of every buffer."""
    state = make_state(ledger_chunk_rows=2)
    slots = torch.arange(2, dtype=torch.int32, device=DEVICE)
    arguments = make_batch([Row(0, [1, 2, 3]), Row(1, [1])], 40, 3).arguments(DEVICE)
    with recorded_operators() as names:
        state.begin(plan(*GEOMETRIC))
        for version in range(1, 20):
            assert state.set_plan(plan(*GEOMETRIC, seed=version)) == version
        for key in range(600):
            state.assign(key % 16, state.open_lane(key, 0))
        for _ in range(3):
            rejection_sample(state, *arguments)
            state.mark_proposed(slots)
    assert set(names) <= ENQUEUED


def test_scripts_wait_for_nothing(no_kernels):
    """Runs of many versions, with growth of the scripts' buffer."""
    state = make_state()
    arguments = make_batch([Row(0, [1, 2, 3])], 40, 3).arguments(DEVICE)
    with recorded_operators() as names:
        for _ in range(2):
            state.begin(scripted((-1, (3, 0, 2))))
            state.assign(0, state.open_lane(0, 0))
            for keys in range(1, 20):
                state.set_plan(scripted(*((key, (key % 4,)) for key in range(keys))))
                rejection_sample(state, *arguments)
    assert set(names) <= ENQUEUED
    assert len(state.scripts) > 64


def test_the_oracle_waits_for_nothing():
    """Nor under scripts, whose directories differ in width from row to row."""
    state = make_state()
    oracle = Oracle(state, num_slots=16, max_model_len=40, vocab_size=50)
    drafts = torch.tensor([[1, 2, 3], [4, 5, 6]], device=DEVICE)
    slots = torch.arange(2, device=DEVICE)
    total_len = torch.full((16,), 10, device=DEVICE)
    with recorded_operators() as names:
        state.begin(scripted((-1, (3, 0, 2))))
        for slot in (0, 1):
            state.assign(slot, state.open_lane(slot, 0))
            oracle.expect(slot, [7] * 40)
            state.set_plan(scripted((0, (1,)), (1, (2, 0))))
        oracle.rewrite(drafts, slots, total_len)
    assert not WAITED_FOR.intersection(names)
    assert (drafts == 7).sum(1).tolist() == [3, 2]


def test_the_recorder_sees_a_wait():
    state = make_state()
    with pytest.raises((AssertionError, RuntimeError)), recorded_operators() as names:  # noqa: PT012
        state.open_lane(state.lanes[0, 0].item(), 0)
        assert set(names) <= ENQUEUED


def test_lanes_and_versions_survive_growth():
    """700 lanes and 30 versions, far over the first buffers; old ones keep counters and plans."""
    pair = Pair(3).begin(plan(1.0, 0.0, 0.0))
    pair.open(0, key=2**40 + 5)
    pair.sample(make_batch([Row(0, [1, 2, 3])], 16, 3))
    for key in range(700):
        pair.open(1, key=key)
    for version in range(30):
        pair.set_plan(plan(*GEOMETRIC, seed=version))
    pair.mark([1])
    pair.sample(make_batch([Row(0, [1, 2, 3]), Row(1, [1, 2, 3])], 16, 3))
    seen = columns(pair.drain(), "lane", "step", "version")
    assert seen == [(0, 0, 0), (0, 1, 0), (700, 0, 30)]


def test_scripts_survive_growth():
    """One that fits, one far over the first buffer, one more: the first still decides its row."""
    pair = Pair(3).begin(scripted((-1, (2, 1))))
    pair.open(0, key=5)
    pair.set_plan(scripted(*((key, (key % 4, 3)) for key in range(200))))
    pair.open(1, key=199)
    pair.set_plan(scripted((-1, (0,) * 500 + (1,))))
    lane = pair.open(2, key=0)
    pair.device.lanes[lane, 2].fill_(499)
    pair.plain.steps[lane] = 499
    for _ in range(2):
        pair.sample(make_batch([Row(slot, [1, 2, 3]) for slot in range(3)], 16, 3))
    assert columns(pair.drain(), "accepted") == [(2,), (3,), (0,), (1,), (3,), (1,)]


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 7, 1000])
def test_the_ledger_grows_by_chunks_and_keeps_call_order(chunk_rows):
    """Calls of 1 to 5 rows, some larger than a chunk, rows of lane -1 in between."""
    pair = Pair(1, ledger_chunk_rows=chunk_rows).begin(plan(0.5))
    for slot in range(4):
        pair.open(slot, key=slot)
    for size in (1, 5, 2, 3, 5, 1, 4):
        pair.sample(make_batch([Row(slot, [1]) for slot in range(size)], 4, 1))
    assert len(pair.drain()) == 1 + 4 + 2 + 3 + 4 + 1 + 4
    assert pair.drain() == []
    pair.sample(make_batch([Row(3, [1])], 4, 1))
    assert columns(pair.drain(), "lane", "step") == [(3, 3)]


def test_begin_forgets_the_last_run():
    pair = Pair(1).begin(plan(1.0))
    pair.open(0, key=1)
    pair.sample(make_batch([Row(0, [1])], 4, 1))
    pair.begin(plan(1.0))
    pair.sample(make_batch([Row(0, [1])], 4, 1))  # the slot is nobody's now
    assert pair.open(0, key=1) == 0
    pair.sample(make_batch([Row(0, [1])], 4, 1))
    assert columns(pair.drain(), "lane", "step", "version") == [(0, 0, 0)]


def test_before_any_plan_nothing_is_accepted_or_logged():
    """As in an engine's warm-up."""
    state = make_state(1)
    _, num_sampled = rejection_sample(state, *make_batch([Row(0, [1])], 4, 1).arguments(DEVICE))
    assert num_sampled.tolist() == [1]
    assert state.drain() == []


def test_prefill_len_may_be_a_function():
    """An engine that swaps buffers: the one current at the call counts, not the first."""
    current = [torch.full((16,), 100, dtype=torch.int32, device=DEVICE)]
    sizes = {"num_slots": 16, "num_speculative_tokens": 1}
    state = SamplerState(**sizes, prefill_len=lambda: current[0], device=DEVICE)
    state.begin(plan(1.0))
    state.assign(0, state.open_lane(0, 0))
    arguments = make_batch([Row(0, [1], pos=10)], 4, 1).arguments(DEVICE)
    rejection_sample(state, *arguments)
    current[0] = torch.zeros_like(current[0])
    rejection_sample(state, *arguments)
    assert columns(state.drain(), "accepted") == [(0,), (1,)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (plan(0.5, 0.5), "plan with 2 positions: the engine drafts 3 tokens; make the plan"),
        (Plan((0, 0, 0), "lossy"), "sampling='lossy': allowed are exact, random"),
    ],
)
def test_refused_plans(bad, message):
    state = make_state(3)
    state.begin(plan(*GEOMETRIC))
    for call in (state.begin, state.set_plan):
        with pytest.raises(AcceptanceError, match=message):
            call(bad)
    assert state.set_plan(plan(*GEOMETRIC)) == 1


def test_refused_calls():
    state = make_state(3)
    batch = make_batch([Row(0, [1])], 4, 2)
    with pytest.raises(EngineError, match="the engine verifies 2 drafts, this sampler was made"):
        rejection_sample(state, *batch.arguments(DEVICE))
    batch.k = 3
    arguments = list(batch.arguments(DEVICE))
    arguments[0] = arguments[0].T.contiguous().T
    with pytest.raises(EngineError, match=r"stride \(1, 2\); needed: \[num_logits, V\]"):
        rejection_sample(state, *arguments)
    with pytest.raises(IndexError, match="lane 0 is not open; open lanes: 0"):
        state.assign(0, 0)


def test_what_a_later_vllm_adds_is_taken():
    """Positional and keyword arguments after K change nothing."""
    pair = Pair(1).begin(plan(0.5))
    pair.open(0, key=0)
    batch = make_batch([Row(0, [1])], 4, 1)
    batch.extra = {"use_fp64": True, "watermark_key": None}
    want = pair.sample(batch)
    fresh = Pair(1).begin(plan(0.5))
    fresh.open(0, key=0)
    got = rejection_sample(fresh.device, *batch.arguments(DEVICE), None, unheard_of=1)
    assert [t.tolist() for t in got] == [t.tolist() for t in want]


def test_vllms_chunks_come_as_slices():
    """Views with offsets and strides: logits, positions, mappings of a larger batch."""
    rows = [Row(slot, [slot, 1]) for slot in range(4)]
    pair = Pair(2).begin(plan(0.9, 0.4))
    for row in rows:
        pair.open(row.slot, key=row.slot)
    whole = make_batch(rows, 9, 2, stride=11)
    full = [t.tolist() for t in pair.sample(whole)]
    again = Pair(2).begin(plan(0.9, 0.4))
    for row in rows:
        again.open(row.slot, key=row.slot)
    logits, _, ids, bounds, pos, slots, *rest = whole.arguments(DEVICE)
    parts = []
    for first, last in ((0, 1), (1, 4)):
        low, high = 3 * first, 3 * last
        cut = (logits[low:high], None, ids[low:high], bounds[first : last + 1] - low)
        more = (pos.repeat_interleave(2)[::2][low:high], slots[first:last])
        parts.append(rejection_sample(again.device, *cut, *more, *rest))
    assert [torch.cat(column).tolist() for column in zip(*parts, strict=True)] == full
    assert again.device.drain() == pair.drain()
