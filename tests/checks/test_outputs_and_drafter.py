"""The checks of lossless runs, on plain data: what passes, what is named, what is skipped."""

from dataclasses import replace

import pytest


@pytest.fixture
def lossless(run):
    """The run of a correct engine, its reference beside it."""
    run.lossless = True
    run.info = run.info | {"block_size": 4, "dtype": "float32"}
    for request in run.requests:
        request.output = list(range(100, 100 + request.limit))
        request.expected = list(request.output)
        request.margins = [0.5] * request.limit
    run.steps = [replace(step, proposed=(step.position, 7, 8)) for step in run.steps]
    run._reference = {(s.index, s.position): s.proposed for s in run.steps}
    return run


def message(run, check):
    with pytest.raises(AssertionError) as failure:
        run.check(check)
    assert check not in run.checked
    return str(failure.value)


def test_a_correct_run_passes(lossless):
    lossless.check()
    assert lossless.checked == dict.fromkeys(
        ("outputs", "acceptance", "accounting", "drafter"), "passed"
    )


def test_a_synthetic_run_is_not_judged(run):
    run.check()
    assert set(run.checked) == {"acceptance", "accounting"}
    run.check("outputs", "drafter")
    assert run.checked["outputs"] == "skipped: not a lossless run"
    assert run.checked["drafter"] == "skipped: not a lossless run"


def test_another_token(lossless):
    step = [s for s in lossless.steps if s.request == 0][2]
    at = step.position - 5
    lossless.requests[0].output[at] = 7
    assert message(lossless, "outputs") == (
        f"outputs: request 0: output token {at} is 7, the target alone says {100 + at}; committed "
        f"by step 2 ({step.accepted} of 3 drafts accepted), position {step.position} "
        f"(block {step.position // 4}, slot {step.position % 4}); "
        "the target's logprob margin there is 0.5"
    )


def test_a_near_tie_is_named_and_does_not_pass(lossless):
    lossless.requests[0].output[3] = 7
    lossless.requests[0].margins[3] = 1e-4
    assert message(lossless, "outputs").endswith("margin there is 0.0001: a near-tie")
    lossless.info["dtype"] = "bfloat16"
    lossless.requests[0].margins[3] = 0.2
    assert message(lossless, "outputs").endswith("margin there is 0.2")


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
