"""The request: the marker's arguments, refused in one line that says what to do."""

from __future__ import annotations

import inspect
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_synthaccept.acceptance import AcceptancePlan, AcceptanceRequest
from pytest_synthaccept.errors import AcceptanceError, SynthacceptError

WHERE = "tests/test_x.py::test_y: @pytest.mark.acceptance_rate"
NAMES = "rate, length, rates, script, trace, law, sampling, lossless, cost, seed"
ONE_OF = "give exactly one of rate, length, rates, script"
RATE = (
    "is not a number in 0..1; rate is accepted/drafted (50 % is 0.5);"
    " for tokens per verification step give length="
)
LENGTH = "length is tokens per verification step with the bonus; for accepted/drafted give rate="
RATES = "rates are unconditional, P(first i drafts accepted); give e.g. rates=[0.9, 0.5, 0.2]"
NOT_RATES = f"is not a list of one rate or more; {RATES}"
NOT_IN_RATES = f"is not a number in 0..1; {RATES}"
SEED = "is not an int in 0..4294967295; give e.g. seed=0"
NOT_YET = "is not available yet; available: rate, length, rates, script"
SCRIPT = (
    "a script is accepted counts per verification step, repeated; give e.g. script=[3, 0, 2], "
    "or {request key: [3, 0, 2]}"
)


def parse(*args: Any, **kwargs: Any) -> AcceptanceRequest:
    return AcceptanceRequest.parse(args, kwargs, where=WHERE)


def test_the_signature_is_the_marker_s() -> None:
    given_by_user = list(inspect.signature(AcceptanceRequest).parameters.values())
    assert ", ".join(p.name for p in given_by_user) == NAMES
    assert [p.name for p in given_by_user if p.kind is not p.KEYWORD_ONLY] == ["rate"]
    assert [p.default for p in given_by_user] == (
        [None] * 5 + ["geometric", "exact", False, "lean", 0]
    )


@pytest.mark.parametrize("rate", [0, 1, 0.0, 0.5, 1.0, Fraction(1, 4)])
def test_rate(rate: Any) -> None:
    request = parse(rate)
    assert request == parse(rate=rate)
    assert (type(request.rate), request.rate) == (float, float(rate))


def test_other_arguments() -> None:
    request = parse(length=2, law="constant", sampling="random", lossless=True, seed=9)
    expected = {"length": 2.0, "law": "constant", "sampling": "random", "lossless": True}
    assert request == AcceptanceRequest(**expected, seed=9)
    assert (type(request.length), request.cost) == (float, "lean")
    assert (request.rate, request.rates, request.script, request.trace) == (None,) * 4


def test_rates_become_a_tuple_of_floats() -> None:
    request = parse(None, rates=[1, Fraction(1, 2), 0], length=None)
    assert request.rates == (1.0, 0.5, 0.0)
    assert {type(rate) for rate in request.rates} == {float}
    assert isinstance(hash(request), int)


