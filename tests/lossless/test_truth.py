"""Where a lossless run has its truth from: another engine, or this one, accepting nothing."""

import pytest

from pytest_synthaccept.checks.outputs import NEAR_TIE
from pytest_synthaccept.engine import baseline
from pytest_synthaccept.errors import EngineError

pytestmark = pytest.mark.acceptance_rate(0.5, lossless=True)


@pytest.fixture
def no_second_engine(spec_engine, monkeypatch):
    """The engine under test, where an engine without a drafter does not start."""

    def refuse(config, *, speculation):
        raise EngineError("the engine did not start: ValueError: no memory is left")

    monkeypatch.setattr(baseline, "start", refuse)
    fresh = baseline.Baseline(spec_engine.config)
    monkeypatch.setattr(spec_engine, "baseline", fresh)
    yield spec_engine
    spec_engine.info.pop("baseline", None)


def test_the_engine_itself_says_the_same(spec_engine, prompts, monkeypatch, request):
    told = spec_engine.target_outputs(prompts[:3], max_tokens=20)
    engine = request.getfixturevalue("no_second_engine")
    run = engine.generate(prompts[:3], max_tokens=20)
    assert run.outputs == told
    run.check()
    assert set(run.checked.values()) == {"passed"}
    assert run.info["baseline"] == (
        "the engine itself, with nothing accepted (an engine without drafter did not start: "
        "the engine did not start: ValueError: no memory is left)"
    )
    assert {step.request for step in run.steps} == {0, 1, 2}  # the truth's own steps are not there


def test_it_cannot_be_asked_while_it_works(no_second_engine, prompts):
    with no_second_engine.run() as run:
        run.add(prompts[0], max_tokens=30)
        run.step(2)
        with pytest.raises(EngineError) as error:
            run.add(prompts[1], max_tokens=30)
    assert str(error.value).endswith(
        "it cannot do so with requests unfinished: give it all prompts before the first step"
    )


def test_engines_of_one_target_share_their_truth(spec_engine, spec_engine_factory):
    other = spec_engine_factory(async_scheduling=True)
    assert other.baseline is spec_engine.baseline
    assert spec_engine_factory(block_size=64).baseline is not spec_engine.baseline


def test_strong_prompts(spec_engine):
    lengths = [5, 40, 5]
    prompts = spec_engine.strong_prompts(lengths, max_tokens=20, seed=3)
    assert [len(prompt) for prompt in prompts] == lengths
    assert prompts[0] != prompts[2]
    assert prompts == spec_engine.strong_prompts(lengths, max_tokens=20, seed=3)
    assert prompts != spec_engine.strong_prompts(lengths, max_tokens=20, seed=4)
    run = spec_engine.generate(prompts, max_tokens=20)
    assert min(m for r in run.requests for m in r.margins) >= NEAR_TIE["float32"]


def test_a_weak_prompt_is_replaced(spec_engine, monkeypatch):
    first = spec_engine.strong_prompts([6], max_tokens=8, seed=1)
    truths = spec_engine.truths

    def weak_first(prepared, **more):
        return [
            truth._replace(margins=[0.0] * 99) if one.tokens == first[0] else truth
            for one, truth in zip(prepared, truths(prepared, **more), strict=True)
        ]

    monkeypatch.setattr(spec_engine, "truths", weak_first)
    assert spec_engine.strong_prompts([6], max_tokens=8, seed=1) != first


def test_min_tokens_keeps_stop_tokens_out(spec_engine, prompts):
    """The mask is part of what the target says: for the first min_tokens, and no longer."""
    from vllm import SamplingParams

    free = spec_engine.generate(prompts[:1], max_tokens=24).outputs[0]
    stop = free[3]
    params = SamplingParams(temperature=0, stop_token_ids=[stop], min_tokens=8, max_tokens=24)
    run = spec_engine.generate(prompts[:1], sampling_params=params)
    run.check()
    assert stop not in run.outputs[0][:8]
    assert run.outputs[0][:3] == free[:3]
    assert run.outputs[0][3] != stop


def test_min_tokens_with_a_penalty_on_outputs_is_refused(spec_engine, prompts):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, min_tokens=8, max_tokens=24, presence_penalty=0.5)
    with pytest.raises(EngineError) as error:
        spec_engine.generate(prompts[:1], sampling_params=params)
    assert str(error.value).startswith(
        "min_tokens=8 with presence_penalty=0.5 and frequency_penalty=0.0 in a lossless run: "
    )
