"""Poison: what a request has not written yet is full of it, in every layer, and nobody minds."""

import pytest

pytestmark = pytest.mark.acceptance_rate(0.5, lossless=True)


def caches(engine):
    core = engine.llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner.kv_caches


@pytest.mark.parametrize(("poison", "value"), [(True, 1e4), (False, None)])
def test_a_new_block_is_full_of_it(spec_engine, poison, value):
    """A prompt of 30 tokens holds a second block for its drafts, which the first step leaves."""
    spec_engine.poison = poison
    with spec_engine.run() as run:
        run.add([7] * 30, max_tokens=4)
        run.step()
        block = run.core[0].requests[0].blocks[0][1]
        filled = [bool((cache[block] == 1e4).all()) for cache in caches(spec_engine)]
    assert filled == [value is not None] * 3


def test_the_reference_is_filled_with_another_value(spec_engine, monkeypatch):
    """A slot that is read by mistake in every run would spoil run and reference alike."""
    begun = []
    call_workers = spec_engine.call_workers

    def spy(method, *args):
        if method == "synthaccept_begin":
            begun.append(args[2:3])
        return call_workers(method, *args)

    monkeypatch.setattr(spec_engine, "call_workers", spy)
    run = spec_engine.generate([[3, 1, 4, 1, 5, 9, 2, 6]], max_tokens=9)
    run.check("drafter")
    assert begun[:2] == [(1e4,), (-1e4,)]
