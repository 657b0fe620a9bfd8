"""Which drafts are accepted, by which counter and plan version, and what the ledger says of it."""

from __future__ import annotations

import random

import pytest
import torch
from sampler_cases import (
    GEOMETRIC,
    Pair,
    Row,
    columns,
    make_batch,
    plan,
    scripted,
    tokens_of,
)

from pytest_synthaccept.acceptance.plan import AcceptancePlan
from pytest_synthaccept.acceptance.sequence import U32
from pytest_synthaccept.run.ledger import (
    COLUMNS,
    DRAFTLESS,
    NO_ALTERNATIVE,
    PADDED,
    VERIFICATION,
)

DRAFTS = [1, 2, 3]


def steps(pair: Pair, slot: int, count: int, **how) -> None:
    for _ in range(count):
        pair.sample(make_batch([Row(slot, DRAFTS)], 16, 3, **how))


@pytest.mark.parametrize("sampling", U32)
@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1])
def test_decisions_are_the_sequence_bit_for_bit(sampling, seed):
    """Against `acceptance.sequence` itself, at the corners of key and step.

    Half of the thresholds are the step's own u or u + 1: one bit off shows.
    """
    rng = random.Random(seed)
    corners = [
        (key, step)
        for key in (0, 1, 12_345, 2**31, 2**32 - 1)
        for step in (0, 7, 8, 1001, 2**24 + 5, 2**31 - 2)
    ]
    for key, step in corners[:: 1 if seed == 0 else 4]:
        u = U32[sampling](seed, key, step)
        wanted = [u, u + 1, rng.randrange(2**32), rng.randrange(2**32), 2**32, 0]
        thresholds = tuple(sorted(wanted, reverse=True))
        pair = Pair(6, num_slots=1)
        pair.begin(plan(*[0.0] * 6, sampling=sampling, seed=seed)._replace(thresholds=thresholds))
        lane = pair.open(0, key)
        pair.device.lanes[lane, 2].fill_(step)
        pair.plain.steps[lane] = step
        pair.sample(make_batch([Row(0, [0] * 6)], 4, 6, num_slots=1))
        ((planned, seen),) = columns(pair.drain(), "planned", "step")
        assert (planned, seen) == (sum(u < t for t in thresholds), step)


def test_a_script_for_every_request():
    pair = Pair(3).begin(scripted((-1, (3, 0, 2))))
    for slot, key in ((0, 4), (1, 2**32 - 1)):
        pair.open(slot, key)
    for _ in range(7):
        pair.sample(make_batch([Row(1, DRAFTS), Row(0, DRAFTS)], 16, 3))
    rows = columns(pair.drain(), "lane", "accepted")
    for lane in (0, 1):
        assert [a for of, a in rows if of == lane] == [3, 0, 2, 3, 0, 2, 3]


def test_a_script_by_request_key():
    """Keys 0, 1 and the largest have counts of their own; key 2 has none and accepts nothing."""
    last = 2**32 - 1
    pair = Pair(3).begin(scripted((0, (3, 0)), (1, (1,)), (last, (2, 2, 0))))
    for slot, key in enumerate((last, 2, 1, 0)):
        pair.open(slot, key)
    for _ in range(5):
        pair.sample(make_batch([Row(slot, DRAFTS) for slot in range(4)], 16, 3))
    rows = columns(pair.drain(), "lane", "accepted")
    counts = [[a for of, a in rows if of == lane] for lane in range(4)]
    assert counts == [[2, 2, 0, 2, 2], [0] * 5, [1] * 5, [3, 0, 3, 0, 3]]


