"""The accounting check: tokens, drafts and statistics that do not add up are caught."""

from dataclasses import replace

import pytest

from pytest_synthaccept.run import SchedulerStep


def fails(run, message):
    with pytest.raises(AssertionError) as caught:
        run.check("accounting")
    assert str(caught.value) == message


def test_a_correct_run_passes(run):
    run.check()
    assert run.checked["accounting"] == "passed"


def test_the_v1_runner(run):
    run.info = {"model_runner": "v1"}
    fails(run, "accounting: the engine ran model runner 'v1', not v2")


def test_no_draft_was_verified(run):
    run.steps.clear()
    rows = sum(row.kind == "verify" for step in run.scheduler for row in step.rows)
    fails(
        run,
        f"accounting: no draft token was verified in {rows} decode rows: "
        "the drafter proposed nothing, or the scheduler dropped it",
    )


def test_a_committed_token_lost(run):
    run.requests[0].output.pop()
    steps = sum(s.accepted + 1 for s in run.steps if s.request == 0)
    cut = 1 + steps - 20
    fails(
        run,
        "accounting: request 0: 19 committed tokens, expected 20 = completed prefills 1 "
        f"+ rows without drafts 0 + padded rows 0 + tokens of verification steps {steps} "
        f"- truncated by a stop rule {cut}",
    )


def test_tokens_after_a_stop_are_not_excused(run):
    """A stop cuts at most the accepted drafts of the last step."""
    request = run.requests[0]
    request.finish_reason = "stop"
    last = [s for s in run.steps if s.request == 0][-1]
    emitted = 1 + sum(s.accepted + 1 for s in run.steps if s.request == 0)
    request.output = [2] * (emitted - last.accepted)
    run.check("accounting")
    run.checked.clear()
    request.output = [2] * (emitted - last.accepted - 1)
    with pytest.raises(AssertionError, match=r"^accounting: request 0: .* committed tokens"):
        run.check("accounting")


def test_a_step_of_the_ledger_that_the_scheduler_never_sent(run):
    last = run.scheduler[-1]
    run.scheduler[-1] = SchedulerStep(rows=last.rows[:-1])
    with pytest.raises(AssertionError, match=r"^accounting: request 0: .*"):
        run.check("accounting")


def test_a_step_that_started_before_the_last_one_ended(run, edit):
    mine = [i for i, s in enumerate(run.steps) if s.request == 0]
    before, after = run.steps[mine[1]], run.steps[mine[2]]
    end = before.position + before.accepted + 1
    edit(run, mine[2], position=end - 1)
    fails(
        run,
        f"accounting: request 0, step {after.step}: started at position {end - 1}, "
        f"but step {before.step} ended at {end}",
    )


@pytest.mark.parametrize(
    ("field", "what"),
    [
        ("num_drafts", "drafts"),
        ("num_draft_tokens", "draft tokens"),
        ("num_accepted_tokens", "accepted tokens"),
    ],
)
def test_the_engine_counts_otherwise(run, field, what):
    stats = run.scheduler_stats
    ours = getattr(stats, field)
    run.scheduler_stats = replace(stats, **{field: ours + 1})
    fails(
        run,
        f"accounting: {what}: the ledger counts {ours}, the engine's scheduler statistics "
        f"{ours + 1} (verification steps {len(run.steps)}, padded rows 0, discarded rows 0)",
    )


def test_acceptances_at_the_wrong_position(run):
    per_pos = run.scheduler_stats.num_accepted_tokens_per_pos
    ours = list(per_pos)
    per_pos[0] -= 1
    per_pos[2] += 1
    fails(
        run,
        f"accounting: accepted tokens per position: the ledger counts {ours}, the engine's "
        f"scheduler statistics {per_pos} (verification steps {len(run.steps)}, padded rows 0, "
        "discarded rows 0)",
    )


def test_padded_rows_are_in_the_engines_count_but_are_no_steps(run):
    run.padded_rows, run.padded_drafts = 1, 3
    run.scheduler_stats.num_drafts += 1
    run.scheduler_stats.num_draft_tokens += 3
    run.check("accounting")


def test_another_token_was_committed_than_sampled(run):
    step = run.steps[2]
    run.requests[step.index].output[step.position - 5] = 9
    committed = [9, *[2] * step.accepted]
    fails(
        run,
        f"accounting: request {step.request}, step {step.step}, position {step.position}: "
        f"committed {committed}, the verification emitted {[2] * (step.accepted + 1)}",
    )
