"""Scripts on the engine: each request accepts what its script says, step by step."""

import pytest

from pytest_synthaccept.errors import AcceptanceError, EngineError

PROMPTS = [[1, 5, 7, 9], [20, 21, 22]]


def accepted(run, request):
    """Of all but the last step, which max_tokens may cut."""
    return [step.accepted for step in run.steps if step.request == request][:-1]


@pytest.mark.acceptance_rate(script=[3, 0, 2])
@pytest.mark.parametrize("lossless", [False, True])
def test_one_for_all(spec_engine, lossless):
    run = spec_engine.generate(PROMPTS, max_tokens=24, lossless=lossless)
    for request in (0, 1):
        counts = accepted(run, request)
        assert counts == ([3, 0, 2] * 9)[: len(counts)]
        assert len(counts) > 5
    assert run.acceptance.requested == "script=[3, 0, 2]"


@pytest.mark.acceptance_rate(script={7: [3, 0], 2: [1]})
def test_one_per_request_key(spec_engine):
    run = spec_engine.generate(PROMPTS, max_tokens=20, keys=[2, 7])
    assert set(accepted(run, 2)) == {1}
    assert accepted(run, 7)[:4] == [3, 0, 3, 0]


@pytest.mark.acceptance_rate(script={0: [3]})
def test_a_request_without_a_script_is_refused(spec_engine):
    with pytest.raises(EngineError) as error:
        spec_engine.generate(PROMPTS)
    assert str(error.value) == (
        "request key 1 is not in the script={0: [3]}; give it counts there, or give keys= that are"
    )


@pytest.mark.acceptance_rate(0.5)
def test_a_count_above_k(spec_engine):
    with pytest.raises(AcceptanceError) as error:
        spec_engine.set_acceptance(script=[4])
    assert str(error.value).startswith("set_acceptance: script[0]=4 is above K=3; a script is ")


@pytest.mark.acceptance_rate(script=[0])
def test_another_script_while_a_run_is_open(spec_engine):
    with spec_engine.run() as run:
        run.add(PROMPTS[0], max_tokens=30)
        run.step(4)
        spec_engine.set_acceptance(script=[3])
    by_version = {step.plan_version: step.accepted for step in run.steps}
    assert by_version == {0: 0, 1: 3}