def test_scripts_and_rates_by_turns():
    """A row goes by the plan its drafts were made under; scripts of one run do not mix."""
    pair = Pair(3).begin(scripted((-1, (1,))))
    for slot in (0, 1, 2):
        pair.open(slot, slot)
    pair.set_plan(plan(1.0, 1.0, 1.0))
    pair.mark([1])
    pair.set_plan(scripted((0, (3,)), (2, (2, 0))))
    pair.mark([2])
    for _ in range(3):
        pair.sample(make_batch([Row(slot, DRAFTS) for slot in range(3)], 16, 3))
    rows = columns(pair.drain(), "lane", "accepted", "version")
    counts = [[(a, version) for of, a, version in rows if of == lane] for lane in range(3)]
    assert counts == [[(1, 0)] * 3, [(3, 1)] * 3, [(2, 2), (0, 2), (2, 2)]]
    pair.begin(scripted((-1, (2,))))
    pair.open(0, 0)
    steps(pair, 0, 2)
    assert columns(pair.drain(), "accepted") == [(2,), (2,)]


@pytest.mark.parametrize("step", [0, 7, 2**24 + 5, 2**31 - 2])
def test_rows_of_many_plans_decide_as_the_plans_say(step):
    """One call over scripts, rates and keys without a script, at the corners of key and step."""
    shared = {"num_speculative_tokens": 3}
    plans = [
        AcceptancePlan.from_script([3, 0, 2, 1, 1], **shared),
        AcceptancePlan.from_rate(0.6, **shared),
        AcceptancePlan.from_script({2**32 - 1: [1, 3], 5: [2, 0, 0], 0: [3]}, **shared),
        AcceptancePlan.from_rate(0.4, sampling="random", seed=2**32 - 1, **shared),
        AcceptancePlan.from_script({key: [key % 4, 3 - key % 4] for key in range(40)}, **shared),
    ]
    keys = (0, 5, 39, 2**31, 2**32 - 1)
    pair = Pair(3, num_slots=25).begin(plans[0])
    for version, the_plan in enumerate(plans):
        if version:
            pair.set_plan(the_plan)
        for n, key in enumerate(keys):
            lane = pair.open(5 * version + n, key)
            pair.device.lanes[lane, 2].fill_(step)
            pair.plain.steps[lane] = step
    rows = [Row(slot, DRAFTS) for slot in range(25)]
    for _ in range(3):
        pair.sample(make_batch(rows, 16, 3, num_slots=25))
    planned = columns(pair.drain(), "version", "planned")
    assert planned == [
        (version, the_plan.decide(key, at))
        for at in range(step, step + 3)
        for version, the_plan in enumerate(plans)
        for key in keys
    ]


@pytest.mark.parametrize("sampling", U32)
def test_certain_and_impossible_positions(sampling):
    pair = Pair(3).begin(plan(1.0, 1.0, 0.0, sampling=sampling))
    pair.open(0, key=3)
    steps(pair, 0, 40)
    assert columns(pair.drain(), "accepted") == [(2,)] * 40


def test_accepted_is_planned_clipped_to_the_real_drafts():
    """A short row and a row whose tail is placeholders; no draft of the latter is excluded."""
    pair = Pair(3).begin(plan(1.0, 1.0, 1.0))
    rows = [Row(0, [5, 6]), Row(1, [5, -1, -1]), Row(2, [5, 6, 7]), Row(3, [5, -1, 7])]
    for row in rows:
        pair.open(row.slot, key=row.slot)
    batch = make_batch(rows, 16, 3)
    batch.logits[:] = 0.0  # token 0 wins everywhere
    sampled, num_sampled = pair.sample(batch)
    assert num_sampled.tolist() == [3, 2, 4, 2]
    assert sampled.tolist() == [[5, 6, 0, -1], [5, 0, -1, -1], [5, 6, 7, 0], [5, 0, -1, -1]]
    names = ("scheduled", "drafted", "planned", "accepted")
    assert columns(pair.drain(), *names) == [(2, 2, 3, 2), (3, 1, 3, 1), (3, 3, 3, 3), (3, 1, 3, 1)]


