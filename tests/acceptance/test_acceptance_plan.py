"""The plan: what it holds, what it decides, what it warns of and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_synthaccept.acceptance import AcceptancePlan, SynthacceptWarning
from pytest_synthaccept.acceptance.laws import LAWS, first_position_certain_above
from pytest_synthaccept.acceptance.sequence import MASK32, U32
from pytest_synthaccept.errors import AcceptanceError
from pytest_synthaccept.run.spec_run import SpecRun

U32S = st.integers(0, MASK32)
SAMPLINGS = st.sampled_from(sorted(U32))
RATES = st.lists(st.floats(0, 1), min_size=1, max_size=8).map(
    lambda rates: tuple(sorted(rates, reverse=True))
)


@pytest.fixture
def _nothing_warned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_synthaccept.acceptance.plan._warned", set())


# What it holds


def test_from_rate() -> None:
    plan = AcceptancePlan.from_rate(0.5, num_speculative_tokens=3, sampling="random", seed=7)
    assert plan.rates == pytest.approx((0.753853, 0.483050, 0.263097), abs=1e-6)
    assert plan.conditional_rates == pytest.approx((0.753853, 0.640775, 0.544659), abs=1e-6)
    assert plan.rate == pytest.approx(0.5, abs=1e-8)
    assert plan.length == pytest.approx(2.5, abs=1e-8)
    assert (plan.num_speculative_tokens, plan.sampling, plan.seed) == (3, "random", 7)
    assert plan.requested == "rate=0.5 (geometric)"


def test_from_length() -> None:
    plan = AcceptancePlan.from_length(2.6, num_speculative_tokens=3, law="min_variance")
    assert plan.rates == pytest.approx((1, 0.6, 0))
    assert plan.length == pytest.approx(2.6)
    assert plan.requested == "length=2.6 (min_variance)"


def test_from_rates() -> None:
    plan = AcceptancePlan.from_rates([0.9, 0.5, 0.2], num_speculative_tokens=3, seed=1)
    assert plan.rates == (0.9, 0.5, 0.2)
    assert plan.conditional_rates == pytest.approx((0.9, 0.555556, 0.4), abs=1e-6)
    assert plan.length == pytest.approx(2.6)
    assert plan.requested == "rates=[0.9, 0.5, 0.2]"
    assert plan == AcceptancePlan.from_rates((0.9, 0.5, 0.2), seed=1)


def test_describe_names_rate_length_and_positions_together() -> None:
    plan = AcceptancePlan.from_rate(0.5, num_speculative_tokens=3)
    assert plan.describe() == (
        "rate 0.5000, length 2.5000, per position 0.7539 0.4830 0.2631 (exact, seed 0)"
        "; asked for: rate=0.5 (geometric)"
    )
    assert AcceptancePlan((0.5,), "random", 3).describe() == (
        "rate 0.5000, length 1.5000, per position 0.5000 (random, seed 3)"
    )


def test_a_plan_is_a_value() -> None:
    plan = AcceptancePlan.from_rate(0.5, num_speculative_tokens=3)
    assert plan.thresholds == tuple(round(p * 2**32) for p in plan.rates)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert len({plan, AcceptancePlan.from_rate(0.5, num_speculative_tokens=3)}) == 1
    other = dataclasses.replace(plan, rates=(0.5, 0.0))
    assert other.thresholds == (2**31, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize("number", [1, Fraction(1, 2)])
def test_every_real_number_is_a_rate(number: Any) -> None:
    plan = AcceptancePlan.from_rate(number, num_speculative_tokens=2)
    assert plan.rate == pytest.approx(float(number), abs=1e-8)
    assert AcceptancePlan.from_rates([number]).rates == (float(number),)
    assert type(AcceptancePlan.from_rates([number]).rates[0]) is float


def test_a_registered_real_number_is_a_rate() -> None:
    """As numpy's scalars are: registered, not derived."""

    class Half:
        def __float__(self) -> float:
            return 0.5

    with pytest.raises(AcceptanceError):
        AcceptancePlan.from_rates([Half()])  # type: ignore[list-item]
    Real.register(Half)
    assert AcceptancePlan.from_rates([Half()]).rates == (0.5,)  # type: ignore[list-item]


