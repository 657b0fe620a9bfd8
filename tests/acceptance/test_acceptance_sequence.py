"""The decision sequence: exact stays close to the plan and reaches every history; random is random.

Each statistical test is run on a planted fault too, so that its bound is known to bite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_synthaccept.acceptance.laws import geometric
from pytest_synthaccept.acceptance.sequence import (
    KEY_STRIDE,
    MASK32,
    STEP_STRIDE,
    U32,
    exact_u32,
    mix32,
    permute_step,
    random_u32,
)

Draw = Callable[[int, int, int], int]
U32S = st.integers(0, MASK32)
PLANS = [geometric(rate, 3) for rate in (0.3, 0.5, 0.7)]
HALF = PLANS[1]
SEEDS = [0, 1, 42, MASK32]


def unpermuted(seed: int, key: int, step: int) -> int:
    return (step * STEP_STRIDE + key * KEY_STRIDE + mix32(seed)) & MASK32


def thresholds(rates: Iterable[float]) -> list[int]:
    return [round(p * 2**32) for p in rates]


def counts(draw: Draw, seed: int, key: int, steps: int, rates: Iterable[float]) -> list[int]:
    limits = thresholds(rates)
    return [sum(u < limit for limit in limits) for u in (draw(seed, key, s) for s in range(steps))]


# The exact sequence


@given(U32S, st.integers(0, MASK32 >> 3))
def test_steps_are_permuted_inside_their_block_of_eight(seed: int, block: int) -> None:
    steps = list(range(8 * block, 8 * block + 8))
    assert sorted(permute_step(step, seed) for step in steps) == steps


def test_blocks_are_permuted_differently() -> None:
    orders = {tuple(permute_step(s, 0) & 7 for s in range(8 * b, 8 * b + 8)) for b in range(100)}
    assert len(orders) > 50


def one_request_deviation(draw: Draw, seed: int, key: int, steps: int = 20_000) -> float:
    """The furthest that the accepted total at any position is from its plan after any step."""
    furthest = 0.0
    for p in HALF:
        limit, total = round(p * 2**32), 0
        for step in range(steps):
            total += draw(seed, key, step) < limit
            furthest = max(furthest, abs(total - p * (step + 1)))
    return furthest


@pytest.mark.parametrize("seed", SEEDS)
def test_one_request_stays_within_5_2_tokens(seed: int) -> None:
    assert one_request_deviation(exact_u32, seed, key=7) <= 5.2


def test_one_request_of_independent_draws_does_not() -> None:
    assert one_request_deviation(random_u32, 0, key=7) > 52


@given(U32S, U32S, st.floats(0, 1))
def test_any_request_at_any_rate_stays_close(seed: int, key: int, p: float) -> None:
    """The furthest seen in 200,000 searched (seed, key, p) was 5.7."""
    limit, total = round(p * 2**32), 0
    for step in range(400):
        total += exact_u32(seed, key, step) < limit
        assert abs(total - p * (step + 1)) <= 7


def batch_deviation(draw: Draw, seed: int, rates: tuple[float, ...], steps: int = 200) -> float:
    """The furthest of any batch of 4, 5, .. 256 requests x ``steps``, at any position."""
    limits, totals, furthest = thresholds(rates), [0] * len(rates), 0.0
    for key in range(256):
        draws = [draw(seed, key, step) for step in range(steps)]
        for i, p in enumerate(rates):
            totals[i] += sum(u < limits[i] for u in draws)
            if key >= 3:
                furthest = max(furthest, abs(totals[i] - p * (key + 1) * steps))
    return furthest


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("rates", PLANS)
def test_rectangular_batches_stay_within_9_tokens(seed: int, rates: tuple[float, ...]) -> None:
    assert batch_deviation(exact_u32, seed, rates) <= 9


def test_rectangular_batches_of_independent_draws_do_not() -> None:
    assert batch_deviation(random_u32, 0, HALF) > 90


def histories(draw: Draw, seed: int, key: int) -> int:
    accepted = counts(draw, seed, key, 2000, HALF)
    return len(set(zip(accepted, accepted[1:], accepted[2:], strict=False)))


@pytest.mark.parametrize("seed", SEEDS)
def test_all_64_histories_of_three_steps_occur(seed: int) -> None:
    assert histories(exact_u32, seed, key=0) == 64


def test_without_the_permutation_12_of_64_histories_occur() -> None:
    assert histories(unpermuted, 0, key=0) == 12


@given(U32S, U32S, U32S, st.integers(0, MASK32 >> 3))
def test_another_seed_gives_another_table(one: int, other: int, key: int, block: int) -> None:
    steps = range(8 * block, 8 * block + 8)
    table = [exact_u32(one, key, step) for step in steps]
    assert (table == [exact_u32(other, key, step) for step in steps]) == (one == other)


@pytest.mark.parametrize("draw", U32.values(), ids=U32.keys())
def test_seeds_next_to_each_other_decide_differently(draw: Draw) -> None:
    tables = {tuple(counts(draw, seed, 0, 64, HALF)) for seed in range(100)}
    assert len(tables) == 100


@given(st.sampled_from(sorted(U32)), U32S, U32S, U32S)
def test_draws_are_u32(sampling: str, seed: int, key: int, step: int) -> None:
    assert 0 <= U32[sampling](seed, key, step) <= MASK32


# Independent draws. The bound is |z| < 4: 1 in 16,000 of random tables would be outside, and
# these tables never change. N = 20,000; the planted faults show what that is enough to find.

N_KEYS, N_STEPS = 100, 200


def z_of_chi_square(observed: Counter[int], expected: dict[int, float]) -> float:
    """Wilson and Hilferty's normal score: above 0 for a worse fit than chance, below for better."""
    df = len(expected) - 1
    chi2 = sum((observed[cell] - e) ** 2 / e for cell, e in expected.items())
    return float(((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / (2 / (9 * df)) ** 0.5)


def shares(rates: tuple[float, ...]) -> list[float]:
    """P(accepted count = 0), .. P(accepted count = K)."""
    edges = (1.0, *rates, 0.0)
    return [p - q for p, q in pairwise(edges)]


def z_of_counts(draw: Draw, seed: int, rates: tuple[float, ...]) -> float:
    observed = Counter(c for key in range(N_KEYS) for c in counts(draw, seed, key, N_STEPS, HALF))
    return z_of_chi_square(
        observed, {c: N_KEYS * N_STEPS * share for c, share in enumerate(shares(rates))}
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_random_counts_fit_the_plan(seed: int) -> None:
    assert abs(z_of_counts(random_u32, seed, HALF)) < 4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_first_rate_0_02_off_is_found(seed: int) -> None:
    assert z_of_counts(random_u32, seed, (HALF[0] + 0.02, *HALF[1:])) > 4


def z_of_sixteenths(draw: Draw, seed: int) -> float:
    sixteenths = (draw(seed, k, s) >> 28 for k in range(N_KEYS) for s in range(N_STEPS))
    return z_of_chi_square(Counter(sixteenths), dict.fromkeys(range(16), N_KEYS * N_STEPS / 16))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_draws_are_as_uneven_as_chance(seed: int) -> None:
    assert abs(z_of_sixteenths(random_u32, seed)) < 4


def test_draws_too_even_for_chance_are_found() -> None:
    assert z_of_sixteenths(exact_u32, 0) < -4


def z_of_pairs(pairs: list[tuple[int, int]]) -> float:
    share = dict(enumerate(shares(HALF)))
    expected = {10 * a + b: len(pairs) * share[a] * share[b] for a in share for b in share}
    return z_of_chi_square(Counter(10 * a + b for a, b in pairs), expected)


def step_pairs(draw: Draw, seed: int) -> list[tuple[int, int]]:
    rows = [counts(draw, seed, key, 2 * N_STEPS, HALF) for key in range(N_KEYS)]
    return [pair for row in rows for pair in zip(row[::2], row[1::2], strict=True)]


def key_pairs(draw: Draw, seed: int) -> list[tuple[int, int]]:
    rows = [counts(draw, seed, key, N_STEPS, HALF) for key in range(2 * N_KEYS)]
    return [
        pair
        for even, odd in zip(rows[::2], rows[1::2], strict=True)
        for pair in zip(even, odd, strict=True)
    ]


def seed_pairs(draw: Draw, seed: int) -> list[tuple[int, int]]:
    return [
        pair
        for key in range(N_KEYS)
        for pair in zip(
            counts(draw, seed, key, N_STEPS, HALF),
            counts(draw, seed ^ 1, key, N_STEPS, HALF),
            strict=True,
        )
    ]


NEIGHBOURS = [step_pairs, key_pairs, seed_pairs]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_random_neighbours_are_independent(
    neighbours: Callable[[Draw, int], list[tuple[int, int]]], seed: int
) -> None:
    assert abs(z_of_pairs(neighbours(random_u32, seed))) < 4


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_a_repeat_in_1_of_25_pairs_is_found(
    neighbours: Callable[[Draw, int], list[tuple[int, int]]],
) -> None:
    pairs = neighbours(random_u32, 0)
    assert z_of_pairs([(a, a) if i % 25 == 0 else (a, b) for i, (a, b) in enumerate(pairs)]) > 4


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_the_lattice_s_neighbours_are_found_dependent(
    neighbours: Callable[[Draw, int], list[tuple[int, int]]],
) -> None:
    assert z_of_pairs(neighbours(exact_u32, 0)) > 4