def test_rows_that_are_no_verification_steps():
    """Prefill rows with any placeholder, padded and draftless rows: flagged, counter untouched."""
    pair = Pair(2, prefill_len=5).begin(plan(1.0, 1.0))
    lane = pair.open(0, key=9)
    kinds = [
        (Row(0, [0, 0], pos=4), PADDED),  # vLLM 0.26 pads with token 0
        (Row(0, [-1, -1], pos=4), PADDED),
        (Row(0, [3, 3], pos=4), PADDED),
        (Row(0, [], pos=4), DRAFTLESS),
        (Row(0, [-1, 3], pos=5), PADDED),
        (Row(0, [], pos=5), DRAFTLESS),
        (Row(0, [0, 0], pos=5), VERIFICATION),
        (Row(0, [], pos=8), DRAFTLESS),
        (Row(0, [1], pos=9), VERIFICATION),
    ]
    for row, _ in kinds:
        pair.sample(make_batch([row], 8, 2))
    rows = pair.drain()
    names = ("flags", "step", "position", "accepted")
    assert columns(rows, *names) == [
        (PADDED, 0, 5, 0),
        (PADDED, 0, 5, 0),
        (PADDED, 0, 5, 0),
        (DRAFTLESS, 0, 5, 0),
        (PADDED, 0, 6, 0),
        (DRAFTLESS, 0, 6, 0),
        (VERIFICATION, 0, 6, 2),
        (DRAFTLESS, 1, 9, 0),
        (VERIFICATION, 1, 10, 1),
    ]
    at = len(COLUMNS)
    assert [row[at:] for row in rows][2:5] == [[3, 3], [-1, -1], [-1, 3]]
    assert rows[-1][at:] == [1, -1]
    assert pair.device.lanes[lane, 2].item() == 2


def test_nobodys_rows_accept_nothing_and_leave_no_trace():
    """A slot without a lane still gets its token, the rejected draft excluded."""
    pair = Pair(2).begin(plan(1.0, 1.0))
    pair.open(1, key=0)
    batch = make_batch([Row(0, [4, 5]), Row(1, [4, 5])], 8, 2)
    batch.logits[:] = torch.arange(8.0).flip(0)[:, None].T
    batch.logits[0, 4] = 100.0
    sampled, num_sampled = pair.sample(batch)
    assert num_sampled.tolist() == [1, 3]
    assert sampled[0].tolist() == [0, -1, -1]
    assert columns(pair.drain(), "lane") == [(0,)]


def test_a_resumed_lane_goes_on_counting_and_a_reused_slot_starts_anew():
    pair = Pair(3).begin(plan(*GEOMETRIC))
    lane = pair.open(2, key=7)
    steps(pair, 2, 3)
    pair.assign(2, -1)  # preempted
    pair.open(2, key=8)
    steps(pair, 2, 2)
    pair.assign(5, lane)  # resumed in another slot
    steps(pair, 5, 2)
    assert columns(pair.drain(), "lane", "step") == [
        *((0, n) for n in range(3)),
        *((1, n) for n in range(2)),
        *((0, n) for n in (3, 4)),
    ]


def test_samples_of_a_request_share_decisions_not_tokens():
    """n = 2: equal key, so equal counts; the draws differ in at least one of 20 tokens."""
    pair = Pair(3).begin(plan(*GEOMETRIC))
    for sample in (0, 1):
        pair.open(sample, key=4, sample=sample)
    for _ in range(20):
        rows = [Row(0, DRAFTS), Row(1, DRAFTS)]
        batch = make_batch(rows, 16, 3, temperature=1.0)
        batch.logits[4:] = batch.logits[:4]
        pair.sample(batch)
    rows = columns(pair.drain(), "accepted", "token")
    assert [a for a, _ in rows[::2]] == [a for a, _ in rows[1::2]]
    assert rows[::2] != rows[1::2]


