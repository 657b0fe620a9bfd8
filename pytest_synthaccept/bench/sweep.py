"""Rates on one live engine, interleaved round by round with the engine without speculation."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_synthaccept.bench.curve import Cell, Curve
from pytest_synthaccept.bench.meter import Meter
from pytest_synthaccept.bench.workload import COST, TOKENS, Workload, realised
from pytest_synthaccept.errors import AcceptanceError, BenchmarkError
from pytest_synthaccept.run import Work

if TYPE_CHECKING:
    from pytest_synthaccept.engine.engine import SpecEngine
    from pytest_synthaccept.run import SpecRun

RATES = (0.0, 0.25, 0.5, 0.75, 1.0)
ROUNDS = 15


def meter_for(engine: SpecEngine, meter: Meter | None = None) -> Meter:
    """A meter on the clock of this engine's device, where this process has the device open."""
    meter = meter or Meter()
    info = engine.info
    here = info["engine_core"] == "in process" and info["ranks"] == 1
    meter.use(cuda=info["device"] == "cuda" and here)
    return meter


def sweep(
    engine: SpecEngine,
    rates: Sequence[float] = RATES,
    *,
    prompts: Sequence[Sequence[int] | str] | None = None,
    requests: int | None = None,
    tokens: int = TOKENS,
    rounds: int = ROUNDS,
    law: str = "geometric",
    seed: int = 0,
) -> Curve:
    """Measure a curve: see ``SpecBenchmark.sweep``; without pytest."""
    workload = Workload.of(engine, prompts, requests, tokens, None)
    under_way = Sweep(engine, rates, workload, meter_for(engine), law=law, seed=seed)
    under_way.warm_up()
    for _ in range(check_rounds(rounds)):
        under_way.round()
    return under_way.curve()


def check_rounds(rounds: object) -> int:
    """The number of rounds; BenchmarkError."""
    if type(rounds) is not int or rounds < 1:
        raise BenchmarkError(f"sweep: rounds={rounds!r} must be an integer >= 1")
    return rounds


class Sweep:
    """A sweep under way: ``warm_up``, then ``round`` after ``round``; ``curve`` at any time."""

    def __init__(
        self,
        engine: SpecEngine,
        rates: Sequence[float],
        workload: Workload,
        meter: Meter,
        *,
        law: str = "geometric",
        seed: int = 0,
        cost: str = COST,
    ) -> None:
        self.rates = _checked(rates)
        self.workload = workload
        self.about: dict[str, Any] = {}
        self._engine, self._meter = engine, meter
        self._plan = {"law": law, "seed": seed, "cost": cost}
        self._order = random.Random(0)
        self._forget()

    def _forget(self) -> None:
        names: list[float | None] = [None, *self.rates]
        self._seconds: dict[float | None, list[float]] = {name: [] for name in names}
        self._drafting: dict[float, list[float]] = {rate: [] for rate in self.rates}
        self._work: dict[float | None, list[Work]] = {name: [] for name in names}
        self._last: dict[float, SpecRun] = {}

    def warm_up(self) -> None:
        """A round that counts for nothing: kernels are compiled, caches filled."""
        self.round()
        runs = self._last.values()
        self._engine.runs = [r for r in self._engine.runs if not any(r is old for old in runs)]
        self._forget()

    def round(self) -> None:
        """Every rate and the baseline once, each round in another order."""
        __tracebackhide__ = True
        cells: list[float | None] = [None, *self.rates]
        self._order.shuffle(cells)
        before, cost = self._engine.plan, self._engine.cost
        for rate in cells:
            if rate is None:
                work = self.workload.run_plain(self._engine, self._meter, self._seconds[None])
                self._note(None, work)
            else:
                self._run(rate)
        self._engine.plan, self._engine.cost = None, cost
        if before is not None:
            self._engine.set_acceptance(before)

    def _run(self, rate: float) -> None:
        __tracebackhide__ = True
        with warnings.catch_warnings():
            # Draft 1 is certain from some rate on: no harm to a measurement.
            warnings.simplefilter("ignore")
            self._engine.set_acceptance(rate, **self._plan)
        run = self.workload.run(
            self._engine, self._meter, self._seconds[rate], self._last.get(rate)
        )
        self._last[rate] = run
        self._drafting[rate].append(run.draft_seconds)
        assert run.work is not None
        self._note(rate, run.work)

    def _note(self, rate: float | None, work: Work) -> None:
        __tracebackhide__ = True
        known = self._work[rate]
        if known and work != known[0] and self._engine.info["engine_core"] == "in process":
            at = "without speculation" if rate is None else f"at rate {rate:g}"
            raise BenchmarkError(
                f"sweep: {at} round {len(known)} was not the work of round 0: {work}, {known[0]}"
            )
        known.append(work)

    def curve(self, not_measured: str = "") -> Curve:
        """What was measured so far."""
        cells = []
        for rate in self.rates:
            rate_realised, length = realised(self._last[rate])
            cells.append(
                Cell(
                    **self._cell(rate),
                    draft_seconds=tuple(self._drafting[rate]),
                    rate=rate,
                    realised=rate_realised,
                    length=length,
                )
            )
        return Curve(
            cells=tuple(cells),
            baseline=Cell(**self._cell(None)),
            tokens=self.workload.total,
            num_speculative_tokens=self._engine.num_speculative_tokens,
            about=self.about,
            not_measured=not_measured,
        )

    def _cell(self, rate: float | None) -> dict[str, Any]:
        found = self._work[rate]
        exact = all(work == found[0] for work in found)
        return {
            "seconds": tuple(self._seconds[rate]),
            "work": found[0] if exact else None,
            "steps": found[0].engine_steps,
        }


def _checked(rates: object) -> tuple[float, ...]:
    __tracebackhide__ = True
    from pytest_synthaccept.acceptance.plan import check_rate

    if not isinstance(rates, Sequence) or isinstance(rates, str) or not rates:
        raise BenchmarkError(
            f"sweep: rates={rates!r} is not a list of one rate or more; give e.g. [0, 0.5, 1]"
        )
    try:
        numbers = tuple(sorted(check_rate(rate, "sweep") for rate in rates))
    except AcceptanceError as error:
        raise BenchmarkError(str(error)) from None
    if len(set(numbers)) < len(numbers):
        raise BenchmarkError(f"sweep: rates={list(rates)!r} has a rate twice; give each once")
    return numbers
