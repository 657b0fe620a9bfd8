"""The checks of lossless runs, on plain data: what passes, what is named, what is skipped."""

from dataclasses import replace

import pytest

from pytest_synthaccept.checks import CHECKS
from pytest_synthaccept.errors import Inconclusive


def message(run, check):
    with pytest.raises(AssertionError) as failure:
        run.check(check)
    assert check not in run.checked
    return str(failure.value)


def test_a_correct_run_passes(lossless):
    lossless.check()
    assert lossless.checked == dict.fromkeys(CHECKS, "passed")


def test_a_synthetic_run_is_not_judged(run):
    run.check()
    assert set(run.checked) == set(CHECKS) - {"outputs", "drafter"}
    run.check("outputs", "drafter")
    assert run.checked["outputs"] == "skipped: not a lossless run"
    assert run.checked["drafter"] == "skipped: not a lossless run"


def test_another_token(lossless):
    step = [s for s in lossless.steps if s.request == 0][2]
    at = step.position - 5
    lossless.requests[0].output[at] = 7
    assert message(lossless, "outputs") == (
        f"outputs: request 0: output token {at} is 7, the target alone says {100 + at}; committed "
        f"by step 2 ({step.accepted} of 3 drafts accepted) in engine step {step.engine_step}, "
        f"position {step.position} (block {step.position // 4}, slot {step.position % 4}); "
        "the target's logprob margin there is 0.5"
    )


def test_a_near_tie_is_inconclusive(lossless):
    lossless.requests[0].output[3] = 7
    lossless.requests[0].margins[3] = 1e-4
    for _ in range(2):  # it does not pass the second time either
        with pytest.raises(Inconclusive) as outcome:
            lossless.check("outputs")
        assert str(outcome.value).startswith("outputs: request 0: output token 3 is 7, ")
        assert str(outcome.value).endswith(
            "margin there is 0.0001, a near-tie (below 0.001 in float32): 1 request differ so; "
            "take prompts with wider margins (SpecEngine.strong_prompts), or float32"
        )
    assert lossless.checked["outputs"] == f"inconclusive: {outcome.value}"


def test_the_threshold_is_the_dtypes(lossless):
    lossless.requests[0].output[3] = 7
    lossless.info["dtype"] = "bfloat16"
    lossless.requests[0].margins[3] = 0.2
    assert message(lossless, "outputs").endswith("margin there is 0.2")
    lossless.requests[0].margins[3] = 0.05
    with pytest.raises(Inconclusive):
        lossless.check("outputs")


def test_a_real_difference_outweighs_a_near_tie(lossless):
    lossless.requests[0].output[3] = 7
    lossless.requests[0].margins[3] = 1e-4
    lossless.requests[1].output[2] = 7
    assert message(lossless, "outputs").startswith("outputs: request 1: output token 2 is 7, ")


def test_after_a_wrong_token_a_request_follows_no_plan(lossless):
    """Its drafts are rewritten by the text that it has left: acceptance and drafts are void."""
    step = [s for s in lossless.steps if s.request == 0][2]
    lossless.requests[0].output[step.position - 6] = 7
    i = lossless.steps.index(step)
    lossless.steps[i] = replace(step, accepted=(step.planned + 1) % 4, proposed=(1, 1, 1))
    lossless.check("acceptance", "drafter")
    lossless.checked.clear()
    lossless.steps[0] = replace(lossless.steps[0], proposed=(1, 1, 1))
    assert ", step 0, " in message(lossless, "drafter")


def test_a_token_missing_at_the_end_and_one_too_many(lossless):
    lossless.requests[1].output.pop()
    assert message(lossless, "outputs").startswith(
        "outputs: request 1: output token 8 is missing, the target alone says 108; "
    )
    lossless.requests[1].output += [108, 109]
    assert message(lossless, "outputs").startswith(
        "outputs: request 1: output token 9 is 109, the target alone says missing; "
    )


def test_an_aborted_request_is_judged_as_far_as_it_went(lossless):
    request = lossless.requests[0]
    request.finish_reason = "abort"
    del request.output[10:]
    lossless.check("outputs")
    lossless.checked.clear()
    request.output[9] = 7
    assert message(lossless, "outputs").startswith("outputs: request 0: output token 9 is 7, ")


