"""The tiny models feel an error: one wrong KV entry shows in what the engine says."""

import random

import pytest
import torch

from pytest_synthaccept.engine import seam
from pytest_synthaccept.engine.config import Drafter

METHODS = ["eagle", "eagle3", "draft_model"]
TRIALS = 40
PER_RUN = 8
TOKENS = 5 + 16
WITHIN = 16  # tokens after the loss
LOST_AT = 3  # the engine step before which it happens: all prefills are through


@pytest.fixture
def spec_drafter(request):
    return Drafter(getattr(request, "param", "eagle"))


@pytest.fixture
def lose(monkeypatch):
    """lose(engine, layers, draw): before one step an entry of each request is another's."""

    def planted(engine, layer_names, draw):
        worker = engine.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
        runner = worker.model_runner
        execute_model, steps = runner.execute_model, iter(range(10**6))
        layers = dict(named_layers(worker))
        generator = torch.Generator().manual_seed(0)

        def losing(output, *args, **kwargs):
            if output.num_scheduled_tokens and next(steps) == LOST_AT:
                for slot in runner.req_states.req_id_to_index.values():
                    computed = int(seam.num_computed_tokens(worker)[slot])
                    position = draw.randrange(computed)
                    block = int(seam.block_table(worker, 0)[slot, position // 32])
                    at = torch.tensor([block * 32 + position % 32])
                    overwrite(layers[draw.choice(layer_names)], at, generator)
            return execute_model(output, *args, **kwargs)

        monkeypatch.setattr(runner, "execute_model", losing)

    return planted


def overwrite(layer, slot, generator):
    """Another token's key and value: what the projections make of a normed hidden state."""
    shape = (1, layer.num_kv_heads, layer.head_size)
    key, value = (scale * torch.randn(shape, generator=generator) for scale in (2.0, 4.0))
    layer.impl.do_kv_cache_update(layer, key, value, layer.kv_cache, slot)


def named_layers(worker):
    for (layer, _), name in zip(
        seam.kv_layers(worker),
        worker.model_runner.kv_cache_config.kv_cache_groups[0].layer_names,
        strict=True,
    ):
        yield name, layer


def prompts_of(draw):
    return [[draw.randrange(512) for _ in range(draw.randrange(3, 40))] for _ in range(PER_RUN)]


def runs(engine, lose, monkeypatch, layer_names):
    """(the run, the same with an entry wrong per request), for as many trials as asked for."""
    draw = random.Random(1)
    # One draft a step: the drafter is asked often, and the run does not take for ever.
    engine.set_acceptance(script=[1], lossless=True)
    for _ in range(TRIALS // PER_RUN):
        prompts = prompts_of(draw)
        clean = engine.generate(prompts, max_tokens=TOKENS)
        with monkeypatch.context():
            lose(engine, layer_names, draw)
            engine.llm.reset_prefix_cache()
            spoiled = engine.generate(prompts, max_tokens=TOKENS)
            monkeypatch.undo()
        engine.llm.reset_prefix_cache()
        engine.runs.clear()  # spoiled on purpose
        yield clean, spoiled


def layer_names(engine, ours):
    worker = engine.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    target = worker.model_runner.model
    of_target = {n for n, m in target.named_modules() if hasattr(m, "impl")}
    return [n for n, _ in named_layers(worker) if (n in of_target) == (ours == "target")]


def test_the_target_feels_one_wrong_entry(spec_engine, lose, monkeypatch):
    names = layer_names(spec_engine, "target")
    assert len(names) == 2
    felt = trials = 0
    for clean, spoiled in runs(spec_engine, lose, monkeypatch, names):
        for before, after in zip(clean.outputs, spoiled.outputs, strict=True):
            lost_at = 1 + 2 * (LOST_AT - 1)
            assert after[:lost_at] == before[:lost_at]
            felt += after[: lost_at + WITHIN] != before[: lost_at + WITHIN]
            trials += 1
    print(f"target: {felt} of {trials} wrong entries felt")
    assert trials == TRIALS
    assert felt >= 0.95 * trials


@pytest.mark.parametrize("spec_drafter", METHODS, indirect=True)
def test_the_drafter_feels_one_wrong_entry(spec_drafter, spec_engine, lose, monkeypatch):
    names = layer_names(spec_engine, "drafter")
    assert len(names) == 1
    felt = trials = 0
    for clean, spoiled in runs(spec_engine, lose, monkeypatch, names):
        assert clean.outputs == spoiled.outputs
        for i in range(PER_RUN):
            before, after = (
                {s.position: s.proposed for s in run.steps if s.index == i}
                for run in (clean, spoiled)
            )
            felt += before != after
            trials += 1
    print(f"{spec_drafter.method}: {felt} of {trials} wrong entries felt")
    assert trials == TRIALS
    assert felt >= 0.95 * trials
