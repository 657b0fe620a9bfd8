"""The tiny models feel an error: one wrong KV entry shows in what the engine says."""

import itertools
import random

import pytest
import torch

from pytest_synthaccept.engine import seam
from pytest_synthaccept.engine.config import Drafter

METHODS = ["eagle", "eagle3", "draft_model", "mtp"]
TRIALS = 40
PER_RUN = 8
LOST_AT = 2  # the engine step before which it happens: all prefills are through
KNOWN = 1 + 2 * (LOST_AT - 1)  # tokens by then: one of the prefill, two a step
WITHIN = 16  # tokens after the loss


@pytest.fixture
def spec_drafter(request):
    # The target says the same whatever drafts for it; one draft a step is the fastest.
    return getattr(request, "param", Drafter("eagle", num_speculative_tokens=1))


def lose(monkeypatch, engine, layer_names, draw):
    """Before one step, an entry of each request is another token's."""
    worker = worker_of(engine)
    runner = worker.model_runner
    execute_model, steps = runner.execute_model, itertools.count()
    layers = dict(named_layers(worker))
    size = seam.kv_block_size(worker, 0)
    generator = torch.Generator().manual_seed(draw.randrange(2**31))

    def losing(output, *args, **kwargs):
        if output.num_scheduled_tokens and next(steps) == LOST_AT:
            for slot in runner.req_states.req_id_to_index.values():
                position = draw.randrange(int(seam.num_computed_tokens(worker)[slot]))
                block = int(seam.block_table(worker, 0)[slot, position // size])
                at = torch.tensor([block * size + position % size])
                overwrite(layers[draw.choice(layer_names)], at, generator)
        return execute_model(output, *args, **kwargs)

    monkeypatch.setattr(runner, "execute_model", losing)


def worker_of(engine):
    return engine.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


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


def runs(engine, layer_names):
    """(the run, the same with an entry wrong per request), for as many trials as asked for."""
    draw = random.Random(1)
    # An accepted token is the draft, so that every second token alone is the target's word; but
    # half the steps are saved, and the drafter is asked often enough.
    engine.set_acceptance(script=[1], lossless=True)
    for _ in range(TRIALS // PER_RUN):
        prompts = prompts_of(draw)
        clean = engine.generate(prompts, max_tokens=KNOWN + WITHIN)
        engine.llm.reset_prefix_cache()
        with pytest.MonkeyPatch.context() as monkeypatch:
            lose(monkeypatch, engine, layer_names, draw)
            spoiled = engine.generate(prompts, max_tokens=KNOWN + WITHIN)
        engine.llm.reset_prefix_cache()
        engine.runs.clear()  # spoiled on purpose
        yield clean, spoiled


def layer_names(engine, ours):
    worker = worker_of(engine)
    of_target = {n for n, m in worker.model_runner.model.named_modules() if hasattr(m, "impl")}
    return [n for n, _ in named_layers(worker) if (n in of_target) == (ours == "target")]


def test_the_target_feels_one_wrong_entry(spec_engine):
    names = layer_names(spec_engine, "target")
    assert len(names) == 2
    felt = trials = 0
    for clean, spoiled in runs(spec_engine, names):
        for before, after in zip(clean.outputs, spoiled.outputs, strict=True):
            assert after[:KNOWN] == before[:KNOWN]
            felt += after != before
            trials += 1
    print(f"target: {felt} of {trials} wrong entries felt")
    assert trials == TRIALS
    assert felt >= 0.95 * trials


@pytest.mark.parametrize("spec_drafter", [*map(Drafter, METHODS)], ids=METHODS, indirect=True)
def test_the_drafter_feels_one_wrong_entry(spec_drafter, spec_engine):
    names = layer_names(spec_engine, "drafter")
    assert len(names) == 1
    felt = trials = 0
    for clean, spoiled in runs(spec_engine, names):
        assert clean.outputs == spoiled.outputs
        for i in range(PER_RUN):
            before, after = (
                {s.position: s.proposed for s in run.steps if s.index == i}
                for run in (clean, spoiled)
            )
            assert before.keys() == after.keys()
            differ = [position for position in before if before[position] != after[position]]
            # What was proposed before it happened cannot feel it.
            assert not differ or min(differ) >= min(before) + KNOWN
            felt += bool(differ)
            trials += 1
    print(f"{spec_drafter.method}: {felt} of {trials} wrong entries felt")
    assert trials == TRIALS
    assert felt >= 0.95 * trials