def test_a_row_keeps_the_version_its_drafts_were_made_under():
    pair = Pair(3).begin(plan(0.0, 0.0, 0.0))
    pair.open(0, key=0)
    pair.open(1, key=1)
    both = [Row(0, DRAFTS), Row(1, DRAFTS)]

    def accepted() -> list[tuple[int, ...]]:
        pair.sample(make_batch(both, 16, 3))
        return columns(pair.drain(), "version", "accepted")

    pair.mark([0, 1])
    assert accepted() == [(0, 0), (0, 0)]
    pair.set_plan(plan(1.0, 1.0, 1.0))
    assert accepted() == [(0, 0), (0, 0)]  # not proposed again yet
    pair.mark([1])
    assert accepted() == [(0, 0), (1, 3)]
    pair.set_plan(plan(1.0, 0.0, 0.0))
    pair.mark([0, 1])
    assert accepted() == [(2, 1), (2, 1)]
    pair.begin(plan(1.0, 1.0, 0.0))
    pair.open(0, key=0)
    pair.open(1, key=1)
    assert accepted() == [(0, 2), (0, 2)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_order_company_and_chunks_do_not_matter(temperature, small_blocks):
    """Each request's tokens and ledger are the same alone, shuffled, in chunks, in other slots."""
    order = list(range(7))
    drafts = {slot: [slot, slot + 1, slot + 2] for slot in order}

    def run(calls: list[list[int]], shift: int = 0) -> dict[int, list[tuple[int, ...]]]:
        pair = Pair(3).begin(plan(*GEOMETRIC, seed=3))
        for key in order:
            pair.open((key + shift) % 7, key=100 + key)
        history: dict[int, list[tuple[int, ...]]] = {key: [] for key in order}
        for step in range(2):
            for keys in calls:
                rows = [Row((key + shift) % 7, drafts[key], pos=10 + 4 * step) for key in keys]
                batch = make_batch(rows, 40, 3, temperature=temperature)
                for n, key in enumerate(keys):
                    full = make_batch([rows[n]], 40, 3, seed=1000 * step + key)
                    batch.logits[4 * n : 4 * n + 4] = full.logits
                for key, tokens in zip(keys, tokens_of(pair.sample(batch)), strict=True):
                    history[key].append(tuple(tokens))
        lanes: dict[int, list[tuple[int, ...]]] = {key: [] for key in order}
        for row in pair.drain():
            lanes[row[0]].append(tuple(row))
        return {key: history[key] + lanes[key] for key in order}

    expected = run([order])
    assert any(len(entry) > 2 for entry in expected[0])
    assert run([[4, 1, 6, 0, 2, 5, 3]]) == expected
    assert run([order[:3], order[3:]]) == expected
    assert run([[key] for key in reversed(order)]) == expected
    assert run([order], shift=3) == expected
    assert run([[2, 5]])[2] == expected[2]


def test_every_column_of_the_ledger():
    """The kernels write columns by number; here each has a value of its own."""
    pair = Pair(4).begin(plan(0.0, 0.0, 0.0, 0.0))
    pair.open(3, key=0)
    pair.open(3, key=1)
    pair.set_plan(plan(1.0, 1.0, 1.0, 1.0))
    pair.set_plan(plan(1.0, 1.0, 1.0, 1.0))
    pair.mark([3])
    for _ in range(5):
        pair.sample(make_batch([Row(3, [20])], 40, 4))
    pair.drain()
    batch = make_batch([Row(3, [7, 8, -1], pos=11)], 40, 4)
    batch.logits[2, 30] = 100.0
    pair.sample(batch)
    (row,) = pair.drain()
    assert dict(zip(COLUMNS, row, strict=False)) == {
        "lane": 1,
        "step": 5,
        "position": 12,
        "scheduled": 3,
        "drafted": 2,
        "planned": 4,
        "accepted": 2,
        "version": 2,
        "flags": 1,
        "token": 30,
    }
    assert row[len(COLUMNS) :] == [7, 8, -1, -1]
    assert (VERIFICATION, PADDED, DRAFTLESS, NO_ALTERNATIVE) == (1, 2, 4, 8)