# What it decides


@given(RATES, SAMPLINGS, U32S, U32S, U32S)
def test_decide_counts_the_rates_above_u(
    rates: tuple[float, ...], sampling: str, seed: int, key: int, step: int
) -> None:
    plan = AcceptancePlan(rates, sampling, seed)
    accepted = plan.decide(key, step)
    assert accepted == sum(U32[sampling](seed, key, step) < round(p * 2**32) for p in rates)
    assert 0 <= accepted <= plan.num_speculative_tokens
    assert accepted == AcceptancePlan(rates, sampling, seed).decide(key, step)


@given(RATES, SAMPLINGS)
def test_thresholds_are_ordered_and_hold_both_ends(rates: tuple[float, ...], sampling: str) -> None:
    thresholds = AcceptancePlan((1.0, *rates, 0.0), sampling).thresholds
    assert (thresholds[0], thresholds[-1]) == (2**32, 0)
    assert list(thresholds) == sorted(thresholds, reverse=True)
    assert all(isinstance(threshold, int) for threshold in thresholds)


@pytest.mark.parametrize("u32", [0, MASK32])
@pytest.mark.parametrize("sampling", sorted(U32))
def test_one_always_accepts_and_zero_never_at_either_end_of_u(
    monkeypatch: pytest.MonkeyPatch, sampling: str, u32: int
) -> None:
    monkeypatch.setitem(U32, sampling, lambda seed, key, step: u32)
    assert AcceptancePlan((1.0, 1.0, 0.0, 0.0), sampling).decide(0, 0) == 2
    assert AcceptancePlan((0.5, 0.0), sampling).decide(0, 0) == (u32 == 0)


@given(st.sampled_from(sorted(LAWS)), st.integers(1, 8), SAMPLINGS, U32S, U32S, U32S)
def test_rates_one_and_zero_are_absolute_under_every_law(
    law: str, k: int, sampling: str, seed: int, key: int, step: int
) -> None:
    all_, none = (
        AcceptancePlan.from_rate(
            rate, num_speculative_tokens=k, law=law, sampling=sampling, seed=seed
        )
        for rate in (1, 0)
    )
    assert all_.thresholds == (2**32,) * k
    assert none.thresholds == (0,) * k
    assert (all_.decide(key, step), none.decide(key, step)) == (k, 0)


@pytest.mark.parametrize("sampling", sorted(U32))
def test_another_seed_decides_otherwise(sampling: str) -> None:
    tables = {
        tuple(
            AcceptancePlan((0.75, 0.5, 0.25), sampling, seed).decide(key, step)
            for key in range(2)
            for step in range(32)
        )
        for seed in range(50)
    }
    assert len(tables) == 50


# What it warns of

CERTAIN = (
    "AcceptancePlan.from_rate: the geometric law at rate=0.9 and K=3 never rejects draft 1 (true"
    " from rate 0.821375 on), so the zero-accept path is not run; give"
    ' law="constant", or rates=[...] with a first rate below 1'
)


@pytest.mark.usefixtures("_nothing_warned_yet")
def test_a_certain_first_draft_is_warned_of_once_per_rate_and_k() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            AcceptancePlan.from_rate(0.9, num_speculative_tokens=3)
            AcceptancePlan.from_rate(0.9, num_speculative_tokens=4)
            AcceptancePlan.from_rate(0.95, num_speculative_tokens=3)
            AcceptancePlan.from_length(4.5, num_speculative_tokens=5)
    assert [warning.category for warning in caught] == [SynthacceptWarning] * 4
    assert [warning.filename for warning in caught] == [__file__] * 4
    assert str(caught[0].message) == CERTAIN
    assert "at rate=0.9 and K=4 " in str(caught[1].message)
    assert "at rate=0.95 and K=3 " in str(caught[2].message)
    assert str(caught[3].message).startswith("AcceptancePlan.from_length: ")
    assert "at rate=0.7 and K=5 " in str(caught[3].message)


