"""The order of a sweep and what it keeps, on an engine that only takes notes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_synthaccept.bench.sweep import Sweep
from pytest_synthaccept.run import Acceptance, Work

RATES = (0.0, 0.5, 1.0)


class Engine:
    def __init__(self, place="in process"):
        self.info = {"engine_core": place}
        self.num_speculative_tokens = 3
        self.cost = "lean"
        self.runs, self.plan, self.rate, self.told = [], None, None, []

    def set_acceptance(self, rate, **keywords):
        self.rate = rate
        self.told.append(keywords)


class Workload:
    """Seconds count up over all runs, and so tell their order."""

    total = 12

    def __init__(self, work=lambda number: Work(4, 4, 12, 0)):
        self.order, self.work = [], work

    def run(self, engine, meter, seconds, last):
        self.order.append(engine.rate)
        seconds.append(float(len(self.order)))
        engine.runs = [run for run in engine.runs if run is not last]
        acceptance = Acceptance(drafted=12, accepted=6, steps=4, per_position=(), requested="")
        run = SimpleNamespace(
            work=self.work(len(self.order)), draft_seconds=0.5, acceptance=acceptance
        )
        engine.runs.append(run)
        return run

    def run_plain(self, engine, meter, seconds):
        self.order.append(None)
        seconds.append(float(len(self.order)))
        return Work(12, 12, 0, 0)


def rounds_of(order):
    width = len(RATES) + 1
    return [tuple(order[i : i + width]) for i in range(0, len(order), width)]


def test_every_round_has_every_cell_once_in_an_order_of_its_own():
    workload = Workload()
    sweep = Sweep(Engine(), RATES, workload, None)
    for _ in range(12):
        sweep.round()
    rounds = rounds_of(workload.order)
    assert all(set(one) == {None, *RATES} for one in rounds)
    for place in range(len(RATES) + 1):  # no cell has a place of its own
        assert len({one[place] for one in rounds}) > 2


def test_times_go_to_the_cells_that_took_them():
    workload = Workload()
    sweep = Sweep(Engine(), RATES, workload, None)
    sweep.round()
    curve = sweep.curve()
    place = {rate: float(i) for i, rate in enumerate(workload.order, 1)}
    assert [cell.seconds for cell in curve.cells] == [(place[rate],) for rate in RATES]
    assert curve.baseline.seconds == (place[None],)
    assert [cell.realised for cell in curve.cells] == [0.5] * 3
    assert [cell.length for cell in curve.cells] == [2.5] * 3
    assert curve.tokens == 12


def test_the_warm_up_leaves_nothing():
    engine, workload = Engine(), Workload()
    mine = object()  # a run of the test before its sweep
    engine.runs = [mine]
    sweep = Sweep(engine, RATES, workload, None)
    sweep.warm_up()
    assert engine.runs == [mine]
    sweep.round()
    sweep.round()
    assert sweep.curve().rounds == 2
    assert len(engine.runs) == 1 + len(RATES)
    assert min(min(cell.seconds) for cell in sweep.curve().cells) > len(RATES)


def test_work_that_cannot_be_exact_is_not_known():
    """An engine core in a process of its own batches requests as they happen to arrive."""
    workload = Workload(work=lambda number: Work(number, 4, 12, 0))
    sweep = Sweep(Engine("separate process"), RATES, workload, None)
    sweep.round()
    sweep.round()
    assert [cell.work for cell in sweep.curve().cells] == [None] * 3
    assert sweep.curve().baseline.work == Work(12, 12, 0, 0)


@pytest.mark.parametrize("law", ["constant", "geometric"])
def test_the_law_and_the_seed_reach_the_engine(law):
    engine = Engine()
    Sweep(engine, [0.5], Workload(), None, law=law, seed=7).round()
    assert engine.told == [{"law": law, "seed": 7, "cost": "faithful"}]
