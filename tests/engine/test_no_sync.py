"""Between start and drain of a run, nothing of ours makes the host wait for the device."""

import warnings

import pytest

HOOKS = ("verify", "proposed", "scheduled", "request_added")


@pytest.fixture
def recorder(spec_engine):
    if spec_engine.info["device"] == "cpu":
        pytest.skip("a CPU has no device to wait for; tests/sampler looks at the operators used")
    return spec_engine.llm.collective_rpc(lambda worker: worker._synthaccept)[0]


@pytest.fixture
def guarded(recorder, monkeypatch):
    """Calls of each hook; a wait inside one raises."""
    import torch

    counts = dict.fromkeys(HOOKS, 0)

    def guard(name):
        hook = getattr(recorder, name)

        def call(*args, **kwargs):
            counts[name] += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "a prototype feature", says torch
                torch.cuda.set_sync_debug_mode("error")
                try:
                    return hook(*args, **kwargs)
                finally:
                    torch.cuda.set_sync_debug_mode("default")

        monkeypatch.setattr(recorder, name, call)

    for name in HOOKS:
        guard(name)
    return counts


@pytest.mark.parametrize("cost", ["lean", "faithful"])
@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.acceptance_rate(0.5)
def test_no_hook_waits(spec_engine, guarded, prompts, cost, lossless):
    spec_engine.set_acceptance(0.5, cost=cost, lossless=lossless)
    spec_engine.generate(prompts, max_tokens=8)  # what is compiled or grown at first, may wait
    before = dict(guarded)
    run = spec_engine.generate(prompts, max_tokens=40)
    assert len(run.steps) > 60
    assert all(guarded[name] > before[name] for name in HOOKS)
    run.check()


@pytest.mark.acceptance_rate(0.5)
def test_a_planted_wait_is_seen(spec_engine, recorder, guarded, monkeypatch):
    monkeypatch.setattr(recorder.state, "mark_proposed", lambda slots: slots.tolist())
    with pytest.raises(Exception, match="synchroniz"):
        spec_engine.generate([[1, 2, 3]], max_tokens=8)
