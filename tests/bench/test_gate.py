from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_synthaccept.bench import baseline_file
from pytest_synthaccept.bench.bootstrap import Interval
from pytest_synthaccept.bench.expression import DEFAULT, Condition, parse
from pytest_synthaccept.bench.gate import Entry, judge
from pytest_synthaccept.errors import BenchmarkError
from pytest_synthaccept.run import Work

NAME = "test_speed.py::test_sweep"


def interval(value, width=0.0):
    return Interval(value, value - width, value + width)


ENTRY = Entry(
    same={"tokens": 120, "plan_version": 1},
    clock={"device": "NVIDIA H200"},
    work={"rate 0.5": Work(48, 48, 144, 0), "baseline": Work(120, 120, 0, 0)},
    step_seconds=interval(20e-3, 1e-3),
    break_even=interval(0.4, 0.01),
    speedup={0.5: interval(1.2, 0.05), 1.0: interval(2.0, 0.05)},
)


def verdicts(now, expression, then=ENTRY):
    return judge({NAME: now}, {NAME: then}, parse(expression))


def verdict(now, expression, then=ENTRY):
    (only,) = verdicts(now, expression, then)
    return only


@pytest.mark.parametrize(
    "expression",
    ["work", "break-even:0.05", "step-time:10%", "step-time:2ms", "speedup@0.75:0.1"],
)
def test_the_same_again_passes(expression):
    assert verdict(ENTRY, expression).outcome == "passed"


@pytest.mark.parametrize(
    ("changed", "expression", "outcome", "why"),
    [
        (
            {"break_even": interval(0.5, 0.01)},
            "break-even:0.05",
            "regressed",
            "break-even:0.05: 0.500 (0.490..0.510), in the baseline 0.400, allowed 0.450",
        ),
        (
            {"break_even": interval(0.45, 0.02)},
            "break-even:0.05",
            "noisy",
            "break-even:0.05: 0.450 (0.430..0.470), in the baseline 0.400, allowed 0.450: too "
            "noisy to tell; measure more rounds, on a machine with nothing else, or allow more",
        ),
        (
            {"break_even": Interval(math.inf, 0.6, math.inf)},
            "break-even:0.05",
            "regressed",
            "break-even:0.05: above all rates measured (0.600..above all rates measured), in the "
            "baseline 0.400, allowed 0.450",
        ),
        (
            {"step_seconds": interval(24e-3, 1e-3)},
            "step-time:10%",
            "regressed",
            "step-time:10%: 24 ms (23 ms..25 ms), in the baseline 20 ms, allowed 22 ms",
        ),
        (
            {"step_seconds": interval(24e-3, 1e-3)},
            "step-time:2500us",
            "regressed",
            "step-time:2500us: 24 ms (23 ms..25 ms), in the baseline 20 ms, allowed 22.5 ms",
        ),
        (
            {"speedup": {0.5: interval(1.0, 0.05), 1.0: interval(1.6, 0.05)}},
            "speedup@0.75:10%",
            "regressed",
            "speedup@0.75:10%: 1.30 (1.25..1.35), in the baseline 1.60, allowed 1.44",
        ),
        (
            {"speedup": {0.5: interval(1.1, 0.05), 1.0: interval(1.8, 0.05)}},
            "speedup@0.75:10%",
            "noisy",
            "speedup@0.75:10%: 1.45 (1.40..1.50), in the baseline 1.60, allowed 1.44: too noisy "
            "to tell; measure more rounds, on a machine with nothing else, or allow more",
        ),
        (
            {"speedup": {0.5: interval(2, 0.05), 1.0: interval(3, 0.05)}},
            "speedup@0.75:10%",
            "passed",
            "speedup@0.75:10%: 2.50 (2.45..2.55), in the baseline 1.60, allowed 1.44",
        ),
        (
            {"work": {**ENTRY.work, "rate 0.5": Work(48, 96, 192, 0)}},
            "work",
            "regressed",
            "work: rate 0.5: 96 target forwards, in the baseline 48; "
            "rate 0.5: 192 drafter forwards, in the baseline 144",
        ),
        (
            {"work": {**ENTRY.work, "rate 0.5": Work(47, 48, 144, 0)}},  # less, and still another
            "work",
            "regressed",
            "work: rate 0.5: 47 engine steps, in the baseline 48",
        ),
        (
            {"work": {**ENTRY.work, "rate 0.5": None}},
            "work",
            "noisy",
            "work: not the same in every round at rate 0.5",
        ),
        (
            {"work": {**ENTRY.work, "rate 0.7": Work(1, 1, 1, 1)}},
            "work",
            "missing",
            "work: nothing known at rate 0.7; add it with --synthaccept-update=all",
        ),
        (
            {"same": {"tokens": 60, "plan_version": 1}},
            "work,break-even:0.05",
            "refused",
            "is another benchmark now: tokens is 60, in the baseline 120; "
            "replace it with --synthaccept-update=all",
        ),
        (
            {"clock": {"device": "NVIDIA A100"}},
            "step-time:10%",
            "refused",
            "step-time:10%: times of other devices do not compare: "
            "device is 'NVIDIA A100', in the baseline 'NVIDIA H200'",
        ),
    ],
)
def test_verdicts(changed, expression, outcome, why):
    assert verdict(replace(ENTRY, **changed), expression) == (outcome, NAME, why)


def test_work_compares_on_any_device():
    now = replace(ENTRY, clock={"device": "cpu"})
    assert verdict(now, "work").outcome == "passed"


