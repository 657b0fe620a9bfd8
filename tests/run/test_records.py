"""The arithmetic of acceptance, and ledger rows turned into steps."""

import math

import pytest

from pytest_synthaccept.acceptance.plan import AcceptancePlan
from pytest_synthaccept.engine.records import fill
from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.run import Acceptance, Request, SpecRun, Step
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


def filled(rows, output, lanes=((0, 0, 7, 0),)):
    run = SpecRun(plans=[AcceptancePlan.from_rate(0.5, num_speculative_tokens=3)])
    run.requests = [Request(7, 0, 0, prompt_len=4, limit=99, output=[0] * output)]
    answer = {
        "digest": "x",
        "records": {"lanes": list(lanes), "ledger": rows, "scheduler": []},
    }
    fill(run, [answer, None])
    return run


def test_a_row_past_the_last_committed_token_is_discarded():
    run = filled([ledger(0, 0, 5), ledger(0, 1, 7), ledger(0, 2, 9)], output=5)
    assert [s.position for s in run.steps] == [5, 7]
    assert [s.position for s in run.discarded] == [9]
    assert run.steps[0].request == 7
    assert run.steps[0].proposed == (4, 5, 6)


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
    records = {"lanes": [], "ledger": [], "scheduler": []}
    answers = [{"digest": "a", "records": records}, {"digest": "b", "records": None}]
    with pytest.raises(EngineError) as error:
        fill(SpecRun(), answers)
    assert str(error.value) == (
        "the 2 verifying ranks recorded different decisions: ranks have diverged"
    )