@pytest.mark.usefixtures("_nothing_warned_yet")
def test_a_warning_turned_into_an_error_is_raised_every_time() -> None:
    for _ in range(2):
        with pytest.raises(SynthacceptWarning):
            AcceptancePlan.from_rate(0.9, num_speculative_tokens=3)


@pytest.mark.usefixtures("_nothing_warned_yet")
@pytest.mark.parametrize("k", [2, 3, 4, 5, 7, 10])
def test_the_warning_begins_at_the_law_s_limit(k: int) -> None:
    limit = first_position_certain_above("geometric", k)
    assert limit is not None
    with pytest.warns(SynthacceptWarning):
        AcceptancePlan.from_rate(limit, num_speculative_tokens=k)
    AcceptancePlan.from_rate(limit - 1e-6, num_speculative_tokens=k)  # a warning is an error here


@pytest.mark.usefixtures("_nothing_warned_yet")
def test_nothing_else_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AcceptancePlan.from_rate(1, num_speculative_tokens=3)
        AcceptancePlan.from_rate(0.99, num_speculative_tokens=1)
        AcceptancePlan.from_rate(0.9, num_speculative_tokens=3, law="constant")
        AcceptancePlan.from_rate(0.9, num_speculative_tokens=3, law="min_variance")
        AcceptancePlan.from_rates([1, 0.5])


# What it refuses: the whole line

