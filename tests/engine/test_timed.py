"""Runs that are timed: the same work and outputs, nothing of ours on the way, and its counts."""

from __future__ import annotations

import pytest

from pytest_synthaccept.bench.meter import Meter
from pytest_synthaccept.bench.sweep import Sweep, meter_for, sweep
from pytest_synthaccept.bench.workload import Workload
from pytest_synthaccept.errors import BenchmarkError
from pytest_synthaccept.run import Work

TOKENS = 16


@pytest.fixture
def meter(spec_engine):
    return meter_for(spec_engine, Meter())


@pytest.fixture
def workload(prompts):
    return Workload(prompts[:4], TOKENS)


def summed(run):
    steps = run.scheduler
    return Work(
        engine_steps=len(steps),
        target_forwards=sum(step.target_forwards for step in steps),
        drafter_forwards=sum(step.drafter_forwards for step in steps),
        graph_replays=0,
    )


@pytest.mark.acceptance_rate(0.5, law="constant")
def test_a_timed_run_is_the_same_run(spec_engine, workload, meter):
    seconds = []
    plain = spec_engine.generate(workload.prompts, max_tokens=TOKENS)
    timed = workload.run(spec_engine, meter, seconds, None)
    assert timed.outputs == plain.outputs
    assert timed.work == plain.work == summed(plain)
    assert timed.work.drafter_forwards == 3 * timed.work.target_forwards > 0
    (took,) = seconds
    assert 0 < timed.draft_seconds < took
    timed.check()
    assert timed.checked["acceptance"] == timed.checked["accounting"] == "passed"
    assert timed.checked["scheduler"] == (
        "skipped: the run was timed, its counters were not seen; the rest holds"
    )
    assert timed.checked["kv_cache"] == "skipped: the run was timed, its block pool was not seen"


@pytest.mark.acceptance_rate(0.5, law="constant")
def test_the_next_run_is_watched_again(spec_engine, workload, meter):
    workload.run(spec_engine, meter, [], None)
    run = spec_engine.generate(workload.prompts, max_tokens=TOKENS)
    run.check("scheduler", "kv_cache")
    assert run.checked["scheduler"] == run.checked["kv_cache"] == "passed"


@pytest.mark.acceptance_rate(1.0)
def test_a_run_takes_the_place_of_the_last(spec_engine, workload, meter):
    last = None
    for _ in range(3):
        last = workload.run(spec_engine, meter, [], last)
    assert spec_engine.runs == [last]


@pytest.mark.acceptance_rate(0.0)
def test_the_engine_without_speculation_says_what_the_target_says(spec_engine, workload, meter):
    seconds = []
    plain = spec_engine.without_speculation()
    for _ in range(2):
        work = workload.run_plain(spec_engine, meter, seconds)
        assert work == Work(TOKENS, TOKENS, 0, 0)
    assert spec_engine.without_speculation() is plain
    assert len(seconds) == 2
    # With nothing accepted it is as many steps, and more of everything else.
    run = workload.run(spec_engine, meter, seconds, None)
    assert run.work == Work(TOKENS, TOKENS, 3 * TOKENS, 0)


@pytest.mark.acceptance_rate(0.5, law="constant")
def test_async_scheduling_counts_alike_every_time(spec_engine_factory, workload):
    engine = spec_engine_factory(async_scheduling=True)
    meter = meter_for(engine)
    works = [workload.run(engine, meter, [], None).work for _ in range(3)]
    plain = [workload.run_plain(engine, meter, []) for _ in range(3)]
    assert works == works[:1] * 3
    assert plain == plain[:1] * 3


@pytest.mark.acceptance_rate(0.25, law="constant")
def test_a_sweep_leaves_the_plan_and_one_run_a_rate(spec_engine):
    plan, cost = spec_engine.plan, spec_engine.cost
    curve = sweep(spec_engine, [1.0, 0.0], tokens=TOKENS, rounds=2)
    assert (spec_engine.plan, spec_engine.cost) == (plan, cost)
    assert [run.cost for run in spec_engine.runs] == ["faithful"] * 2
    assert [run.plans[0].rate for run in spec_engine.runs] in ([0.0, 1.0], [1.0, 0.0])
    assert curve.rates == (0.0, 1.0)
    assert [cell.work for cell in curve.cells] == [Work(16, 16, 48, 0), Work(5, 5, 15, 0)]
    assert curve.baseline.work == Work(16, 16, 0, 0)
    assert [cell.length for cell in curve.cells] == [1.0, 4.0]
    assert curve.tokens == TOKENS
    assert all(len(cell.seconds) == len(cell.draft_seconds) == 2 for cell in curve.cells)
    # Five passes of the target against sixteen, and of the drafter a third against none.
    assert 0 < curve.draft_seconds.value < curve.verification_seconds.value


def test_a_sweep_needs_no_plan(spec_engine):
    sweep(spec_engine, [0.5], tokens=4, rounds=1)
    assert spec_engine.plan is None


def test_work_that_changes_between_rounds_is_an_error(spec_engine):
    under_way = Sweep(spec_engine, [1.0], Workload([[1, 2, 3]], 8), meter_for(spec_engine))
    under_way.round()
    under_way.workload = Workload([[1, 2, 3]], 12)
    with pytest.raises(BenchmarkError) as caught:
        under_way.round()
    assert str(caught.value) in (
        "sweep: at rate 1 round 1 was not the work of round 0: "
        "Work(engine_steps=4, target_forwards=4, drafter_forwards=12, graph_replays=0), "
        "Work(engine_steps=3, target_forwards=3, drafter_forwards=9, graph_replays=0)",
        "sweep: without speculation round 1 was not the work of round 0: "
        "Work(engine_steps=12, target_forwards=12, drafter_forwards=0, graph_replays=0), "
        "Work(engine_steps=8, target_forwards=8, drafter_forwards=0, graph_replays=0)",
    )


@pytest.mark.acceptance_rate(0.5, law="constant")
def test_a_request_that_ends_early_is_an_error(spec_engine, meter):
    from vllm import SamplingParams

    tokens = spec_engine.generate([[1, 5, 7, 9]], max_tokens=8).outputs[0]
    stop = SamplingParams(temperature=0.0, ignore_eos=True, stop_token_ids=[tokens[4]])
    with pytest.raises(BenchmarkError) as caught:
        Workload([[1, 5, 7, 9]], 8, stop).run(spec_engine, meter, [], None)
    ended = tokens.index(tokens[4]) + 1
    assert str(caught.value) == (
        f"spec_benchmark: request 0 ended after {ended} of 8 tokens; "
        "give it ignore_eos=True, no stops and room in max_model_len"
    )
