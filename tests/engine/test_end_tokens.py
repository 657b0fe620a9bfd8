"""What ends a request is the engine's own business: the plugin has to know all of it."""

import json

import pytest

from pytest_synthaccept.errors import EngineError

pytestmark = pytest.mark.acceptance_rate(0.5, lossless=True)


def greedy():
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=24)


def test_the_end_of_a_generation_config_without_a_tokenizer(
    spec_engine, spec_engine_factory, prompts, tmp_path
):
    """Models of several end tokens name them there; only one of them is the tokenizer's."""
    said = spec_engine.target_outputs(prompts[:1], max_tokens=24)[0]
    end = next(token for i, token in enumerate(said) if i >= 6 and token not in said[:i])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, end]}))
    engine = spec_engine_factory(generation_config=str(tmp_path), skip_tokenizer_init=True)
    engine.set_acceptance(0.5, lossless=True)
    run = engine.generate(prompts[:1], sampling_params=greedy())
    assert run.outputs == [said[: said.index(end) + 1]]
    run.check()
    assert run.checked["outputs"] == "passed"
    assert run.requests[0].stop_token_ids == (1, end)


def test_an_engine_without_a_tokenizer_takes_token_ids_alone(spec_engine_factory, prompts):
    engine = spec_engine_factory(skip_tokenizer_init=True)
    engine.set_acceptance(0.5)
    assert engine.generate(prompts[:1], max_tokens=6).texts == [""]
    with pytest.raises(EngineError) as error:
        engine.generate(["words"], max_tokens=6)
    assert str(error.value) == ("this engine has no tokenizer; give prompts as lists of token ids")
