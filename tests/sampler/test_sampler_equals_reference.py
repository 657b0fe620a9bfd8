"""The kernels give the reference's answer, token for token, row of the ledger for row."""

from __future__ import annotations

import random

import pytest
import torch
from sampler_cases import (
    DEVICE,
    GEOMETRIC,
    Batch,
    Pair,
    Plan,
    Row,
    make_batch,
    make_logits,
    plan,
    scripted,
)

from pytest_synthaccept.run.ledger import NO_ALTERNATIVE, VERIFICATION
from pytest_synthaccept.sampler import launch, rejection_sample
from pytest_synthaccept.sampler import reference as plain

BLOCK = launch.INTERPRETED_BLOCK if DEVICE == "cpu" else launch.BLOCK
INF, NAN = float("inf"), float("nan")


def random_row(rng: random.Random, slot: int, k: int, vocab: int) -> Row:
    drafts = [rng.randrange(vocab) for _ in range(rng.choice((k, k, rng.randint(0, k))))]
    for n in range(len(drafts)):
        if rng.random() < 0.1:
            drafts[n] = rng.choice((-1, 0, vocab, vocab + 5))
    return Row(slot, drafts, pos=rng.choice((1, 4, 5, 10, 1000, 100_000)))


def random_plan(rng: random.Random, k: int) -> Plan:
    rates = sorted((rng.random() for _ in range(k)), reverse=True)
    drawn = plan(*rates, sampling=rng.choice(("exact", "random")), seed=rng.randrange(2**32))

    def counts() -> tuple[int, ...]:
        return tuple(rng.randint(0, k) for _ in range(rng.randint(1, 5)))

    some_keys = sorted(rng.sample(range(100), rng.randint(1, 99)))
    scripts = ((), ((-1, counts()),), tuple((key, counts()) for key in some_keys))
    return drawn._replace(script=rng.choice(scripts))


def spoil(rng: random.Random, logits: torch.Tensor) -> None:
    """NaN, infinities, ties and masks in some rows."""
    vocab = logits.shape[1]
    for row in logits:
        kind = rng.randrange(8)
        if kind == 0:
            row[torch.rand(vocab) < 0.5] = NAN
        elif kind == 1:
            row[:] = rng.choice((NAN, -INF, 0.0))
        elif kind == 2:
            row[rng.randrange(vocab)] = INF
        elif kind == 3:
            row[torch.rand(vocab) < 0.9] = -INF


@pytest.mark.parametrize("seed", range(24))
def test_random_histories(seed, small_blocks):
    """Everything at once: shapes, types, spoiled rows, lanes, plans, reuse of slots, chunks."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    k = (1, 2, 3, 4, 7, 16)[seed % 6]
    vocab = rng.choice((1, 2, 15, 16, 17, 45))
    num_slots = 8
    pair = Pair(k, num_slots, ledger_chunk_rows=rng.choice((1, 5, 100)))
    pair.begin(random_plan(rng, k))
    for slot in range(num_slots - 1):
        pair.open(slot, rng.choice((rng.randrange(2**32), rng.randrange(100))), slot % 3)
    for _ in range(3):
        slots = rng.sample(range(num_slots), rng.randint(0, num_slots))
        rows = [random_row(rng, slot, k, vocab) for slot in slots]
        logits = make_logits(
            sum(len(row.drafts) + 1 for row in rows),
            vocab,
            seed=seed,
            dtype=rng.choice((torch.float32, torch.bfloat16, torch.float16)),
            stride=vocab + rng.choice((0, 3)),
        )
        spoil(rng, logits)
        temperature = torch.tensor([rng.choice((0.0, 1.0, 0.7)) for _ in range(num_slots)])
        index = rng.choice((torch.int32, torch.int64))
        pair.sample(Batch(rows, logits, temperature, k, index))
        if rng.random() < 0.5:
            pair.set_plan(random_plan(rng, k))
        pair.mark(slots[::2])
        # A request resumes in another slot; a new one may take its place.
        old, new = rng.sample(range(num_slots), 2)
        pair.assign(new, pair.plain.slot_lane[old])
        pair.assign(old, -1)
        if rng.random() < 0.5:
            pair.open(old, rng.randrange(100))
    pair.drain()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("vocab", [1, 16, BLOCK, BLOCK + 1, 2 * BLOCK + 500])
def test_vocabularies_and_real_blocks(vocab, temperature):
    """One entry, whole blocks, one entry over a block, several blocks of the real size."""
    pair = Pair(3).begin(plan(*GEOMETRIC))
    rows = [Row(slot, [slot % vocab, vocab - 1, 0]) for slot in (3, 0)]
    for row in rows:
        pair.open(row.slot, key=row.slot)
    pair.sample(make_batch(rows, vocab, 3, temperature=temperature))
    assert len(pair.drain()) == 2


SPECIAL_ROWS = {
    # logits, rejected draft -> the token at temperature 0 (and the only one above), no alternative
    "all NaN": ([NAN] * 4, 2, 2, True),
    "all -inf": ([-INF] * 4, 3, 3, True),
    "nothing, draft outside": ([NAN, -INF, NAN, -INF], 4, 0, True),
    "only the draft": ([-INF, 1.0, NAN, -INF], 1, 1, True),
    "only the draft is not": ([-INF, 1.0, NAN, 2.0], 3, 1, False),
    "+inf wins": ([1.0, INF, 3e38, 2.0], 0, 1, False),
    "+inf rejected": ([-INF, INF, -INF, 2.0], 1, 3, False),
    "far apart": ([3e38, -3e38, -INF, NAN], 2, 0, False),
    "finfo.min as a mask": ([-3.4e38, -3.4e38, 0.0, -3.4e38], 0, 2, False),
    "all at finfo.min": ([-3.4028234663852886e38, NAN, -INF, -INF], 1, 0, False),
    "large and equal but one": ([3e38, 2.9e38, 1.0, 1.0], 0, 1, False),
    "NaN first": ([NAN, NAN, -5.0, NAN], 0, 2, False),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", SPECIAL_ROWS)
def test_special_rows(name, temperature):
    """A row's whole content is special and its first draft is rejected."""
    logits, rejected, token, none_left = SPECIAL_ROWS[name]
    pair = Pair(1).begin(plan(0.0))
    pair.open(0, key=1)
    batch = make_batch([Row(0, [rejected])], 4, 1, temperature=temperature)
    batch.logits[0] = torch.tensor(logits)
    sampled, num_sampled = pair.sample(batch)
    assert sampled.tolist() == [[token, -1]]
    assert num_sampled.tolist() == [1]
    (row,) = pair.drain()
    assert row[8] == VERIFICATION | (NO_ALTERNATIVE if none_left else 0)


