"""``Curve``: what a sweep measured, and the sentences that can be asserted of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from pytest_synthaccept.bench import bootstrap as stats
from pytest_synthaccept.bench.bootstrap import Interval, bootstrap, undisturbed
from pytest_synthaccept.bench.table import curve_table, show_interval, show_rate
from pytest_synthaccept.errors import BenchmarkError, Inconclusive
from pytest_synthaccept.run import Work

FEWEST_ROUNDS = 5  # with fewer an interval says nothing
ADVICE = "measure more rounds (rounds=) or more tokens (tokens=), on a machine with nothing else"


@dataclass(frozen=True)
class Cell:
    """One configuration, timed once in every round: a rate, or the engine without speculation.

    ``seconds`` and ``draft_seconds`` (of them, spent in the drafter) have one entry a round.
    ``work`` is the same in every round; None where that cannot be known.
    """

    seconds: tuple[float, ...]
    work: Work | None
    steps: int  # engine steps, of one round
    draft_seconds: tuple[float, ...] = ()
    rate: float | None = None  # as asked for; None: without speculation
    realised: float | None = None
    length: float = 1.0  # tokens per verification step


@dataclass(frozen=True)
class Curve:
    """Speed as a function of acceptance.

    ``cells`` in ascending order of their rates; ``tokens`` committed by each cell in a round.
    All estimates are of ``undisturbed`` times: as the rounds are interleaved, a calm spell of
    the machine is one for all cells. ``not_measured`` says why nothing was timed, if so.
    """

    cells: tuple[Cell, ...]
    baseline: Cell
    tokens: int
    num_speculative_tokens: int
    about: Mapping[str, Any] = field(default_factory=dict)
    not_measured: str = ""

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates asked for, ascending."""
        return tuple(cell.rate for cell in self.cells if cell.rate is not None)

    @property
    def rounds(self) -> int:
        """How often each cell was timed."""
        return len(self.baseline.seconds)

    # --- estimates ---

    def speedup(self, rate: float) -> Interval:
        """Baseline seconds over this rate's; linear between measured rates, BenchmarkError beyond.

        A number above 1: speculation pays.
        """
        self._require_within("speedup", "rate", rate)
        return self._estimate(lambda rounds: stats.at(self.rates, self._speedups(rounds), rate))

    @cached_property
    def break_even(self) -> Interval:
        """The rate from which on speculation pays; -inf: at every rate measured, inf: at none."""
        return self._estimate(self._break_even)

    def step_seconds(self, rate: float | None = None) -> Interval:
        """Seconds per engine step at a measured rate; None: over all of them."""
        cells = [cell for cell in self.cells if rate in (None, cell.rate)]
        if not cells:
            raise BenchmarkError(
                f"step_seconds: rate={rate!r} was not measured; measured: {_list(self.rates)}"
            )
        return self._estimate(lambda rounds: _per_step(cells, rounds))

    @property
    def baseline_step_seconds(self) -> Interval:
        """Seconds per engine step without speculation."""
        return self._estimate(lambda rounds: _per_step([self.baseline], rounds))

    @property
    def draft_seconds(self) -> Interval:
        """Fitted: what one more draft per request costs a step; nan where it was not seen."""
        return self._estimate(self._draft_cost)

    @property
    def verification_seconds(self) -> Interval:
        """Fitted: what a step costs without its drafts: the target, the verdict, the scheduler."""
        return self._estimate(self._verification_cost)

    def expected_speedup(self, rate: float) -> float:
        """What the fitted costs say of a measured rate; far from the measured: no such costs."""
        every = range(self.rounds)
        cell = next(cell for cell in self.cells if cell.rate == rate)
        step = self._verification_cost(every)
        if not math.isnan(draft := self._draft_cost(every)):
            step += self.num_speculative_tokens * draft
        return undisturbed(self.baseline.seconds) / (cell.steps * step)

    # --- assertions ---

    def assert_break_even_below(self, rate: float) -> None:
        """Speculation pays at every acceptance rate from ``rate`` on, or from below it."""
        __tracebackhide__ = True
        self._require_within("assert_break_even_below", "rate", rate)
        self._require_measured("break-even rate")
        found = self.break_even
        if found.high < rate:
            return
        what = f"break-even rate is {show_interval(found, show_rate)}, not below {rate}"
        self._refuse(what, sure=found.low >= rate)

    def assert_speedup(self, *, at: float, at_least: float) -> None:
        """The speedup at acceptance rate ``at`` is ``at_least`` that."""
        __tracebackhide__ = True
        self._require_within("assert_speedup", "at", at)
        self._require_measured("speedup")
        found = self.speedup(at)
        if found.low >= at_least:
            return
        what = f"speedup at rate {at} is {show_interval(found)}, not at least {at_least}"
        self._refuse(what, sure=found.high < at_least)

    def assert_monotone(self, *, within: float = 0.02) -> None:
        """No measured rate is slower than the one before it, but for a share ``within``."""
        __tracebackhide__ = True
        self._require_measured("speedup")
        unsure = ""
        for i, (low, high) in enumerate(zip(self.rates, self.rates[1:], strict=False)):

            def gain(rounds: Sequence[int], i: int = i) -> float:
                speedups = self._speedups(rounds)
                return speedups[i + 1] / speedups[i]

            found = self._estimate(gain)
            what = (
                f"speedup is not monotone: rate {high} over rate {low} is {show_interval(found)} "
                f"times as fast, not at least {1 - within:g}"
            )
            if found.high < 1 - within:
                self._refuse(what, sure=True)
            if found.low < 1 - within:
                unsure = unsure or what
        if unsure:
            self._refuse(unsure, sure=False)

    # --- as text and as data ---

    def table(self) -> list[str]:
        """The curve for a terminal, a line per rate."""
        return curve_table(self)

    def __str__(self) -> str:
        return "\n".join(self.table())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready builtins."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Curve:
        """Back from ``to_dict``, also after a trip through JSON."""

        def cell(row: Mapping[str, Any]) -> Cell:
            work = None if row["work"] is None else Work(**row["work"])
            times = {name: tuple(row[name]) for name in ("seconds", "draft_seconds")}
            return Cell(**{**row, **times, "work": work})

        cells = tuple(map(cell, data["cells"]))
        return cls(**{**data, "cells": cells, "baseline": cell(data["baseline"])})

    # --- the rest ---

    def _estimate(self, statistic: Callable[[Sequence[int]], float]) -> Interval:
        return bootstrap(self.rounds, statistic)

    def _speedups(self, rounds: Sequence[int]) -> list[float]:
        base = _best(self.baseline.seconds, rounds)
        return [base / _best(cell.seconds, rounds) for cell in self.cells]

    def _break_even(self, rounds: Sequence[int]) -> float:
        return stats.crossing(self.rates, stats.non_decreasing(self._speedups(rounds)), 1.0)

    def _draft_cost(self, rounds: Sequence[int]) -> float:
        if not all(cell.draft_seconds for cell in self.cells):
            return math.nan
        spent = [_best(cell.draft_seconds, rounds) for cell in self.cells]
        return stats.slope([c.steps * self.num_speculative_tokens for c in self.cells], spent)

    def _verification_cost(self, rounds: Sequence[int]) -> float:
        spent = [
            _best([t - d for t, d in zip(c.seconds, c.draft_seconds, strict=True)], rounds)
            if c.draft_seconds
            else _best(c.seconds, rounds)
            for c in self.cells
        ]
        return stats.slope([cell.steps for cell in self.cells], spent)

    def _require_within(self, where: str, name: str, rate: float) -> None:
        __tracebackhide__ = True
        if not self.rates[0] <= rate <= self.rates[-1]:
            raise BenchmarkError(
                f"{where}: {name}={rate!r} is outside the measured rates {_list(self.rates)}; "
                "give sweep(rates=...) one on either side of it"
            )

    def _require_measured(self, what: str) -> None:
        __tracebackhide__ = True
        if self.not_measured:
            raise Inconclusive(f"{what} was not measured: {self.not_measured}")
        if self.rounds < FEWEST_ROUNDS:
            raise Inconclusive(
                f"{what} is too noisy to tell from {self.rounds} rounds; "
                f"measure {FEWEST_ROUNDS} at least (rounds=)"
            )

    def _refuse(self, what: str, *, sure: bool) -> None:
        __tracebackhide__ = True
        if sure:
            raise AssertionError("\n".join([what, *self.table()]))
        told = what.replace(", not ", "; too noisy to tell whether it is ", 1)
        raise Inconclusive(f"{told}; {ADVICE}")


def _per_step(cells: Sequence[Cell], rounds: Sequence[int]) -> float:
    return sum(_best(cell.seconds, rounds) for cell in cells) / sum(cell.steps for cell in cells)


def _best(seconds: Sequence[float], rounds: Sequence[int]) -> float:
    return undisturbed([seconds[i] for i in rounds])


def _list(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)
