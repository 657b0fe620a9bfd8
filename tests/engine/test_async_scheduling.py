"""Asynchronous scheduling on the CPU: the real thing, with a step in flight."""

import pytest

PROMPTS = [[1, 5, 7, 9], [20, 21, 22], list(range(30, 70))]


@pytest.fixture
def engine(spec_engine_factory):
    return spec_engine_factory(async_scheduling=True)


@pytest.mark.acceptance_rate(0.5)
def test_steps_overlap_and_decide_alike(engine, spec_engine):
    assert engine.info["async_scheduling"]
    assert not spec_engine.info["async_scheduling"]
    run = engine.generate(PROMPTS, max_tokens=24)
    kinds = [event.kind for event in run.core]
    assert kinds[:3] == ["schedule", "schedule", "update"]
    assert any(request.placeholders for event in run.core for request in event.requests)
    assert run.discarded, "a step is in flight when a request ends"
    decided = {(s.request, s.step): s.accepted for s in run.steps}
    sync = spec_engine.generate(PROMPTS, max_tokens=24)
    assert decided == {(s.request, s.step): s.accepted for s in sync.steps}
    assert not sync.discarded


@pytest.mark.acceptance_rate(0.5, lossless=True)
def test_lossless(engine):
    run = engine.generate(PROMPTS, max_tokens=24)
    run.check()
    assert set(run.checked.values()) == {"passed"}
    assert run.outputs == [request.expected for request in run.requests]


@pytest.mark.acceptance_rate(0.5)
def test_nothing_is_in_flight_at_rest(engine):
    run = engine.generate(PROMPTS[:1], max_tokens=9)
    assert run.core[-1].kind == "update"
    assert sum(e.kind == "update" for e in run.core) == sum(e.kind == "schedule" for e in run.core)
    assert run.kv_cache.pool_after == run.kv_cache.pool_before
