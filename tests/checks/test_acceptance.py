"""The acceptance check passes what a correct sampler leaves and catches each way to be wrong."""

import re

import pytest


def fails(run, message):
    with pytest.raises(AssertionError, match=f"^{re.escape(message)}$"):
        run.check("acceptance")
    assert "acceptance" not in run.checked


def test_a_correct_run_passes(run):
    assert {s.accepted for s in run.steps} >= {0, 3}
    run.check("acceptance")
    assert run.checked == {"acceptance": "passed"}


def test_one_draft_too_many(run, edit):
    i = next(i for i, s in enumerate(run.steps) if s.accepted < 3)
    step = run.steps[i]
    edit(run, i, accepted=step.accepted + 1)
    fails(
        run,
        f"acceptance: request {step.request}, step {step.step}, position {step.position}: "
        f"expected {step.planned} accepted drafts (plan {step.planned}, drafts in the row 3), "
        f"seen {step.planned + 1}",
    )


def test_another_decision_than_the_plan(run, edit):
    i = next(i for i, s in enumerate(run.steps) if s.accepted == 3)
    step = edit(run, i, planned=1, accepted=1)
    fails(
        run,
        f"acceptance: request {step.request}, step {step.step}, position {step.position}: "
        f"the plan ({run.plans[0].describe()}) decides 3, the sampler 1",
    )


def test_a_placeholder_accepted(run, edit):
    """The row held two real drafts, the plan says three: two is the most."""
    i = next(i for i, s in enumerate(run.steps) if s.planned == 3)
    step = edit(run, i, drafted=2, accepted=3)
    fails(
        run,
        f"acceptance: request {step.request}, step {step.step}, position {step.position}: "
        "expected 2 accepted drafts (plan 3, drafts in the row 2), seen 3",
    )
    edit(run, i, accepted=2)
    run.check("acceptance")


def test_a_step_lost(run):
    lost = next(i for i, s in enumerate(run.steps) if s.request == 0 and s.step == 2)
    del run.steps[lost]
    after = next(s for s in run.steps if s.request == 0 and s.step == 3)
    fails(
        run,
        f"acceptance: request 0, step 3, position {after.position}: "
        "expected step 2 next, the ledger has 3",
    )


def test_decisions_of_another_request(run, edit):
    """Keyed by batch row instead of request: the rows of two requests changed places."""
    for i, step in enumerate(run.steps):
        if step.request == 1:
            edit(run, i, request=0)
        elif step.request == 0:
            edit(run, i, request=1)
    with pytest.raises(AssertionError, match=r"^acceptance: request \d, step \d+, .* decides"):
        run.check("acceptance")


def test_discarded_rows_are_judged_too(run):
    run.discarded.append(run.steps.pop())
    run.check("acceptance")


def test_no_verification_step_is_a_skip_with_its_reason(run):
    run.steps.clear()
    run.check("acceptance")
    assert run.checked == {"acceptance": "skipped: no verification step in this run"}


def test_unknown_names_are_refused(run):
    available = "available: outputs, acceptance, accounting, scheduler, kv_cache, drafter"
    with pytest.raises(ValueError, match=f"^'acceptence' is not a check; {available}$"):
        run.check("acceptence")
