"""The example of the README: one engine, five acceptance rates, every step as planned."""

import pytest

PROMPTS = [[1, 5, 7, 9], [20, 21, 22], [300, 7, 7, 301, 9], [42]]


@pytest.mark.acceptance_rate(0.5)
def test_half_of_the_drafts_are_accepted(spec_engine):
    run = spec_engine.generate(PROMPTS, max_tokens=64)
    assert run.acceptance.rate == pytest.approx(0.5, abs=0.05)
    run.check()  # exact: every verification step accepted what the plan decided


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_any_rate_on_one_engine(spec_engine, rate):
    spec_engine.set_acceptance(rate)
    run = spec_engine.generate(PROMPTS, max_tokens=64)
    for step in run.steps:
        planned = spec_engine.plan.decide(step.request, step.step)
        assert step.accepted == min(planned, step.drafted)


def test_the_rate_changes_while_requests_run(spec_engine):
    spec_engine.set_acceptance(0.0)
    with spec_engine.run() as run:
        run.add([1, 2, 3], max_tokens=40)
        run.step(5)
        spec_engine.set_acceptance(1.0)
    first, second = ([s for s in run.steps if s.plan_version == v] for v in (0, 1))
    assert first
    assert second
    assert all(step.accepted == 0 for step in first)
    assert all(step.accepted == step.drafted for step in second)


@pytest.mark.acceptance_rate(length=2.5)
def test_acceptance_length(spec_engine):
    """Length counts the target's own token: 2.5 with K = 3 is a rate of 0.5."""
    run = spec_engine.generate(PROMPTS, max_tokens=64)
    assert run.acceptance.length == pytest.approx(2.5, abs=0.15)


@pytest.mark.acceptance_rate(rates=[0.9, 0.5, 0.2])
def test_per_position_rates(spec_engine):
    """Unconditional rates: position i was accepted, and with it all before it."""
    run = spec_engine.generate(PROMPTS, max_tokens=64)
    assert run.acceptance.per_position == pytest.approx([0.9, 0.5, 0.2], abs=0.08)
