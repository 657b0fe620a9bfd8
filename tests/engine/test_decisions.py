"""A decision depends on (seed, request key, step) alone: not on batch, slot, process or rank."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.acceptance_rate(0.5, seed=11)

TOKENS = 60


@pytest.fixture
def reference(spec_engine, prompts):
    return spec_engine.generate(prompts, max_tokens=TOKENS)


def test_twice_in_a_row(spec_engine, prompts, reference, decision_table):
    again = spec_engine.generate(prompts, max_tokens=TOKENS)
    assert decision_table(again) == decision_table(reference)
    assert again.outputs == reference.outputs


def test_another_order_under_the_same_keys(spec_engine, prompts, reference, assert_same_decisions):
    order = [4, 0, 5, 2, 1, 3]
    run = spec_engine.generate([prompts[i] for i in order], max_tokens=TOKENS, keys=order)
    assert_same_decisions(run, reference)
    assert [run.outputs[order.index(i)] for i in range(6)] == reference.outputs


def test_one_request_at_a_time(spec_engine, prompts, reference, assert_same_decisions):
    for key, prompt in enumerate(prompts):
        run = spec_engine.generate([prompt], max_tokens=TOKENS, keys=[key])
        assert_same_decisions(run, reference, least=15)


def test_another_max_num_seqs(spec_engine_factory, prompts, reference, assert_same_decisions):
    run = spec_engine_factory(max_num_seqs=2).generate(prompts, max_tokens=TOKENS)
    assert max(len(step.rows) for step in run.scheduler) == 2
    assert_same_decisions(run, reference)


def test_preemption(spec_engine_factory, prompts, reference, assert_same_decisions):
    pool = {"num_gpu_blocks_override": 10, "block_size": 32, "max_model_len": 256}
    # vLLM 0.26 leaves placeholders standing when it preempts under asynchronous scheduling.
    engine = spec_engine_factory(**pool, async_scheduling=False)
    run = engine.generate(prompts, max_tokens=TOKENS)
    assert any(step.preempted for step in run.scheduler), "the pool was large enough: no preemption"
    assert_same_decisions(run, reference)
    assert run.kv_cache.pool_before == run.kv_cache.pool_after
    # A resume yields a token without verification, so the tables differ in length.
    assert len(run.steps) != len(reference.steps)


def test_chunked_prefill(spec_engine_factory, prompts, reference, assert_same_decisions):
    engine = spec_engine_factory(max_num_batched_tokens=64, max_num_seqs=8)
    run = engine.generate(prompts, max_tokens=TOKENS)
    kinds = {row.kind for step in run.scheduler for row in step.rows}
    assert "chunk" in kinds, "no prompt was prefilled in chunks"
    assert_same_decisions(run, reference)


def test_a_separate_engine_core(
    monkeypatch, spec_engine_factory, prompts, reference, assert_same_decisions
):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    engine = spec_engine_factory()
    assert engine.info["engine_core"] == "separate process"
    run = engine.generate(prompts, max_tokens=TOKENS)
    assert_same_decisions(run, reference)


def test_tensor_parallel(spec_engine_factory, prompts, reference, assert_same_decisions):
    engine = spec_engine_factory(tensor_parallel_size=2)
    assert engine.info["ranks"] == 2
    run = engine.generate(prompts, max_tokens=TOKENS)
    assert_same_decisions(run, reference)


def test_another_seed_decides_otherwise(spec_engine, prompts, reference, decision_table):
    spec_engine.set_acceptance(0.5, seed=12)
    other = decision_table(spec_engine.generate(prompts, max_tokens=TOKENS))
    assert other != decision_table(reference)


@pytest.mark.parametrize("sampling", ["exact", "random"])
def test_the_same_on_every_device(spec_engine, prompts, decision_table, sampling):
    """The file is what the kernels decided in Triton's interpreter; it binds every GPU."""
    spec_engine.set_acceptance(0.5, seed=11, sampling=sampling)
    table = decision_table(spec_engine.generate(prompts, max_tokens=TOKENS))
    written = json.loads(Path(__file__).with_name("decisions.json").read_text())[sampling]
    assert len(table) > 100
    for (key, step), (planned, _) in table.items():
        assert planned == int(written[str(key)][step]), (key, step)