def test_lowest_index_among_equal_maxima(small_blocks):
    """Also when the maxima stand in different blocks, and when the first is rejected."""
    pair = Pair(1).begin(plan(0.0))
    rows = [Row(0, [50]), Row(1, [7])]
    for row in rows:
        pair.open(row.slot, key=row.slot)
    batch = make_batch(rows, 60, 1)
    for at in (7, 9, 40):
        batch.logits[:, at] = 100.0
    sampled, _ = pair.sample(batch)
    assert sampled[:, 0].tolist() == [7, 9]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_logits_row_decides(temperature, small_blocks):
    """Row start + L alone: the others may hold anything."""
    pair = Pair(3).begin(plan(1.0, 1.0, 0.0))
    pair.open(0, key=0)
    batch = make_batch([Row(0, [1, 2, 3])], 40, 3, temperature=temperature)
    batch.logits[[0, 1, 3]] = NAN
    sampled, _ = pair.sample(batch)
    chosen = plain.choose_token(
        batch.logits[2].tolist(), temperature, 3, plain.token_u32(0, 0, 0, 13)
    )
    assert sampled.tolist() == [[1, 2, chosen, -1]]


def test_rows_without_logits_and_calls_without_rows():
    """Nothing is emitted, counted or logged."""
    pair = Pair(2).begin(plan(1.0, 1.0))
    pair.open(0, key=0)
    empty = make_batch([], 8, 2)
    sampled, num_sampled = pair.sample(empty)
    assert (sampled.shape, num_sampled.shape) == ((0, 3), (0,))

    arguments = list(make_batch([Row(0, [])], 8, 2).arguments("cpu"))
    arguments[0] = arguments[0][:0]
    arguments[3] = torch.zeros(2, dtype=torch.int32)
    want = plain.rejection_sample(pair.plain, *arguments)
    moved = [a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in arguments]
    got = rejection_sample(pair.device, *moved)
    assert [t.tolist() for t in got] == [t.tolist() for t in want] == [[[-1, -1, -1]], [0]]
    assert pair.drain() == []


MUTATIONS = {
    "planned one too many": lambda p, key, step: min(decide(p, key, step) + 1, len(p.thresholds)),
    "step off by one": lambda p, key, step: decide(p, key, step + 1),
    "key ignored": lambda p, key, step: decide(p, 0, step),
    "threshold inclusive": lambda p, key, step: decide(
        p._replace(thresholds=tuple(t + 1 for t in p.thresholds)), key, step
    ),
    "plain lattice": lambda p, key, step: sum(
        (step * 2_654_435_769 + key * 3_242_174_889) % 2**32 < t for t in p.thresholds
    ),
}
decide = plain.decide


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_wrong_decision_is_seen(name, monkeypatch):
    """The comparison bites: each wrong `decide` differs within 12 steps of one request.

    The first threshold is the very u of step 0, which only an inclusive comparison accepts.
    """
    from pytest_synthaccept.acceptance.sequence import exact_u32

    def history() -> None:
        first = exact_u32(0, 5, 0)
        pair = Pair(3).begin(plan(0.0, 0.0, 0.0)._replace(thresholds=(first, first // 2, 0)))
        pair.open(0, key=5)
        for _ in range(12):
            pair.sample(make_batch([Row(0, [1, 2, 3])], 16, 3))
        pair.drain()

    history()
    monkeypatch.setattr(plain, "decide", MUTATIONS[name])
    with pytest.raises(AssertionError):
        history()


SCRIPT_MUTATIONS = {
    "thresholds decide": lambda p, key, step: decide(p._replace(script=()), key, step),
    "any entry fits": lambda p, key, step: decide(p, p.script[0][0], step),
    "not repeated": lambda p, key, step: decide(p, key, min(step, 2)),
    "step off by one": lambda p, key, step: decide(p, key, step + 1),
    "a key without counts accepts": lambda p, key, step: decide(p, key, step) or int(key == 6),
}


@pytest.mark.parametrize("name", SCRIPT_MUTATIONS)
def test_a_planted_wrong_script_is_seen(name, monkeypatch):
    """Key 6 has no counts; the thresholds accept everything."""

    def history() -> None:
        pair = Pair(3).begin(scripted((3, (1,)), (5, (3, 0, 2)))._replace(thresholds=(2**32,) * 3))
        for slot, key in enumerate((5, 6)):
            pair.open(slot, key)
        for _ in range(5):
            pair.sample(make_batch([Row(0, [1, 2, 3]), Row(1, [1, 2, 3])], 16, 3))
        pair.drain()

    history()
    monkeypatch.setattr(plain, "decide", SCRIPT_MUTATIONS[name])
    with pytest.raises(AssertionError):
        history()