def test_another_proposal_at_the_same_prefix(lossless):
    mine = [i for i, s in enumerate(lossless.steps) if s.request == 0]
    before, after = lossless.steps[mine[0]], lossless.steps[mine[1]]
    lossless.steps[mine[1]] = replace(after, proposed=(after.position, 7, 9))
    assert message(lossless, "drafter") == (
        f"drafter: request 0, step 1, position {after.position}, after {before.accepted} accepted "
        f"drafts: proposed [{after.position}, 7, 9], where the same prefix without accepted "
        f"drafts gets [{after.position}, 7, 8]"
    )


def test_the_first_proposal_came_from_the_prefill(lossless):
    lossless.steps[0] = replace(lossless.steps[0], proposed=(1, 1, 1))
    assert ", step 0, position 6, after its prefill: proposed [1, 1, 1], where " in message(
        lossless, "drafter"
    )


def test_a_row_short_of_drafts_is_compared_as_far_as_it_goes(lossless):
    lossless.steps[3] = replace(lossless.steps[3], proposed=lossless.steps[3].proposed[:1])
    lossless.check("drafter")


def test_no_reference_no_verdict(lossless):
    lossless._reference = None
    lossless.check("drafter")
    assert lossless.checked["drafter"] == "skipped: no engine to make the reference run with"
    lossless.checked.clear()
    lossless._reference = {(0, 10**6): (1, 2, 3)}
    lossless.check("drafter")
    assert lossless.checked["drafter"] == "skipped: no prefix in common with the reference run"


def differing(lossless, request, *, margins, proposed=None):
    """The request's second step with another proposal at draft 1, its margins as given."""
    i = [i for i, s in enumerate(lossless.steps) if s.request == request][1]
    step = lossless.steps[i]
    other = proposed or (step.proposed[0], 9, 9)
    lossless.steps[i] = replace(step, proposed=other, margins=margins)
    return lossless.steps[i]


def test_a_near_tie_of_the_drafter_is_inconclusive(lossless):
    lossless.info["dtype"] = "bfloat16"
    step = differing(lossless, 0, margins=(0.5, 0.011, 0.5))
    with pytest.raises(Inconclusive) as verdict:
        lossless.check("drafter")
    compared = len(lossless.steps)
    assert str(verdict.value) == (
        f"drafter: request 0, step 1, position {step.position}, after 2 accepted drafts: proposed "
        f"[{step.position}, 9, 9], where the same prefix without accepted drafts gets "
        f"[{step.position}, 7, 8]; the drafter's relative margin at draft 1 is 0.011, a near-tie "
        f"(below 0.02 in bfloat16): 1 of {compared} prefixes differ so; take other prompts, or "
        "float32"
    )


@pytest.mark.parametrize(
    ("dtype", "margins", "end"),
    [
        ("bfloat16", (0.001, 0.03, 0.001), "; the drafter's relative margin at draft 1 is 0.03"),
        ("float16", (0.001, 0.03, 0.001), "; the drafter's relative margin at draft 1 is 0.03"),
        ("float32", (0.0, 0.001, 0.0), "; the drafter's relative margin at draft 1 is 0.001"),
        ("bfloat16", (), "; its margin there is unknown (enforce_eager=True tells)"),
        ("bfloat16", (0.0, float("nan"), 0.0), "; the drafter's relative margin at draft 1 is nan"),
        ("float32", (), "7, 8]"),
        ("int4", (0.0, 0.0, 0.0), "; the drafter's relative margin at draft 1 is 0"),
    ],
)
def test_what_is_no_near_tie_fails(lossless, dtype, margins, end):
    lossless.info["dtype"] = dtype
    differing(lossless, 0, margins=margins)
    assert message(lossless, "drafter").endswith(end)


def test_a_near_tie_does_not_hide_a_difference(lossless):
    lossless.info["dtype"] = "bfloat16"
    differing(lossless, 0, margins=(0.5, 0.001, 0.5))
    differing(lossless, 1, margins=(0.5, 0.5, 0.001))
    assert message(lossless, "drafter").startswith("drafter: request 1, step 1, ")


def test_margins_may_come_from_another_run(lossless):
    from pytest_synthaccept.checks.drafter import compare_proposals

    lossless.info["dtype"] = "bfloat16"
    step = differing(lossless, 0, margins=())
    place = (step.index, step.position)
    reference = lossless.reference_proposals()
    with pytest.raises(Inconclusive):
        compare_proposals(lossless, reference, "alone", {place: (0.5, 0.001, 0.5)})
    with pytest.raises(AssertionError, match=r"margin at draft 1 is 0\.5$"):
        compare_proposals(lossless, reference, "alone", {place: (0.5, 0.5, 0.001)})
    with pytest.raises(AssertionError, match="unknown"):
        compare_proposals(lossless, reference, "alone", {})