def test_a_benchmark_that_is_not_in_the_baseline():
    (only,) = judge({"test_new": ENTRY}, {NAME: ENTRY}, DEFAULT)
    assert only == (
        "missing",
        "test_new",
        "is not in the baseline; add it with --synthaccept-update=new",
    )


def test_nothing_measured():
    (only,) = judge({}, {NAME: ENTRY}, DEFAULT)
    assert only == ("missing", "nothing", "was measured: the gate has nothing to judge")


def test_a_condition_that_no_benchmark_has():
    single = replace(ENTRY, break_even=None, speedup={})
    (only,) = verdicts(single, "break-even:0.05")
    assert only == ("missing", "break-even:0.05", "was measured by no benchmark of this run")
    assert verdict(single, "step-time:10%").outcome == "passed"


def test_a_condition_that_only_another_benchmark_has():
    both = {NAME: ENTRY, "test_single": replace(ENTRY, break_even=None)}
    found = judge(both, both, parse("break-even:0.05"))
    assert [(v.outcome, v.benchmark) for v in found] == [("passed", NAME)]


def test_a_measure_that_the_baseline_lacks():
    assert verdict(ENTRY, "break-even:0.05", replace(ENTRY, break_even=None)) == (
        "missing",
        NAME,
        "break-even:0.05: not in the baseline; add it with --synthaccept-update=all",
    )


# --- the grammar ---

ALLOWED = (
    "allowed: work; break-even:0.05; step-time:10%, or step-time:2ms; "
    "speedup@0.7:10%, or speedup@0.7:0.2"
)


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("work", ("work", None, 0.0, False)),
        ("break-even:0.05", ("break-even", None, 0.05, False)),
        ("step-time:7%", ("step-time", None, 0.07, True)),
        ("step-time:2ms", ("step-time", None, 0.002, False)),
        ("step-time:250us", ("step-time", None, 0.00025, False)),
        ("step-time:1s", ("step-time", None, 1.0, False)),
        ("speedup@0.7:10%", ("speedup", 0.7, 0.1, True)),
        ("speedup@.5:.25", ("speedup", 0.5, 0.25, False)),
    ],
)
def test_conditions(text, condition):
    (found,) = parse(text)
    name, at, allowed, relative = condition
    assert (found.name, found.text, found.at, found.relative) == (name, text, at, relative)
    assert found.allowed == pytest.approx(allowed)


def test_several_conditions():
    assert [c.text for c in parse("work, break-even:0.1 ,speedup@1:5%,speedup@0.5:5%")] == [
        "work",
        "break-even:0.1",
        "speedup@1:5%",
        "speedup@0.5:5%",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", f"has '', not a condition; {ALLOWED}"),
        ("work,", f"has '', not a condition; {ALLOWED}"),
        ("mean:5%", f"has 'mean:5%', not a condition; {ALLOWED}"),
        ("step-time:-1%", f"has 'step-time:-1%', not a condition; {ALLOWED}"),
        ("work:1", "has 'work:1'; write it as work"),
        ("break-even", "has 'break-even'; write it as break-even:0.05"),
        ("break-even:5%", "has 'break-even:5%'; write it as break-even:0.05"),
        ("step-time:5", "has 'step-time:5'; write it as step-time:10%, or step-time:2ms"),
        ("step-time:5m", "has 'step-time:5m'; write it as step-time:10%, or step-time:2ms"),
        ("step-time@0.5:5%", "has 'step-time@0.5:5%'; write it as step-time:10%, or step-time:2ms"),
        ("speedup:5%", "has 'speedup:5%'; write it as speedup@0.7:10%, or speedup@0.7:0.2"),
        ("speedup@7:5%", "has 'speedup@7:5%'; write it as speedup@0.7:10%, or speedup@0.7:0.2"),
        ("work,work", "has work twice; give each condition once"),
        ("speedup@.5:1%,speedup@0.50:2%", "has speedup@0.5 twice; give each condition once"),
    ],
)
def test_what_is_no_condition(text, says):
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value) == says


@given(st.text(max_size=30))
def test_any_text_is_conditions_or_an_error_with_a_hint(text):
    with contextlib.suppress(ValueError):
        assert all(isinstance(condition, Condition) for condition in parse(text))


# --- the file ---


def test_there_and_back(tmp_path):
    path = tmp_path / "deep" / "baseline.json"
    other = replace(
        ENTRY,
        step_seconds=None,
        break_even=Interval(math.inf, 0.5, math.inf),
        speedup={},
        work={"rate 0.1": None},
    )
    baseline_file.write(path, {NAME: ENTRY, "b": other})
    assert baseline_file.read(path) == {NAME: ENTRY, "b": other}
    assert [p.name for p in path.parent.iterdir()] == ["baseline.json"]
    assert json.loads(path.read_text())["benchmarks"]["b"]["break_even"] == ["never", 0.5, "never"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "does not exist; write it with --synthaccept-update=new"),
        ("{", "cannot be read: Expecting property name enclosed in double quotes: "),
        ("[]", "is not a baseline of format 1; write one with --synthaccept-update=all"),
        (
            '{"synthaccept_baseline": 2}',
            "is not a baseline of format 1; write one with --synthaccept-update=all",
        ),
        (
            '{"synthaccept_baseline": 1, "benchmarks": {"a": {}}}',
            "is damaged (KeyError: 'same'); write it with --synthaccept-update=all",
        ),
    ],
)
def test_what_is_no_baseline(tmp_path, text, says):
    path = tmp_path / "baseline.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BenchmarkError) as caught:
        baseline_file.read(path)
    assert str(caught.value).startswith(says)
