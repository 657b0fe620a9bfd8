"""What the engine emits, and what its drafter proposes, depends on the committed tokens alone."""

import pytest

from pytest_synthaccept.checks import CHECKS

ALL_PASSED = dict.fromkeys(CHECKS, "passed")


def all_plans_agree(engine, prompts, plans, max_tokens=40):
    """Run every plan; outputs are the target's and proposals those of the reference."""
    runs = {}
    for name, plan in plans.items():
        engine.set_acceptance(**plan, lossless=True)
        runs[name] = run = engine.generate(prompts, max_tokens=max_tokens)
        run.check()
        assert run.checked == ALL_PASSED, name
    outputs = [run.outputs for run in runs.values()]
    assert all(output == outputs[0] for output in outputs)
    return runs


def test_history_does_not_show(spec_engine, prompts, plans):
    runs = all_plans_agree(spec_engine, prompts, plans)
    assert runs["full"].acceptance.rate == 1
    assert runs["zero"].acceptance.rate == 0
    assert runs["partial"].acceptance.per_position == (1, 0, 0)
    assert {s.accepted for s in runs["mixed"].steps} == {0, 1, 2, 3}


def test_without_prefix_caching_and_with_chunked_prefill(spec_engine_factory, prompts, plans):
    engine = spec_engine_factory(
        enable_prefix_caching=False, max_num_batched_tokens=64, max_num_seqs=8
    )
    runs = all_plans_agree(engine, prompts, plans)
    kinds = {row.kind for run in runs.values() for step in run.scheduler for row in step.rows}
    assert "chunk" in kinds


def test_under_block_pool_pressure(spec_engine_factory, prompts, plans):
    engine = spec_engine_factory(num_gpu_blocks_override=9, block_size=32, max_model_len=224)
    runs = all_plans_agree(engine, prompts, plans, max_tokens=60)
    assert all(any(step.preempted for step in run.scheduler) for run in runs.values())


def test_the_same_prompts_again_from_the_prefix_cache(spec_engine, prompts, plans):
    long = [list(range(100, 180)), [*range(100, 164), 7]]
    for _ in range(2):
        all_plans_agree(spec_engine, long, plans, max_tokens=20)
    spec_engine.set_acceptance(0.5, lossless=True)
    again = spec_engine.generate(long, max_tokens=20)
    assert again.scheduler[0].rows[0].computed > 0, "no prefix was cached"


@pytest.mark.acceptance_rate(0.5, lossless=True)
def test_the_marker_makes_runs_lossless(spec_engine, prompts):
    run = spec_engine.generate(prompts[:2], max_tokens=20)
    assert run.lossless
    assert run.outputs == [request.expected for request in run.requests]
    synthetic = spec_engine.generate(prompts[:2], max_tokens=20, lossless=False)
    assert not synthetic.lossless
    assert synthetic.outputs != run.outputs


@pytest.mark.acceptance_rate(1.0, lossless=True)
def test_stop_token_and_penalties(spec_engine, prompts):
    from vllm import SamplingParams

    free = spec_engine.generate(prompts[:1], max_tokens=24)
    stop = free.outputs[0][9]
    first = free.outputs[0].index(stop)
    params = [
        SamplingParams(temperature=0, stop_token_ids=[stop], ignore_eos=True),
        SamplingParams(temperature=0, repetition_penalty=1.3, ignore_eos=True),
    ]
    run = spec_engine.generate(prompts[:2], max_tokens=24, sampling_params=params)
    run.check("outputs")
    assert run.outputs[0] == free.outputs[0][: first + 1]
    assert run.requests[0].finish_reason == "stop"


@pytest.mark.acceptance_rate(0.5, lossless=True)
def test_to_the_end_of_the_context(spec_engine):
    room = spec_engine.info["max_model_len"]
    run = spec_engine.generate([[5] * (room - 12)], max_tokens=100)
    assert len(run.outputs[0]) == 12


@pytest.mark.acceptance_rate(0.5, lossless=True)
def test_staggered(spec_engine, prompts):
    with spec_engine.run() as run:
        run.add(prompts[0], max_tokens=30)
        run.step(3)
        run.add(prompts[1], max_tokens=30)
        run.step(3)
        run.abort(0)
        spec_engine.set_acceptance(1.0)
    run.check()
    assert run.checked == ALL_PASSED
    assert len({step.plan_version for step in run.steps}) == 2


@pytest.mark.acceptance_rate(0.5, lossless=True)
def test_margins_of_the_drafter(spec_engine, prompts, monkeypatch):
    """As a recomputation from the very logits gives them, in each step of each request."""
    import torch

    from pytest_synthaccept.engine.worker import Recorder

    seen = []
    drafted = Recorder.drafted

    def spy(self, logits):
        seen.append(logits.clone())
        drafted(self, logits)

    monkeypatch.setattr(Recorder, "drafted", spy)
    run = spec_engine.generate(prompts[:1], max_tokens=12)
    k = spec_engine.num_speculative_tokens
    rows = [torch.stack(seen[i : i + k], 1)[0] for i in range(0, len(seen), k)]
    expected = {}
    for logits in rows:
        best = logits.float().sort(descending=True)
        leads = (best.values[:, 0] - best.values[:, 1]) / logits.abs().amax(1).float()
        expected[tuple(best.indices[:, 0].tolist())] = leads.tolist()
    assert len(run.steps) >= 3
    for step in run.steps:
        assert list(step.margins) == expected[step.proposed][: step.drafted]
        assert all(0 <= margin <= 2 for margin in step.margins)
    spec_engine.set_acceptance(0.5, lossless=False)
    synthetic = spec_engine.generate(prompts[:1], max_tokens=12)
    assert {step.margins for step in synthetic.steps} == {()}


@pytest.mark.acceptance_rate(0.5, lossless=True)
def test_temperature_is_refused(spec_engine):
    from vllm import SamplingParams

    from pytest_synthaccept.errors import EngineError

    with pytest.raises(EngineError) as error:
        spec_engine.generate([[1, 2]], sampling_params=SamplingParams(temperature=0.8))
    assert str(error.value) == (
        "prompt 0 has temperature=0.8; a lossless run compares with the target's greedy output: "
        "give temperature=0, or lossless=False"
    )
    assert spec_engine.generate([[1, 2]], max_tokens=4).outputs
