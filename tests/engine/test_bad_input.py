"""A user's mistake in a test body is one line, and leaves the engine as it was."""

import pytest

from pytest_synthaccept import AcceptancePlan
from pytest_synthaccept.errors import AcceptanceError, EngineError

pytestmark = pytest.mark.acceptance_rate(0.5)

ONE_PROMPT = "is one prompt; pass a list of prompts, each a list of token ids or a string"
NOT_A_PROMPT = "must be a non-empty list of token ids, or a string"


@pytest.fixture(autouse=True)
def _engine_stays_usable(spec_engine):
    yield
    assert len(spec_engine.generate([[1, 2]], max_tokens=5).outputs[0]) == 5


@pytest.mark.parametrize(
    ("prompts", "arguments", "message"),
    [
        ([], {}, "generate: prompts is empty; pass at least one prompt"),
        ([1, 2], {}, f"generate: prompts=[1, 2] {ONE_PROMPT}"),
        ("hello", {}, f"generate: prompts='hello' {ONE_PROMPT}"),
        (None, {}, "generate: prompts=None must be a list of prompts"),
        ({}, {}, "generate: prompts={} must be a list of prompts"),
        ([[]], {}, f"prompt [] {NOT_A_PROMPT}"),
        ([["a"]], {}, f"prompt ['a'] {NOT_A_PROMPT}"),
        ([1.5], {}, f"prompt 1.5 {NOT_A_PROMPT}"),
        ([[True]], {}, f"prompt [True] {NOT_A_PROMPT}"),
        ([[1]], {"max_tokens": 0}, "max_tokens=0 must be an integer >= 1"),
        ([[1]], {"max_tokens": "3"}, "max_tokens='3' must be an integer >= 1"),
        ([[1]], {"max_tokens": 2.5}, "max_tokens=2.5 must be an integer >= 1"),
        ([[1], [2]], {"max_tokens": [3]}, "generate: 1 max_tokens for 2 prompts; give one each"),
        ([[1]], {"keys": [1, 2]}, "generate: 2 keys for 1 prompts; give one each"),
        ([[1]], {"keys": 3}, "generate: keys=3 must be a list, one integer per prompt"),
        ([[1]], {"keys": [-1]}, "request key -1 must be an integer in 0..4294967295"),
        ([[1]], {"keys": [2**32]}, "request key 4294967296 must be an integer in 0..4294967295"),
        ([[1]], {"keys": [True]}, "request key True must be an integer in 0..4294967295"),
        (
            [[1]],
            {"sampling_params": {"n": 2}},
            "sampling_params={'n': 2} must be vllm.SamplingParams, or left out",
        ),
    ],
)
def test_generate(spec_engine, prompts, arguments, message):
    with pytest.raises(EngineError) as error:
        spec_engine.generate(prompts, **arguments)
    assert str(error.value) == message
    assert not spec_engine.runs


def test_a_prompt_that_fills_the_context(spec_engine):
    room = spec_engine.info["max_model_len"]
    with pytest.raises(EngineError) as error:
        spec_engine.generate([[1], [1] * room])
    assert str(error.value) == (
        f"prompt 1 has {room} tokens; max_model_len={room} leaves no room for an output"
    )


def test_what_vllm_refuses(spec_engine):
    with pytest.raises(EngineError, match=r"^vLLM refuses prompt 1: .*(vocab|range)"):
        spec_engine.generate([[1], [10**6]], max_tokens=5)


def test_a_run_outside_its_block(spec_engine):
    run = spec_engine.run()
    with pytest.raises(EngineError) as error:
        run.add([1])
    assert str(error.value) == "this run is not open yet; use it inside its with block"
    with run:
        run.add([1], max_tokens=3)
    for late in (lambda: run.add([1]), run.step, lambda: run.abort(0)):
        with pytest.raises(EngineError) as error:
            late()
        assert str(error.value) == "this run is over; use it inside its with block"


