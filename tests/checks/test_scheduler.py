"""The scheduler check, rule by rule: each catches the one thing that is wrong."""

from dataclasses import replace

import pytest

from pytest_synthaccept.run import CoreRow


def fails(run, message):
    with pytest.raises(AssertionError) as caught:
        run.check("scheduler")
    assert str(caught.value) == message


def change(run, number, i, **changes):
    """Change row ``i`` of engine step ``number``."""
    rows = list(run.scheduler[number].rows)
    rows[i] = replace(rows[i], **changes)
    run.scheduler[number] = replace(run.scheduler[number], rows=tuple(rows))


def test_a_correct_run_passes(run):
    run.check("scheduler")
    assert run.checked == {"scheduler": "passed"}


def test_nothing_ran(run):
    run.scheduler.clear()
    run.check("scheduler")
    assert run.checked == {"scheduler": "skipped: no engine step in this run"}


def test_another_process_is_judged_by_half(run):
    run.core = []
    run.check("scheduler")
    assert run.checked["scheduler"] == (
        "skipped: the engine core is another process, its counters were not seen; the rest holds"
    )


def test_token_budget(run):
    run.info["max_num_batched_tokens"] = 9
    fails(run, "scheduler: engine step 0: 10 tokens scheduled, the budget is 9")


def test_number_of_requests(run):
    run.info["max_num_seqs"] = 1
    fails(run, "scheduler: engine step 0: 2 requests, max_num_seqs is 1")


def test_drafts_on_a_prefill_chunk(run):
    change(run, 0, 1, tokens=3, drafts=1, kind="chunk")
    fails(
        run,
        "scheduler: request 1, engine step 0: 1 drafts scheduled on a prefill chunk, "
        "0 of 5 prompt tokens computed",
    )


def test_more_drafts_than_the_drafter_makes(run):
    change(run, 1, 0, tokens=5, drafts=4)
    fails(run, "scheduler: request 0, engine step 1: 4 drafts scheduled, the drafter makes 3")


def test_no_tokens_scheduled(run):
    change(run, 1, 0, tokens=0)
    fails(run, "scheduler: request 0, engine step 1: 0 tokens scheduled")


def test_the_end_of_the_context(run):
    run.info["max_model_len"] = 9
    fails(
        run,
        "scheduler: request 0, engine step 1: 5 computed + 4 scheduled + 1 sampled tokens, "
        "max_model_len is 9",
    )


def test_drafts_lost_without_a_reason(run):
    change(run, 1, 0, tokens=2, drafts=1)
    lost = "scheduler: request 0, engine step 1: 1 of 3 drafts scheduled, though neither the "
    fails(
        run,
        f"{lost}token budget nor max_model_len=64 stood in the way (5 tokens computed)",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_batched_tokens", 10),
        ("max_model_len", 8),
        ("long_prefill_token_threshold", 2),
        ("draft_slots", 16),
    ],
)
def test_drafts_lost_for_a_reason(run, name, value):
    run.scheduler[2:] = []
    change(run, 1, 0, tokens=2, drafts=1)
    if name == "max_num_batched_tokens":
        change(run, 1, 1, tokens=8, computed=5, kind="chunk", prefill_len=99, drafts=0)
    if name == "max_model_len":
        change(run, 1, 1, tokens=2, drafts=1)
    run.info[name] = value
    run.core = []
    run.check("scheduler")


@pytest.mark.parametrize(("model", "passes"), [("target", 1), ("drafter", 3)])
def test_forward_passes(run, model, passes):
    run.scheduler[3] = replace(run.scheduler[3], **{f"{model}_forwards": passes + 1})
    fails(
        run,
        f"scheduler: engine step 3: {passes + 1} forward passes of the {model}, expected {passes}",
    )


def test_past_the_limit(run):
    run.requests[1].limit -= 1
    fails(run, "scheduler: request 1: 9 tokens, the limit is 8")


def test_past_a_stop(run):
    run.requests[1].output[4] = 50
    run.requests[1].stop_token_ids = (50,)
    run.requests[1].min_tokens = 6
    run.check("scheduler")
    run.checked.clear()
    run.requests[1].min_tokens = 5
    fails(
        run,
        "scheduler: request 1: output token 4 is the stop token 50, yet 4 more tokens follow",
    )


@pytest.mark.parametrize(("asynchronous", "spare"), [(False, 0), (True, 1)])
def test_steps_after_the_end(run, asynchronous, spare):
    run.info["async_scheduling"] = asynchronous
    run.discarded = [run.steps[-1]] * (spare + 1)
    fails(
        run,
        f"scheduler: request 0: {spare + 1} verification steps after its end, expected {spare}",
    )


def test_drafts_of_another_request(run, edit):
    step = edit(run, 4, verified=(2, 7, 2))
    fails(
        run,
        f"scheduler: request {step.request}, step {step.step}, engine step {step.engine_step}: "
        "verified the drafts [2, 7, 2], but those made for it were [2, 2, 2]: "
        "they belong to another request or an older step",
    )


# --- counters of the core: event 2 is the schedule of engine step 1, event 3 its update ---


def test_computed_tokens_after_a_rollback(run, core_edit):
    request = run.core[3].requests[0]
    core_edit(run, 3, 0, computed=request.computed + 1)
    fails(
        run,
        f"scheduler: request 0, update of engine step 1: num_computed_tokens is "
        f"{request.computed + 1}, expected {request.computed} ({request.committed} committed, "
        "0 scheduled in steps in flight)",
    )


def test_nothing_came_back(run, core_edit):
    core_edit(run, 3, 0, committed=6, computed=9)
    fails(
        run,
        "scheduler: request 0, engine step 1: 4 tokens scheduled (3 drafts), none committed",
    )


def test_placeholders(run, core_edit):
    core_edit(run, 3, 1, placeholders=-1)
    fails(run, "scheduler: request 1, update of engine step 1: -1 output placeholders")
    core_edit(run, 3, 1, placeholders=2)
    fails(
        run,
        "scheduler: request 1, update of engine step 1: 2 output placeholders, "
        "expected 0 for the steps in flight",
    )
    core_edit(run, 3, 1, placeholders=2, state="preempted")
    fails(
        run,
        "scheduler: request 1, update of engine step 1: preempted, with 2 output placeholders",
    )


def test_placeholders_of_a_step_in_flight(run):
    run.info["async_scheduling"] = True
    fails(
        run,
        "scheduler: request 0, schedule of engine step 0: 0 output placeholders, "
        "expected 1 for the steps in flight",
    )


def test_a_running_request_is_passed_over(run):
    """From engine step 2 on request 1 gets nothing, though it runs."""
    waits = run.core[3].requests[1]
    for n in range(4, len(run.core)):
        event = run.core[n]
        rows = tuple(CoreRow(r.index, 0, r.tokens, r.drafts, r.computed) for r in event.rows[:1])
        others = tuple(r for r in event.requests if r.index == 0)
        run.core[n] = replace(event, rows=rows, requests=(*others, waits))
    fails(
        run,
        "scheduler: request 1, before engine step 4: running, but passed over 3 times in a row "
        f"with room in the budget ({waits.computed} tokens computed, {waits.committed} committed)",
    )


def test_a_full_budget_is_a_reason_to_wait(run):
    test_a_running_request_is_passed_over(run)
    run.info |= {"max_num_batched_tokens": 10, "draft_slots": 2}
    run.check("scheduler")
