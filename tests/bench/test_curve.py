from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
from curves import RATES, K, make_curve
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_synthaccept.bench.curve import Curve
from pytest_synthaccept.errors import BenchmarkError, Inconclusive

# A step costs 14 + 3 * 3 = 23 ms, of which the baseline needs 10 for a token: it pays from 2.3
# tokens a step on, rate 0.433. Between 0.25 and 0.5 the line over rounded steps gives 0.435.
BREAK_EVEN = 0.435


def test_known_costs_come_back():
    curve = make_curve()
    assert curve.break_even.value == pytest.approx(BREAK_EVEN, abs=0.002)
    assert curve.break_even.low == curve.break_even.high  # no noise
    assert curve.draft_seconds.value == pytest.approx(3e-3)
    assert curve.verification_seconds.value == pytest.approx(14e-3)
    assert curve.step_seconds().value == pytest.approx(23e-3)
    assert curve.step_seconds(0.5).value == pytest.approx(23e-3)
    assert curve.baseline_step_seconds.value == pytest.approx(10e-3)
    assert curve.speedup(1.0).value == pytest.approx(120 * 10 / (30 * 23))
    for rate in RATES:
        assert curve.expected_speedup(rate) == pytest.approx(curve.speedup(rate).value)


@settings(deadline=None)
@given(st.floats(5e-3, 40e-3), st.floats(1e-4, 10e-3))
def test_break_even_is_where_the_speedup_is_one(verification, draft):
    curve = make_curve(verification=verification, draft=draft, rounds=1)
    x = curve.break_even.value
    if math.isinf(x):
        speedup = curve.speedup(0.0 if x < 0 else 1.0).value
        assert (speedup >= 1) == (x < 0)
    else:
        assert curve.speedup(x).value == pytest.approx(1, abs=1e-9)


def test_what_slows_a_whole_round_cancels():
    calm, stormy = make_curve(noise=0.01), make_curve(noise=0.01, common=0.5)
    assert stormy.break_even.value == pytest.approx(calm.break_even.value, abs=0.02)
    width = stormy.break_even.high - stormy.break_even.low
    assert width < 0.03


def test_a_drafter_that_was_not_timed():
    curve = make_curve()
    cells = tuple(replace(cell, draft_seconds=()) for cell in curve.cells)
    curve = replace(curve, cells=cells)
    assert math.isnan(curve.draft_seconds.value)
    assert curve.verification_seconds.value == pytest.approx(23e-3)
    assert curve.expected_speedup(0.5) == pytest.approx(curve.speedup(0.5).value)
    assert "a draft costs -, the rest of a step 23 ms" in str(curve)


def test_sentences_that_are_true():
    curve = make_curve(noise=0.02)
    curve.assert_break_even_below(0.6)
    curve.assert_speedup(at=1.0, at_least=1.5)
    curve.assert_speedup(at=0.9, at_least=1.3)  # between measured rates
    curve.assert_monotone()


TABLE = """\
rate  realised  length  steps  step time     speedup (95 %)  expected
   0     0.000    1.00    120      23 ms  0.43 (0.43..0.43)      0.43
0.25     0.250    1.75     69      23 ms  0.76 (0.76..0.76)      0.76
 0.5     0.500    2.50     48      23 ms  1.09 (1.09..1.09)      1.09
0.75     0.750    3.25     37      23 ms  1.41 (1.41..1.41)      1.41
   1     1.000    4.00     30      23 ms  1.74 (1.74..1.74)      1.74
none         -    1.00    120      10 ms               1.00      1.00
break-even rate 0.434 (0.434..0.434); a draft costs 3 ms, the rest of a step 14 ms; \
11 rounds of 120 tokens"""


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        (
            lambda c: c.assert_break_even_below(0.4),
            "break-even rate is 0.434 (0.434..0.434), not below 0.4",
        ),
        (
            lambda c: c.assert_speedup(at=0.75, at_least=1.5),
            "speedup at rate 0.75 is 1.41 (1.41..1.41), not at least 1.5",
        ),
    ],
)
def test_a_false_sentence_shows_the_curve(claim, says):
    with pytest.raises(AssertionError) as caught:
        claim(make_curve())
    assert str(caught.value) == f"{says}\n{TABLE}"


def test_a_rate_slower_than_the_one_before():
    curve = make_curve(noise=0.01)
    slow = replace(curve.cells[3], seconds=tuple(2 * s for s in curve.cells[3].seconds))
    curve = replace(curve, cells=(*curve.cells[:3], slow, curve.cells[4]))
    says = r"^speedup is not monotone: rate 0\.75 over rate 0\.5 is 0\.6\d \(0\.6\d\.\.0\.6\d\) "
    with pytest.raises(AssertionError, match=says + r"times as fast, not at least 0\.98\n"):
        curve.assert_monotone()


