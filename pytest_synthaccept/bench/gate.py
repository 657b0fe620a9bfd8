"""The gate: what was measured against the baseline, condition by condition. Pure.

Work is compared exactly, on any machine. A time is compared with its interval: it regressed
where even the interval's better end is beyond what is allowed, and it passed where even the
worse end is within; in between nobody can tell, and the gate says so instead of passing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_synthaccept.bench.bootstrap import Interval, at
from pytest_synthaccept.bench.expression import (
    BREAK_EVEN,
    SPEEDUP,
    STEP_TIME,
    WORK,
    Condition,
)
from pytest_synthaccept.bench.table import show_interval, show_number, show_rate, show_seconds
from pytest_synthaccept.run import Work

if TYPE_CHECKING:
    from pytest_synthaccept.bench.curve import Curve

PASSED, REGRESSED, NOISY, REFUSED, MISSING = "passed", "regressed", "noisy", "refused", "missing"
ADVICE = "measure more rounds, on a machine with nothing else, or allow more"
UPDATE = "--synthaccept-update"


@dataclass(frozen=True)
class Entry:
    """What the gate knows of one benchmark.

    ``same`` must agree for any comparison (plan, K, tokens ...), ``clock`` for one of times
    (device). ``work`` by name of the cell; None where it is not known.
    """

    same: Mapping[str, Any]
    clock: Mapping[str, Any]
    work: Mapping[str, Work | None]
    step_seconds: Interval | None = None
    break_even: Interval | None = None
    speedup: Mapping[float, Interval] = field(default_factory=dict)


def entry_of(curve: Curve, *, same: Mapping[str, Any], clock: Mapping[str, Any]) -> Entry:
    """What the gate knows of a sweep; without its times where nothing was timed."""
    cells = {f"rate {cell.rate:g}": cell.work for cell in curve.cells}
    measured = not curve.not_measured
    return Entry(
        same=same,
        clock=clock,
        work=cells | {"without speculation": curve.baseline.work},
        step_seconds=curve.step_seconds() if measured else None,
        break_even=curve.break_even if measured else None,
        speedup={rate: curve.speedup(rate) for rate in curve.rates} if measured else {},
    )


class Verdict(NamedTuple):
    """The outcome of a condition for a benchmark, and the reason in words."""

    outcome: str
    benchmark: str
    why: str


def judge(
    measured: Mapping[str, Entry], baseline: Mapping[str, Entry], conditions: Sequence[Condition]
) -> list[Verdict]:
    """The verdicts, benchmark by benchmark. No verdict that passed: the gate measured nothing."""
    verdicts = []
    for name, now in measured.items():
        if name not in baseline:
            why = f"is not in the baseline; add it with {UPDATE}=new"
            verdicts.append(Verdict(MISSING, name, why))
            continue
        verdicts += _judge_one(name, now, baseline[name], conditions)
    # A sweep has no speedup of a single run, nor a single run a break-even: no harm where
    # another benchmark has it.
    for condition in conditions:
        if measured and not any(_has(entry, condition) for entry in measured.values()):
            why = "was measured by no benchmark of this run"
            verdicts.append(Verdict(MISSING, condition.text, why))
    if not measured:
        verdicts.append(Verdict(MISSING, "nothing", "was measured: the gate has nothing to judge"))
    return verdicts


def _judge_one(
    name: str, now: Entry, then: Entry, conditions: Sequence[Condition]
) -> list[Verdict]:
    if differs := _difference(now.same, then.same):
        why = f"is another benchmark now: {differs}; replace it with {UPDATE}=all"
        return [Verdict(REFUSED, name, why)]
    verdicts = []
    for condition in conditions:
        if not _has(now, condition):
            continue
        if condition.name == WORK:
            outcome, why = _judge_work(now, then)
        elif differs := _difference(now.clock, then.clock):
            outcome = REFUSED
            why = f"{condition.text}: times of other devices do not compare: {differs}"
        else:
            outcome, why = _judge_time(now, then, condition)
        verdicts.append(Verdict(outcome, name, why))
    return verdicts


def _has(entry: Entry, condition: Condition) -> bool:
    if condition.name == WORK:
        return bool(entry.work)
    if condition.name == SPEEDUP:
        return _speedup(entry, condition) is not None
    return _of(entry, condition) is not None


def _difference(now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    for key in sorted({*now, *then}):
        if now.get(key) != then.get(key):
            return f"{key} is {now.get(key)!r}, in the baseline {then.get(key)!r}"
    return ""


def _judge_work(now: Entry, then: Entry) -> tuple[str, str]:
    if unknown := [cell for cell, work in now.work.items() if work is None]:
        return NOISY, f"work: not the same in every round at {', '.join(unknown)}"
    changes = []
    for cell, work in now.work.items():
        known = then.work.get(cell)
        if known is None:
            return MISSING, f"work: nothing known at {cell}; add it with {UPDATE}=all"
        for name in Work.__slots__:
            was, count = getattr(known, name), getattr(work, name)
            if was != count:
                words = name.replace("_", " ")
                changes.append(f"{cell}: {count} {words}, in the baseline {was}")
    if changes:
        return REGRESSED, f"work: {'; '.join(changes)}"
    return PASSED, f"work: the same in {len(now.work)} cells"


def _judge_time(now: Entry, then: Entry, condition: Condition) -> tuple[str, str]:
    found, known = _of(now, condition), _of(then, condition)
    assert found is not None
    if known is None:
        return MISSING, f"{condition.text}: not in the baseline; add it with {UPDATE}=all"
    show = {BREAK_EVEN: show_rate, STEP_TIME: show_seconds, SPEEDUP: show_number}[condition.name]
    what = f"{condition.text}: {show_interval(found, show)}, in the baseline {show(known.value)}"
    allowed = condition.allowed * abs(known.value) if condition.relative else condition.allowed
    if condition.name == SPEEDUP:  # the one of which more is better
        limit = known.value - allowed
        worse, passed = found.high < limit, found.low >= limit
    else:
        limit = known.value + allowed
        worse, passed = found.low > limit, found.high <= limit
    what += f", allowed {show(limit)}"
    if passed:
        return PASSED, what
    return (REGRESSED, what) if worse else (NOISY, f"{what}: too noisy to tell; {ADVICE}")


def _of(entry: Entry, condition: Condition) -> Interval | None:
    if condition.name == BREAK_EVEN:
        return entry.break_even
    return entry.step_seconds if condition.name == STEP_TIME else _speedup(entry, condition)


def _speedup(entry: Entry, condition: Condition) -> Interval | None:
    """At a rate between measured ones the interval is interpolated like its value."""
    assert condition.at is not None
    rates = sorted(entry.speedup)
    if not rates or not rates[0] <= condition.at <= rates[-1]:
        return None
    known = [entry.speedup[rate] for rate in rates]
    ends = (at(rates, [found[i] for found in known], condition.at) for i in range(3))
    return Interval(*ends)
