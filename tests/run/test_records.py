"""The arithmetic of acceptance, and ledger rows turned into steps."""

import math

import pytest

from pytest_synthaccept.acceptance.plan import AcceptancePlan
from pytest_synthaccept.engine.records import fill
from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.run import Acceptance, Request, SpecRun, Step, Work
from pytest_synthaccept.run.ledger import COLUMNS, DRAFTLESS, PADDED, VERIFICATION, LedgerRow


def step(drafted, accepted):
    return Step(0, 0, 0, 0, 1, drafted, accepted, accepted, (1,) * drafted, 0, 2)


def test_acceptance_counts_rows_that_had_the_position():
    """The second row had two drafts only: it says nothing about position 3."""
    got = Acceptance.of([step(3, 3), step(2, 1), step(3, 0)], "rate=0.5")
    assert (got.drafted, got.accepted, got.steps) == (8, 4, 3)
    assert got.rate == 4 / 8
    assert got.length == 1 + 4 / 3
    assert got.per_position == (2 / 3, 1 / 3, 1 / 2)
    assert got.requested == "rate=0.5"


def test_no_step_no_rate():
    got = Acceptance.of([], "rate=0.5")
    assert math.isnan(got.rate)
    assert math.isnan(got.length)
    assert got.per_position == ()


def test_an_empty_run_summarises():
    assert SpecRun().summary()["rate"] is None


def ledger(lane, step, position, flags=VERIFICATION, accepted=1):
    row = LedgerRow(lane, step, position, 3, 3, 1, accepted, 0, flags, 9, (4, 5, 6))
    return [*row[: len(COLUMNS)], *row.drafts]


def engine_step(*rows):
    """Rows: (lane, tokens, drafts, computed, prefill_len)."""
    scheduled = [[lane, i, *rest, 0] for i, (lane, *rest) in enumerate(rows)]
    return {"rows": scheduled, "preempted": [], "finished": [], "forwards": {}}


def answer(found, seconds=0.5, digest="x"):
    return {"digest": digest, "records": found, "draft_seconds": seconds}


def records(rows, scheduler, lanes=((0, 0, 7, 0),)):
    drafts = [[[n, 8, 9] for _ in step["rows"]] for n, step in enumerate(scheduler)]
    made = [[[n, 1, 2] for _ in step["rows"]] for n, step in enumerate(scheduler)]
    return {
        "lanes": list(lanes),
        "ledger": rows,
        "scheduler": scheduler,
        "proposed": drafts,
        "made": made,
        "margins": [[[n / 8, 0.5, 0.25] for _ in step["rows"]] for n, step in enumerate(scheduler)],
        "work": {"target_forwards": 5, "drafter_forwards": 15, "graph_replays": 0},
    }


def filled(rows, output, scheduler=None):
    """By default each row is an engine step of its own, after one prefill."""
    if scheduler is None:
        steps = [engine_step((row[0], 4, 3, row[2] - 1, 4)) for row in rows]
        scheduler = [engine_step((0, 4, 0, 0, 4)), *steps]
    run = SpecRun(plans=[AcceptancePlan.from_rate(0.5, num_speculative_tokens=3)])
    run.requests = [Request(7, 0, 0, prompt_len=4, limit=99, output=[0] * output)]
    fill(run, [answer(records(rows, scheduler)), None])
    return run


def test_a_row_past_the_last_committed_token_is_discarded():
    run = filled([ledger(0, 0, 5), ledger(0, 1, 7), ledger(0, 2, 9)], output=5)
    assert [s.position for s in run.steps] == [5, 7]
    assert [s.position for s in run.discarded] == [9]
    assert run.steps[0].request == 7


def test_a_step_has_the_drafts_made_after_the_last_one():
    run = filled([ledger(0, 0, 5), ledger(0, 1, 7)], output=30)
    assert [s.engine_step for s in run.steps] == [1, 2]
    assert [s.proposed for s in run.steps] == [(0, 8, 9), (1, 8, 9)]
    assert [s.made for s in run.steps] == [(0, 1, 2), (1, 1, 2)]
    assert [s.verified for s in run.steps] == [(4, 5, 6), (4, 5, 6)]
    assert [s.margins for s in run.steps] == [(0.0, 0.5, 0.25), (0.125, 0.5, 0.25)]


def test_drafts_that_cannot_be_matched_are_not_guessed():
    run = filled([ledger(0, 0, 5)], output=30, scheduler=[])
    assert (run.steps[0].proposed, run.steps[0].made) == ((4, 5, 6), None)


def test_a_chunk_in_the_ledger_drops_nothing():
    """After a preemption a prefill in chunks passes over the same positions, without a token."""
    rows = [ledger(0, 0, 5), ledger(0, 1, 3, DRAFTLESS, 0), ledger(0, 1, 8)]
    rows[1][COLUMNS.index("scheduled")] = 0
    scheduler = [
        engine_step((0, 4, 0, 0, 4)),
        engine_step((0, 4, 3, 4, 4)),
        engine_step((0, 3, 0, 0, 7)),
        engine_step((0, 4, 0, 3, 7)),
        engine_step((0, 4, 3, 7, 7)),
    ]
    run = filled(rows, output=30, scheduler=scheduler)
    assert [s.position for s in run.steps] == [5, 8]
    assert not run.discarded


def test_a_step_in_flight_at_a_preemption_is_discarded_by_the_prefill_after_it():
    scheduler = [
        engine_step((0, 4, 0, 0, 4)),
        engine_step((0, 4, 3, 4, 4)),
        engine_step((0, 5, 0, 0, 5)),
    ]
    run = filled([ledger(0, 0, 5)], output=30, scheduler=scheduler)
    assert not run.steps
    assert [s.position for s in run.discarded] == [5]


def test_a_row_gone_over_again_after_a_preemption_is_discarded():
    run = filled([ledger(0, 0, 5), ledger(0, 1, 7), ledger(0, 2, 7), ledger(0, 3, 9)], output=30)
    assert [s.step for s in run.steps] == [0, 2, 3]
    assert [s.step for s in run.discarded] == [1]


def test_padded_and_draftless_rows_are_no_steps():
    rows = [ledger(0, 0, 5, PADDED, 0), ledger(0, 0, 6, DRAFTLESS, 0), ledger(0, 0, 7)]
    run = filled(rows, output=30)
    assert len(run.steps) == 1
    assert (run.padded_rows, run.padded_drafts) == (1, 3)


def test_ranks_that_differ_are_an_error():
    empty = records([], [], lanes=())
    answers = [answer(empty, digest="a"), answer(None, digest="b")]
    with pytest.raises(EngineError) as error:
        fill(SpecRun(), answers)
    assert str(error.value) == (
        "the 2 verifying ranks recorded different decisions: ranks have diverged"
    )


def test_work_and_drafting_time_of_a_run():
    """Every rank counts alike; the slowest rank's clock is the one that a step waits for."""
    run = SpecRun()
    fill(run, [answer(records([], [])), answer(None, seconds=0.75)])
    assert run.work == Work(engine_steps=0, target_forwards=5, drafter_forwards=15, graph_replays=0)
    assert run.draft_seconds == 0.75
    assert SpecRun.from_dict(run.to_dict()).work == run.work