def test_an_estimate_below_is_not_enough():
    """The interval must be: its far end may be the truth."""
    curve = make_curve(noise=0.2)
    value, _, high = curve.break_even
    with pytest.raises(Inconclusive):
        curve.assert_break_even_below((value + high) / 2)
    curve.assert_break_even_below(high + 0.001)


ADVICE = "measure more rounds (rounds=) or more tokens (tokens=), on a machine with nothing else"


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        (
            lambda c: c.assert_break_even_below(c.break_even.value),
            r"break-even rate is 0\.\d{3} \(0\.\d{3}\.\.0\.\d{3}\)"
            r"; too noisy to tell whether it is below 0\.\d+",
        ),
        (
            lambda c: c.assert_speedup(at=0.5, at_least=c.speedup(0.5).value),
            r"speedup at rate 0\.5 is 1\.\d\d \([01]\.\d\d\.\.1\.\d\d\)"
            r"; too noisy to tell whether it is at least 1\.\d+",
        ),
    ],
)
def test_too_noisy_to_tell_is_neither_pass_nor_failure(claim, says):
    with pytest.raises(Inconclusive, match=rf"^{says}; ") as caught:
        claim(make_curve(noise=0.2))
    assert str(caught.value).endswith(ADVICE)


def test_too_noisy_to_tell_whether_it_is_monotone():
    curve = make_curve(rates=(0.5, 0.51), noise=0.2)
    says = r"^speedup is not monotone: rate 0\.51 over .*; too noisy to tell whether it is at least"
    with pytest.raises(Inconclusive, match=says):
        curve.assert_monotone()


def test_surely_false_wins_over_too_noisy():
    curve = make_curve(rates=(0.5, 0.51, 0.75), noise=0.1)
    slow = replace(curve.cells[2], seconds=tuple(9 * s for s in curve.cells[2].seconds))
    with pytest.raises(AssertionError, match=r"^speedup is not monotone: rate 0\.75 over"):
        replace(curve, cells=(*curve.cells[:2], slow)).assert_monotone()


CLAIMS = [
    lambda c: c.assert_break_even_below(0.9),
    lambda c: c.assert_speedup(at=0.7, at_least=0.1),
    lambda c: c.assert_monotone(),
]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_few_rounds_say_nothing(claim):
    with pytest.raises(
        Inconclusive,
        match=r" is too noisy to tell from 4 rounds; measure 5 at least \(rounds=\)$",
    ):
        claim(make_curve(rounds=4))
    claim(make_curve(rounds=5))


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_was_not_measured_never_passes(claim):
    with pytest.raises(Inconclusive, match=r" was not measured: xdist is active$"):
        claim(make_curve(not_measured="xdist is active"))


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (
            lambda c: c.assert_break_even_below(1.2),
            "assert_break_even_below: rate=1.2 is outside the measured rates "
            "0, 0.25, 0.5, 0.75, 1; give sweep(rates=...) one on either side of it",
        ),
        (
            lambda c: c.assert_speedup(at=-0.5, at_least=1),
            "assert_speedup: at=-0.5 is outside the measured rates 0, 0.25, 0.5, 0.75, 1; "
            "give sweep(rates=...) one on either side of it",
        ),
        (
            lambda c: c.step_seconds(0.3),
            "step_seconds: rate=0.3 was not measured; measured: 0, 0.25, 0.5, 0.75, 1",
        ),
    ],
)
def test_questions_beyond_the_measured_rates(ask, says):
    with pytest.raises(BenchmarkError) as caught:
        ask(make_curve())
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("verification", "value", "words"),
    [
        (1e-3, -math.inf, "below all rates measured"),
        (90e-3, math.inf, "above all rates measured"),
    ],
)
def test_speculation_that_always_or_never_pays(verification, value, words):
    curve = make_curve(verification=verification, draft=0.1e-3)
    assert curve.break_even == (value, value, value)
    assert f"break-even rate {words} ({words}..{words});" in str(curve)


def test_break_even_below_all_rates_is_below():
    make_curve(verification=1e-3, draft=0.1e-3).assert_break_even_below(0.0)


def test_break_even_above_all_rates_is_not():
    with pytest.raises(AssertionError, match=r"^break-even rate is above all rates measured "):
        make_curve(verification=90e-3).assert_break_even_below(1.0)


def test_there_and_back_through_json():
    curve = make_curve(noise=0.1, about={"device": "cpu"})
    assert Curve.from_dict(json.loads(json.dumps(curve.to_dict(), allow_nan=False))) == curve
    assert curve.num_speculative_tokens == K


def test_break_even_intervals_cover_the_truth():
    covered = 0
    for seed in range(60):
        curve = make_curve(noise=0.06, common=0.2, rounds=11, seed=random.Random(seed).random())
        low, high = curve.break_even[1:]
        covered += low <= BREAK_EVEN <= high
    assert covered >= 51, covered