def test_a_run_inside_a_run(spec_engine):
    with spec_engine.run() as run:
        run.add([1], max_tokens=3)
        with pytest.raises(EngineError) as error:
            spec_engine.generate([[1]])
    assert str(error.value) == ("a run of this engine is open already; leave its with block first")


def test_two_runs_made_before_either_is_entered(spec_engine):
    one, other = spec_engine.run(), spec_engine.run()
    with one:
        one.add([1], max_tokens=3)
        with pytest.raises(EngineError, match=r"^a run of this engine is open already; "), other:
            pass


def test_abort_of_an_unknown_key(spec_engine):
    with spec_engine.run() as run:
        run.add([1], key=4, max_tokens=3)
        with pytest.raises(EngineError) as error:
            run.abort(77)
        run.step(2)
        run.abort(4)
        run.abort(4)
    assert str(error.value) == "abort: no request has key 77; keys of this run: 4"


def test_another_hand_steps_the_engine(spec_engine):
    def mixed():
        with spec_engine.run() as run:
            run.add([1], key=8, max_tokens=3)
            while spec_engine.llm.llm_engine.has_unfinished_requests():
                spec_engine.llm.llm_engine.step()

    with pytest.raises(EngineError) as error:
        mixed()
    assert str(error.value) == (
        "requests 8 ended without an answer here: something else stepped the engine inside the "
        "run; step it by run.step() alone"
    )


def test_no_plan(spec_engine):
    spec_engine.begin_test(None, where="")
    with pytest.raises(AcceptanceError) as error:
        spec_engine.generate([[1]])
    assert str(error.value) == (
        "no acceptance plan: mark the test with @pytest.mark.acceptance_rate(0.5), call "
        "set_acceptance(0.5) before generate(), or run pytest with --acceptance-rate=0.5"
    )
    spec_engine.set_acceptance(0.5)


def test_a_plan_for_another_k(spec_engine):
    plan = AcceptancePlan.from_rate(0.5, num_speculative_tokens=5)
    with pytest.raises(AcceptanceError) as error:
        spec_engine.set_acceptance(plan)
    assert str(error.value) == (
        "set_acceptance: the plan is for 5 draft tokens, the engine drafts 3"
    )
    with pytest.raises(AcceptanceError) as error:
        spec_engine.set_acceptance(plan, seed=3)
    assert str(error.value) == "set_acceptance: an AcceptancePlan is complete; drop seed"


def test_lossless_cannot_change_inside_a_run(spec_engine):
    with spec_engine.run() as run:
        run.add([1], max_tokens=3)
        with pytest.raises(AcceptanceError) as error:
            spec_engine.set_acceptance(0.5, lossless=True)
    assert str(error.value) == (
        "set_acceptance: lossless cannot change while a run is open; leave its with block first"
    )


@pytest.mark.parametrize("n", [0, -1, True, "3", 1.5, None])
def test_step(spec_engine, n):
    with spec_engine.run() as run:
        run.add([1, 2], max_tokens=3)
        with pytest.raises(EngineError) as error:
            run.step(n)
    assert str(error.value) == f"step: n={n!r} must be an integer >= 1"
    assert len(run.outputs[0]) == 3


def test_lossless_is_a_bool(spec_engine):
    with pytest.raises(EngineError) as error:
        spec_engine.generate([[1, 2]], lossless="yes")
    assert str(error.value) == "lossless='yes' must be True, False or left out"


def test_structured_output_on_the_cpu(spec_engine):
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if spec_engine.info["device"] != "cpu":
        pytest.skip("it runs on a GPU")
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a", "b"]))
    with pytest.raises(EngineError) as error:
        spec_engine.generate([[1, 2]], sampling_params=params)
    assert str(error.value) == (
        "prompt 0 asks for structured output, which Triton's interpreter refuses; "
        "leave it out, or run on a GPU"
    )
