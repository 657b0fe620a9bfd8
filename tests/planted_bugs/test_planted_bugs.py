"""Every bug of ``bugs.py``, planted in the live engine: named by its check, request and step."""

import dataclasses
import re
from pathlib import Path

import pytest
from bugs import BUGS
from planting import Plant

from pytest_synthaccept.checks.drafter import compare_proposals
from pytest_synthaccept.suite import PATTERNS
from pytest_synthaccept.suite.patterns import Stage, tight_args
from pytest_synthaccept.suite.test_references import lossless, proposals

K = 3


def verdict(engine, pattern):
    """What is said of the pattern on this engine; None if nothing is."""
    error = None
    try:
        pattern.play(Stage(pattern.name, engine, seed=0))
    except Exception as raised:  # the engine's own collapse is a message too, but not ours
        error = raised
    for run in engine.runs:
        try:
            run.check()
        except AssertionError as failure:
            return str(failure)
    if error is None or isinstance(error, AssertionError):
        return error and str(error)
    return f"engine: {error!r}; {'; '.join(error.__notes__)}"


@pytest.fixture(scope="session")
def passed():
    """(pattern, engine arguments) that an engine without a bug has passed."""
    return set()


@pytest.fixture
def engine_for(spec_engine_factory, passed):
    """An engine for the pattern, which has passed before: what it compares with is known."""

    def get(bug):
        pattern = PATTERNS[bug.pattern]
        args = pattern.engine_args({}, K) | bug.engine
        engine = spec_engine_factory(**args)
        if (pattern.name, str(args)) not in passed:
            assert verdict(engine, pattern) is None
            passed.add((pattern.name, str(args)))
        engine.runs.clear()
        engine.llm.reset_prefix_cache()
        return engine

    return get


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_is_caught(bug, engine_for, monkeypatch):
    engine = engine_for(bug)
    with monkeypatch.context() as patch:
        bug.plant(Plant(engine, patch))
        message = verdict(engine, PATTERNS[bug.pattern])
    engine.runs.clear()  # judged here; the automatic checks would fail this test
    if bug.ruins:
        engine.failure = "ruined by a planted bug"
    if engine.alive:
        engine.llm.reset_prefix_cache()
    print(message)
    assert message is not None, f"not caught: {bug.says}"
    assert re.match(f"{bug.check}: (?:{bug.message})", message), message


def test_the_wrong_token_at_the_end_of_a_chunk(spec_engine, spec_engine_factory, monkeypatch):
    """After a prefill chunk the drafter goes on from a sampled token, not the prompt's next.

    The reference run is chunked alike: only a prefill at once tells.
    """
    engine = spec_engine_factory(**tight_args({}, K))
    prompts = spec_engine.strong_prompts([100, 70], max_tokens=10, seed=0)
    whole = proposals(lossless(spec_engine, prompts, 10))
    assert compare_proposals(lossless(engine, prompts, 10), whole, "at once") > 0
    plant = Plant(engine, monkeypatch)
    propose = plant.runner.speculator.propose

    def sampled(batch, metadata, slots, hidden, aux, num, rejected, last, upcoming, *args, **kw):
        return propose(batch, metadata, slots, hidden, aux, num, rejected, last, last, *args, **kw)

    monkeypatch.setattr(plant.runner.speculator, "propose", sampled)
    engine.llm.reset_prefix_cache()
    spoiled = lossless(engine, prompts, 10)
    with pytest.raises(AssertionError, match=r"^drafter: request \d, step \d+, position \d+, "):
        compare_proposals(spoiled, whole, "prefilled at once")
    engine.runs.clear()
    engine.llm.reset_prefix_cache()


def test_a_penalty_on_the_wrong_row(spec_engine, monkeypatch):
    """One request's repetition penalty is applied to its neighbour."""
    from vllm import SamplingParams

    params = [
        SamplingParams(temperature=0, ignore_eos=True, repetition_penalty=penalty)
        for penalty in (1.0, 1.9)
    ]
    prompts = [[5, 9, 5, 9, 5], [7, 7, 8, 8, 7, 9]]
    spec_engine.set_acceptance(0.5, lossless=True)
    spec_engine.generate(prompts, max_tokens=20, sampling_params=params).check()
    state = Plant(spec_engine, monkeypatch).runner.sampler.penalties_state
    apply = state.apply

    def flipped(logits, context):
        rows = context.expanded_idx_mapping.flip(0)
        return apply(logits, dataclasses.replace(context, expanded_idx_mapping=rows))

    monkeypatch.setattr(state, "apply", flipped)
    run = spec_engine.generate(prompts, max_tokens=20, sampling_params=params)
    with pytest.raises(AssertionError, match=r"^outputs: request \d: output token \d+ is "):
        run.check()
    spec_engine.runs.clear()


def test_a_slot_that_the_reference_reads_too_is_found(engine_for, monkeypatch):
    """Both runs attend to a slot that holds no token: poison of two signs keeps them apart."""
    bug = next(bug for bug in BUGS if bug.name == "the-drafter-reads-a-rejected-slot")
    engine = engine_for(bug)
    monkeypatch.setattr(engine, "_visited", {})
    with monkeypatch.context() as patch:
        bug.plant(Plant(engine, patch))
        message = verdict(engine, PATTERNS[bug.pattern])
    engine.runs.clear()
    engine.llm.reset_prefix_cache()
    assert re.match(f"{bug.check}: (?:{bug.message})", message)


def test_there_are_enough_of_them():
    assert len(BUGS) >= 30
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    documented = (Path(__file__).parents[2] / "docs" / "planted-bugs.md").read_text()
    assert [bug.name for bug in BUGS if f"| `{bug.name}` | {bug.kind} |" not in documented] == []
    assert {kind for bug in BUGS for kind in bug.kind[0]} >= set("ABCDEGHI")
