"""The laws against published constants, and what must hold for every rate and K."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_synthaccept.acceptance.laws import (
    LAWS,
    conditional,
    constant,
    first_position_certain_above,
    geometric,
    geometric_params,
    length_from_rate,
    min_variance,
    rate_from_length,
    unconditional,
)

RATES = st.floats(0, 1)
KS = st.integers(1, 12)
LAW_NAMES = st.sampled_from(sorted(LAWS))


def mean(rates: tuple[float, ...]) -> float:
    return math.fsum(rates) / len(rates)


def variance(rates: tuple[float, ...]) -> float:
    """Of the accepted count L: E[L] = sum p_i and E[L^2] = sum (2i - 1) p_i."""
    first = math.fsum(rates)
    return math.fsum((2 * i - 1) * p for i, p in enumerate(rates, 1)) - first**2


@pytest.mark.parametrize(
    ("k", "rate", "a", "g", "rates"),
    [
        (1, 0.7, 0.7, 0.85, (0.7,)),
        (2, 0.5, 0.645657, 0.85, (0.6457, 0.3543)),
        (2, 0.9, 0.981372, 0.85, (0.9814, 0.8186)),
        (2, 0.95, 1, 0.9, (1, 0.9)),
        (3, 0.2, 0.412382, 0.85, (0.4124, 0.1446, 0.0431)),
        (3, 0.5, 0.753853, 0.85, (0.7539, 0.4830, 0.2631)),
        (3, 0.7, 0.915708, 0.85, (0.9157, 0.7127, 0.4715)),
        (3, 0.8, 0.985763, 0.85, (0.9858, 0.8260, 0.5883)),
        (3, 0.9, 1, 0.920371, (1, 0.9204, 0.7796)),
        (4, 0.6, 0.922291, 0.85, (0.9223, 0.7230, 0.4818, 0.2729)),
        (4, 0.8, 1, 0.905616, (1, 0.9056, 0.7427, 0.5517)),
        (5, 0.6, 0.994548, 0.85, (0.9945, 0.8408, 0.6041, 0.3690, 0.1916)),
        (5, 0.7, 1, 0.899157, (1, 0.8992, 0.7270, 0.5285, 0.3454)),
        (7, 0.5, 1, 0.878568, (1, 0.8786, 0.6782, 0.4599, 0.2740, 0.1434, 0.0660)),
    ],
)
def test_geometric_constants(
    k: int, rate: float, a: float, g: float, rates: tuple[float, ...]
) -> None:
    assert geometric_params(rate, k) == pytest.approx((a, g), abs=1e-6)
    assert geometric(rate, k) == pytest.approx(rates, abs=1e-4)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7, 10])
def test_geometric_as_upstream_tests_it(k: int) -> None:
    for rate in (i / 100 for i in range(100)):
        a, _ = geometric_params(rate, k)
        assert a <= 1
        assert abs(mean(geometric(rate, k)) - rate) < 1e-8


@given(RATES, KS)
def test_geometric_is_its_formula(rate: float, k: int) -> None:
    a, g = geometric_params(rate, k)
    assert 0 <= a <= 1
    assert 0.85 <= g <= 1
    assert g == 0.85 or a == 1
    formula = [a**i * g ** (i * (i - 1) / 2) for i in range(1, k + 1)]
    assert geometric(rate, k) == pytest.approx(formula, abs=1e-12)


@pytest.mark.parametrize(
    ("law", "k", "length", "rates", "tolerance"),
    [
        ("constant", 4, 3.4, (0.80581, 0.64933, 0.52323, 0.42163), 1e-5),
        ("min_variance", 3, 2.6, (1, 0.6, 0), 1e-12),
        ("min_variance", 7, 3.78, (1, 1, 0.78, 0, 0, 0, 0), 1e-12),
    ],
)
def test_constants_by_length(
    law: str, k: int, length: float, rates: tuple[float, ...], tolerance: float
) -> None:
    assert LAWS[law](rate_from_length(length, k), k) == pytest.approx(rates, abs=tolerance)


@pytest.mark.parametrize(
    ("law", "expected"), [("geometric", 2.63), ("constant", 6.16), ("min_variance", 0.17)]
)
def test_same_mean_very_different_spread(law: str, expected: float) -> None:
    assert variance(LAWS[law](rate_from_length(3.78, 7), 7)) == pytest.approx(expected, abs=5e-3)


def test_rates_given_directly() -> None:
    assert conditional((0.9, 0.5, 0.2)) == pytest.approx((0.9, 0.555556, 0.4), abs=1e-6)
    assert length_from_rate(mean((0.9, 0.5, 0.2)), 3) == pytest.approx(2.6)


def test_conditional_after_a_rate_of_zero_is_zero() -> None:
    assert conditional((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)
    assert conditional((0.0,)) == (0.0,)


@pytest.mark.parametrize(
    ("k", "limit"),
    [(2, 0.925), (3, 0.821375), (4, 0.710319), (5, 0.607630), (7, 0.451207), (10, 0.317255)],
)
def test_geometric_trap(k: int, limit: float) -> None:
    certain_above = first_position_certain_above("geometric", k)
    assert certain_above == pytest.approx(limit, abs=1e-6)
    assert geometric(limit + 1e-5, k)[0] == 1
    assert geometric(limit - 1e-5, k)[0] < 1 - 1e-6


def test_trap_of_the_other_laws() -> None:
    assert first_position_certain_above("geometric", 1) is None
    assert first_position_certain_above("constant", 3) is None
    assert first_position_certain_above("min_variance", 1) is None
    assert first_position_certain_above("min_variance", 4) == 0.25
    with pytest.raises(KeyError):
        first_position_certain_above("linear", 3)


@given(LAW_NAMES, RATES, KS)
@example("geometric", 5e-324, 12)
@example("geometric", math.nextafter(1, 0), 12)
@example("constant", math.nextafter(1, 0), 12)
@example("min_variance", math.nextafter(1, 0), 12)
@example("min_variance", 1 / 3, 3)
def test_every_law_is_a_plan_with_the_mean_asked_for(law: str, rate: float, k: int) -> None:
    rates = LAWS[law](rate, k)
    assert len(rates) == k
    assert all(0 <= p <= 1 for p in rates)
    assert list(rates) == sorted(rates, reverse=True)
    assert abs(mean(rates) - rate) < 1e-8


@given(LAW_NAMES, KS)
def test_ends_are_exact(law: str, k: int) -> None:
    assert LAWS[law](1, k) == (1.0,) * k
    assert LAWS[law](0, k) == (0.0,) * k


@given(RATES, KS)
def test_constant_has_one_conditional_rate(rate: float, k: int) -> None:
    rates = constant(rate, k)
    assert rates == pytest.approx([rates[0] ** i for i in range(1, k + 1)], abs=1e-12)


@given(RATES, KS)
def test_min_variance_has_one_uncertain_position(rate: float, k: int) -> None:
    rates = min_variance(rate, k)
    assert sum(0 < p < 1 for p in rates) <= 1
    assert all(variance(rates) <= variance(LAWS[law](rate, k)) + 1e-7 for law in LAWS)


@pytest.mark.parametrize(("drafts", "k"), [(15, 22), (13, 23), (15, 26)])
def test_min_variance_of_a_whole_number_of_drafts_is_whole(drafts: int, k: int) -> None:
    assert int(drafts / k * k) == drafts - 1  # what a float makes of it
    assert min_variance(drafts / k, k) == (1.0,) * drafts + (0.0,) * (k - drafts)


@given(RATES, KS)
def test_rate_and_length_are_each_other_s_inverse(rate: float, k: int) -> None:
    length = length_from_rate(rate, k)
    assert 1 <= length <= k + 1
    assert rate_from_length(length, k) == pytest.approx(rate, abs=1e-12)


@given(LAW_NAMES, RATES, KS)
def test_conditional_and_unconditional_are_each_other_s_inverse(
    law: str, rate: float, k: int
) -> None:
    rates = LAWS[law](rate, k)
    assert all(0 <= c <= 1 for c in conditional(rates))
    assert unconditional(conditional(rates)) == pytest.approx(rates, abs=1e-12)