RATE = "rate is accepted/drafted (50 % is 0.5); for tokens per verification step give length="
LENGTH = "length is tokens per verification step with the bonus; for accepted/drafted give rate="
RATE_LIST = "rates are unconditional, P(first i drafts accepted); give e.g. rates=[0.9, 0.5, 0.2]"
SCRIPT = (
    "a script is accepted counts per verification step, repeated; give e.g. script=[3, 0, 2], "
    "or {request key: [3, 0, 2]}"
)
PAIRS = "is not pairs (request key, counts); give the script to AcceptancePlan.from_script"
K_HINT = "is not an int of 1 or more; give the engine's draft tokens per step"
make: Any = AcceptancePlan  # its wrong arguments are the point


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (
            lambda: make.from_rate(1.5, num_speculative_tokens=3),
            f"AcceptancePlan.from_rate: rate=1.5 is not a number in 0..1; {RATE}",
        ),
        (
            lambda: make.from_rate(0.5, num_speculative_tokens=0),
            f"AcceptancePlan.from_rate: num_speculative_tokens=0 {K_HINT}",
        ),
        (
            lambda: make.from_rate(0.5, num_speculative_tokens=True),
            f"AcceptancePlan.from_rate: num_speculative_tokens=True {K_HINT}",
        ),
        (
            lambda: make.from_rate(0.5, num_speculative_tokens=3, law="linear"),
            "AcceptancePlan.from_rate: law='linear' is unknown;"
            " give one of geometric, constant, min_variance",
        ),
        (
            lambda: make.from_rate(0.5, num_speculative_tokens=3, sampling="even"),
            "AcceptancePlan.from_rate: sampling='even' is unknown; give one of exact, random",
        ),
        (
            lambda: make.from_rate(0.5, num_speculative_tokens=3, seed=1.0),
            "AcceptancePlan.from_rate: seed=1.0 is not an int in 0..4294967295; give e.g. seed=0",
        ),
        (
            lambda: make.from_length(4.5, num_speculative_tokens=3),
            f"AcceptancePlan.from_length: length=4.5 is not a number in 1..4 (K=3); {LENGTH}",
        ),
        (
            lambda: make.from_length(0.99, num_speculative_tokens=3),
            f"AcceptancePlan.from_length: length=0.99 is not a number in 1..4 (K=3); {LENGTH}",
        ),
        (
            lambda: make.from_rates([0.9, 0.5], num_speculative_tokens=3),
            "AcceptancePlan.from_rates: rates=[0.9, 0.5] has 2 entries, K=3; give 3 rates",
        ),
        (
            lambda: make.from_rates([0.5, 0.9]),
            "AcceptancePlan.from_rates: rates[1]=0.9 is above rates[0]=0.5, rates must not rise;"
            f" {RATE_LIST}",
        ),
        (
            lambda: make([]),
            f"AcceptancePlan: rates=[] is not a list of one rate or more; {RATE_LIST}",
        ),
        (
            lambda: make((0.5, math.nan)),
            f"AcceptancePlan: rates[1]=nan is not a number in 0..1; {RATE_LIST}",
        ),
        (
            lambda: make((0.5,), "even"),
            "AcceptancePlan: sampling='even' is unknown; give one of exact, random",
        ),
        (
            lambda: make((0.5,), "exact", 2**32),
            "AcceptancePlan: seed=4294967296 is not an int in 0..4294967295; give e.g. seed=0",
        ),
        (
            lambda: make((0.5,)).decide(-1, 0),
            "AcceptancePlan.decide: request=-1 is not an int in 0..4294967295; give e.g. request=0",
        ),
        (
            lambda: make((0.5,)).decide(0, 2**32),
            "AcceptancePlan.decide: step=4294967296 is not an int in 0..4294967295;"
            " give e.g. step=0",
        ),
        (
            lambda: make((0.5,)).decide("a", 0),
            "AcceptancePlan.decide: request='a' is not an int in 0..4294967295;"
            " give e.g. request=0",
        ),
        (
            lambda: make((0.5,)).decide(0, False),
            "AcceptancePlan.decide: step=False is not an int in 0..4294967295; give e.g. step=0",
        ),
        (
            lambda: make.from_script([3, 0, 4], num_speculative_tokens=3),
            f"AcceptancePlan.from_script: script[2]=4 is above K=3; {SCRIPT}",
        ),
        (
            lambda: make.from_script({0: [3], 7: [1, 4]}, num_speculative_tokens=3),
            f"AcceptancePlan.from_script: script[7][1]=4 is above K=3; {SCRIPT}",
        ),
        (
            lambda: make.from_script([True], num_speculative_tokens=3),
            f"AcceptancePlan.from_script: script[0]=True is not an int of 0 or more; {SCRIPT}",
        ),
        (
            lambda: make.from_script({True: [1]}, num_speculative_tokens=3),
            "AcceptancePlan.from_script: script has the key True, not an int in 0..4294967295;"
            f" {SCRIPT}",
        ),
        (
            lambda: make.from_script({2**32: [1]}, num_speculative_tokens=3),
            "AcceptancePlan.from_script: script has the key 4294967296, not an int in"
            f" 0..4294967295; {SCRIPT}",
        ),
        (
            lambda: make.from_script([1], num_speculative_tokens=0),
            f"AcceptancePlan.from_script: num_speculative_tokens=0 {K_HINT}",
        ),
        (
            lambda: make.from_script([1], num_speculative_tokens=3, seed=-1),
            "AcceptancePlan.from_script: seed=-1 is not an int in 0..4294967295; give e.g. seed=0",
        ),
        (
            lambda: make((0.5,), script=[1, 0]),
            f"AcceptancePlan: script=[1, 0] {PAIRS}",
        ),
        (
            lambda: make((0.5,), script=((-1, (0, 2)),)),
            f"AcceptancePlan: script[1]=2 is above K=1; {SCRIPT}",
        ),
        (
            lambda: make((0.5,), script=((4, ()),)),
            f"AcceptancePlan: script[4]=() is not a list of one count or more; {SCRIPT}",
        ),
        (
            lambda: make((0.5,), script=((-1, (0,)), (4, (1,)))),
            f"AcceptancePlan: script has the key -1, not an int in 0..4294967295; {SCRIPT}",
        ),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(build: Callable[[], object], line: str) -> None:
    with pytest.raises(AcceptanceError) as caught:
        build()
    assert str(caught.value) == line


def test_a_line_stays_one_short_line_for_any_repr() -> None:
    with pytest.raises(AcceptanceError) as caught:
        make(type("Long", (), {"__repr__": lambda self: "a\n  b" * 40})())
    shown = str(caught.value).removeprefix("AcceptancePlan: rates=").split(" is not")[0]
    assert shown == ("a b" * 40)[:77] + "..."