@pytest.mark.parametrize(
    ("args", "kwargs", "line"),
    [
        # the rate
        ((1.5,), {}, f"rate=1.5 {RATE}"),
        ((-0.1,), {}, f"rate=-0.1 {RATE}"),
        ((50,), {}, f"rate=50 {RATE}"),
        ((10**400,), {}, f"rate=1{'0' * 76}... {RATE}"),
        ((math.nan,), {}, f"rate=nan {RATE}"),
        ((math.inf,), {}, f"rate=inf {RATE}"),
        (("0.5",), {}, f"rate='0.5' {RATE}"),
        ((True,), {}, f"rate=True {RATE}"),
        ((Decimal("0.5"),), {}, f"rate=Decimal('0.5') {RATE}"),
        (([0.5],), {}, f"rate=[0.5] {RATE}"),
        # one of
        ((), {}, f"got nothing; {ONE_OF}"),
        ((None,), {"seed": 1}, f"got nothing; {ONE_OF}"),
        ((0.5,), {"length": 2}, f"got rate=0.5 and length=2; {ONE_OF}"),
        (
            (),
            {"rates": [0.5], "rate": 0.5, "script": [1]},
            f"got rate=0.5 and rates=[0.5] and script=[1]; {ONE_OF}",
        ),
        # the rates
        ((), {"rates": []}, f"rates=[] {NOT_RATES}"),
        ((), {"rates": 0.5}, f"rates=0.5 {NOT_RATES}"),
        ((), {"rates": "0.5"}, f"rates='0.5' {NOT_RATES}"),
        ((), {"rates": b"5"}, f"rates=b'5' {NOT_RATES}"),
        ((), {"rates": {0.5}}, f"rates={{0.5}} {NOT_RATES}"),
        ((), {"rates": {0: 0.5}}, f"rates={{0: 0.5}} {NOT_RATES}"),
        ((), {"rates": [1.5, 0.5]}, f"rates[0]=1.5 {NOT_IN_RATES}"),
        ((), {"rates": [0.5, -0.5]}, f"rates[1]=-0.5 {NOT_IN_RATES}"),
        ((), {"rates": [0.5, math.nan]}, f"rates[1]=nan {NOT_IN_RATES}"),
        ((), {"rates": [True, 0.5]}, f"rates[0]=True {NOT_IN_RATES}"),
        ((), {"rates": [0.5, "0.2"]}, f"rates[1]='0.2' {NOT_IN_RATES}"),
        ((), {"rates": [0.5, None]}, f"rates[1]=None {NOT_IN_RATES}"),
        (
            (),
            {"rates": [0.5, 0.2, 0.3]},
            f"rates[2]=0.3 is above rates[1]=0.2, rates must not rise; {RATES}",
        ),
        # the length, as far as it needs no K
        ((), {"length": 0.9}, f"length=0.9 is not a number of 1 or more; {LENGTH}"),
        ((), {"length": math.nan}, f"length=nan is not a number of 1 or more; {LENGTH}"),
        ((), {"length": math.inf}, f"length=inf is not a number of 1 or more; {LENGTH}"),
        ((), {"length": "2"}, f"length='2' is not a number of 1 or more; {LENGTH}"),
        ((), {"length": True}, f"length=True is not a number of 1 or more; {LENGTH}"),
        # the script, as far as it needs no K
        ((), {"script": []}, f"script=[] is not a list of one count or more; {SCRIPT}"),
        ((), {"script": 3}, f"script=3 is not a list of one count or more; {SCRIPT}"),
        ((), {"script": "30"}, f"script='30' is not a list of one count or more; {SCRIPT}"),
        ((), {"script": {3, 0}}, f"script={{0, 3}} is not a list of one count or more; {SCRIPT}"),
        ((), {"script": [3, -1]}, f"script[1]=-1 is not an int of 0 or more; {SCRIPT}"),
        ((), {"script": [True]}, f"script[0]=True is not an int of 0 or more; {SCRIPT}"),
        ((), {"script": [1.0]}, f"script[0]=1.0 is not an int of 0 or more; {SCRIPT}"),
        ((), {"script": {}}, f"script={{}} has no request; {SCRIPT}"),
        ((), {"script": {7: []}}, f"script[7]=[] is not a list of one count or more; {SCRIPT}"),
        ((), {"script": {7: [0, "1"]}}, f"script[7][1]='1' is not an int of 0 or more; {SCRIPT}"),
        (
            (),
            {"script": {-1: [0]}},
            f"script has the key -1, not an int in 0..4294967295; {SCRIPT}",
        ),
        (
            (),
            {"script": {"a": [0]}},
            f"script has the key 'a', not an int in 0..4294967295; {SCRIPT}",
        ),
        (
            (),
            {"script": [1], "law": "constant"},
            "got law='constant' with script, but a law is for rate or length only;"
            " drop law= or script=",
        ),
        (
            (),
            {"script": [1], "sampling": "random"},
            "got sampling='random' with script, which leaves nothing to sample; drop sampling=",
        ),
        (
            (),
            {"script": {7: [1]}, "sampling": "exact"},
            "got sampling='exact' with script, which leaves nothing to sample; drop sampling=",
        ),
        # the words
        (
            (0.5,),
            {"law": "linear"},
            "law='linear' is unknown; give one of geometric, constant, min_variance",
        ),
        (
            (0.5,),
            {"law": ["constant"]},
            "law=['constant'] is unknown; give one of geometric, constant, min_variance",
        ),
        ((0.5,), {"sampling": None}, "sampling=None is unknown; give one of exact, random"),
        ((0.5,), {"cost": "free"}, "cost='free' is unknown; give one of lean, faithful"),
        (
            (),
            {"rates": [0.5], "law": "geometric"},
            "got law='geometric' with rates, but a law is for rate or length only;"
            " drop law= or rates=",
        ),
        # the rest
        ((0.5,), {"seed": -1}, f"seed=-1 {SEED}"),
        ((0.5,), {"seed": 2**32}, f"seed=4294967296 {SEED}"),
        ((0.5,), {"seed": 1.0}, f"seed=1.0 {SEED}"),
        ((0.5,), {"seed": True}, f"seed=True {SEED}"),
        ((0.5,), {"seed": "1"}, f"seed='1' {SEED}"),
        ((0.5,), {"lossless": 1}, "lossless=1 is not a bool; give True or False"),
        ((0.5,), {"lossless": None}, "lossless=None is not a bool; give True or False"),
        ((0.5,), {"sed": 1}, f"unknown keyword 'sed'; give one of {NAMES}"),
        ((0.5,), {"where": "x"}, f"unknown keyword 'where'; give one of {NAMES}"),
        (
            (0.5, "geometric"),
            {},
            "got 2 positional arguments (0.5, 'geometric');"
            " give one, the rate, and the others by name",
        ),
        ((0.5,), {"rate": 0.6}, "got the rate twice, 0.5 and rate=0.6; give it once"),
        # not yet
        ((), {"trace": "counts.json"}, f"trace='counts.json' {NOT_YET}"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(
    args: tuple[Any, ...], kwargs: dict[str, Any], line: str
) -> None:
    with pytest.raises(AcceptanceError) as caught:
        parse(*args, **kwargs)
    assert str(caught.value) == f"{WHERE}: {line}"


def test_the_error_is_a_value_error_and_the_project_s_own() -> None:
    with pytest.raises(ValueError) as caught:
        AcceptanceRequest(2)
    assert isinstance(caught.value, SynthacceptError)
    assert str(caught.value) == f"AcceptanceRequest: rate=2 {RATE}"


def outcome(*args: Any, **kwargs: Any) -> tuple[AcceptanceRequest | None, str]:
    try:
        return parse(*args, **kwargs), ""
    except AcceptanceError as error:
        return None, str(error)


JUNK = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=200)


@given(
    st.lists(JUNK | st.lists(JUNK, max_size=3), max_size=2),
    st.dictionaries(st.sampled_from([*NAMES.split(", "), "k"]), JUNK | st.lists(JUNK, max_size=3)),
)
def test_any_arguments_make_a_request_or_one_line(args: list[Any], kwargs: dict[str, Any]) -> None:
    request, line = outcome(*args, **kwargs)
    if request:
        given = [request.rate, request.length, request.rates, request.script]
        assert given.count(None) == 3
    else:
        assert line.startswith(f"{WHERE}: ")
        assert len(line.splitlines()) == 1


# The plan, once K is known


def test_plan_of_a_rate() -> None:
    plan = parse(0.5, sampling="random", seed=3).plan(4, where=WHERE)
    assert plan == AcceptancePlan.from_rate(
        0.5, num_speculative_tokens=4, sampling="random", seed=3
    )


def test_plan_of_a_length() -> None:
    plan = parse(length=3.4, law="constant").plan(4, where=WHERE)
    assert plan == AcceptancePlan.from_length(3.4, num_speculative_tokens=4, law="constant")
    assert plan.length == pytest.approx(3.4)


def test_plan_of_rates() -> None:
    plan = parse(rates=[0.9, 0.5, 0.2], seed=5).plan(3, where=WHERE)
    assert plan == AcceptancePlan.from_rates([0.9, 0.5, 0.2], seed=5)


def test_plan_of_a_script() -> None:
    plan = parse(script=[3, 0, 2], seed=5).plan(3, where=WHERE)
    assert plan == AcceptancePlan.from_script([3, 0, 2], num_speculative_tokens=3, seed=5)
    assert plan.requested == "script=[3, 0, 2]"
    by_request = {7: [1], 2: (3, 0)}
    plan = parse(script=by_request).plan(3, where=WHERE)
    by_request[7] = [0]  # the marker's argument may be changed later
    assert plan.script == ((2, (3, 0)), (7, (1,)))


@given(st.integers(1, 8), st.floats(0, 1))
def test_a_length_of_1_and_of_k_plus_1_and_all_between_are_plans(k: int, part: float) -> None:
    for length in (1, 1 + part * k, k + 1):
        plan = parse(length=length, law="constant").plan(k, where=WHERE)
        assert plan.length == pytest.approx(length, abs=1e-7)


@pytest.mark.parametrize(
    ("kwargs", "k", "line"),
    [
        ({"length": 4.5}, 3, f"length=4.5 is not a number in 1..4 (K=3); {LENGTH}"),
        ({"length": 3}, 1, f"length=3.0 is not a number in 1..2 (K=1); {LENGTH}"),
        ({"script": [1, 4]}, 3, f"script[1]=4 is above K=3; {SCRIPT}"),
        ({"script": {7: [4]}}, 3, f"script[7][0]=4 is above K=3; {SCRIPT}"),
        ({"rates": [0.9, 0.5]}, 3, "rates=[0.9, 0.5] has 2 entries, K=3; give 3 rates"),
        ({"rates": [0.9, 0.5]}, 1, "rates=[0.9, 0.5] has 2 entries, K=1; give 1 rates"),
        (
            {"rate": 0.5},
            0,
            "num_speculative_tokens=0 is not an int of 1 or more;"
            " give the engine's draft tokens per step",
        ),
    ],
)
def test_what_needs_k_is_refused_by_the_plan(kwargs: dict[str, Any], k: int, line: str) -> None:
    request = parse(**kwargs)
    with pytest.raises(AcceptanceError) as caught:
        request.plan(k, where="set_acceptance")
    assert str(caught.value) == f"set_acceptance: {line}"


def test_the_trap_s_warning_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_synthaccept.acceptance.plan._warned", set())
    with pytest.warns(match=r"^set_acceptance: the geometric law at rate=0\.9 and K=3 "):
        parse(0.9).plan(3, where="set_acceptance")