def test_the_room_imports_nothing_heavy() -> None:
    code = (
        "import sys, pytest_synthaccept.acceptance;"
        "print([m for m in ('torch', 'triton', 'vllm', 'numpy', 'pytest') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Scripts


def test_a_script_is_repeated_for_every_request() -> None:
    plan = AcceptancePlan.from_script([3, 0, 2], num_speculative_tokens=3)
    for key in (0, 7, 2**32 - 1):
        assert [plan.decide(key, step) for step in range(7)] == [3, 0, 2, 3, 0, 2, 3]
        assert plan.covers(key)
    assert plan.rates == (2 / 3, 2 / 3, 1 / 3)
    assert plan.describe() == "script=[3, 0, 2]: rate 0.5556, length 2.6667"


def test_a_script_by_request() -> None:
    plan = AcceptancePlan.from_script({7: [1], 0: [3, 0]}, num_speculative_tokens=3)
    assert [plan.decide(0, step) for step in range(3)] == [3, 0, 3]
    assert [plan.decide(7, step) for step in range(3)] == [1, 1, 1]
    assert [plan.decide(1, step) for step in range(3)] == [0, 0, 0]
    assert (plan.covers(0), plan.covers(7), plan.covers(1)) == (True, True, False)
    assert plan.requested == "script={0: [3, 0], 7: [1]}"
    assert plan.rates == (0.75, 0.25, 0.25)


def test_a_plan_without_a_script_covers_everything() -> None:
    assert AcceptancePlan((0.5,)).covers(12)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 2**32 - 1))
def test_a_script_decides_what_it_says(counts: list[int], step: int) -> None:
    plan = AcceptancePlan.from_script(counts, num_speculative_tokens=4)
    assert plan.decide(3, step) == counts[step % len(counts)]
    assert plan.rate == pytest.approx(sum(counts) / len(counts) / 4)


def test_a_script_of_a_long_mapping_is_described_in_one_short_line() -> None:
    by_key = {key: [key % 4] for key in range(100)}
    line = AcceptancePlan.from_script(by_key, num_speculative_tokens=3).describe()
    shown = str(by_key)[:77] + "..."
    assert line == f"script={shown}: rate 0.5000, length 2.5000"


def test_a_script_plan_is_a_value() -> None:
    """Pairs sorted by key; hashable; nothing of it is the caller's own list."""
    counts = [3, 0]
    plan = AcceptancePlan.from_script({7: [1], 2: counts}, num_speculative_tokens=3, seed=9)
    counts[0] = 1
    assert plan.script == ((2, (3, 0)), (7, (1,)))
    assert (plan.sampling, plan.seed) == ("exact", 9)
    assert AcceptancePlan.from_script((3, 0), num_speculative_tokens=3).script == ((-1, (3, 0)),)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert len({plan, AcceptancePlan(*dataclasses.astuple(plan))}) == 1
    assert dataclasses.replace(plan, seed=1).decide(2, 0) == 3
    assert AcceptancePlan((0.5,), "random", 3, "asked").requested == "asked"


def test_a_registered_integer_is_a_count_and_a_key() -> None:
    """As numpy's scalars are: registered, not derived."""

    class Two:
        def __int__(self) -> int:
            return 2

    two: Any = Two()
    with pytest.raises(AcceptanceError):
        AcceptancePlan.from_script([two], num_speculative_tokens=3)
    Integral.register(Two)
    plan = AcceptancePlan.from_script({two: [two]}, num_speculative_tokens=3)
    assert plan.script == ((2, (2,)),)
    assert {type(plan.script[0][0]), type(plan.script[0][1][0])} == {int}


@pytest.mark.parametrize("script", [[3, 0, 2], {7: [1], 0: [3, 0]}])
def test_a_script_survives_json(script: Any) -> None:
    """Alone, where lists become tuples again, and in a run."""
    plan = AcceptancePlan.from_script(script, num_speculative_tokens=3)
    row = json.loads(json.dumps(dataclasses.asdict(plan)))
    assert type(row["script"][0][1]) is list
    assert AcceptancePlan(**row) == plan
    run = SpecRun(plans=[plan, AcceptancePlan((0.5, 0.5, 0.0))])
    assert SpecRun.from_dict(json.loads(json.dumps(run.to_dict()))).plans == run.plans
