"""What the drafter proposes at a committed prefix, however the engine came to it."""

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_synthaccept.checks.drafter import compare_proposals
from pytest_synthaccept.engine.config import Drafter
from pytest_synthaccept.engine.engine import SpecEngine
from pytest_synthaccept.fixtures import SpecEngineFactory
from pytest_synthaccept.run import Proposals, SpecRun
from pytest_synthaccept.suite.patterns import tight_args

TOKENS = 24


def lossless(
    engine: SpecEngine, prompts: Sequence[Sequence[int]], tokens: int = TOKENS, seed: int = 0
) -> SpecRun:
    """A run that accepts different numbers of drafts; its outputs are judged at once.

    After a near-tie of the target that went the other way, there is nothing to compare.
    """
    engine.set_acceptance(script=[engine.num_speculative_tokens, 0, 1], lossless=True, seed=seed)
    run = engine.generate(prompts, max_tokens=tokens)
    run.check("outputs")
    return run


def proposals(run: SpecRun, index: int | None = None) -> Proposals:
    """By prompt and position; ``index`` is the prompt's where the run had only that one."""
    return {
        (step.index if index is None else index, step.position): step.proposed for step in run.steps
    }


def assert_same(
    run: SpecRun,
    reference: Proposals,
    how: str,
    prompts: Sequence[Sequence[int]],
    factory: SpecEngineFactory,
    tokens: int = TOKENS,
) -> None:
    """Proposals of a run over ``prompts`` and of a reference that other kernels may have made.

    Where they differ and the margins are unknown, an engine without CUDA graphs tells them.
    """
    try:
        assert compare_proposals(run, reference, how) > 0
    except AssertionError:
        if all(step.margins for step in run.steps):
            raise
        eager = lossless(factory(enforce_eager=True), prompts, tokens)
        margins = {(step.index, step.position): step.margins for step in eager.steps}
        compare_proposals(run, reference, how, margins)


@pytest.fixture
def prompts(spec_engine: SpecEngine, spec_seed: int) -> list[list[int]]:
    """Four prompts of different lengths, two of them around block boundaries."""
    block = int(spec_engine.info["block_size"])
    lengths = (5, 12, 2 * block - 1, block + 2)
    return spec_engine.strong_prompts(lengths, max_tokens=TOKENS, seed=spec_seed)


def test_alone_as_in_a_batch(
    spec_engine: SpecEngine, spec_engine_factory: SpecEngineFactory, prompts: list[list[int]]
) -> None:
    """A request's drafts do not depend on who runs beside it."""
    batch = lossless(spec_engine, prompts)
    alone: Proposals = {}
    for i, prompt in enumerate(prompts):
        alone |= proposals(lossless(spec_engine, [prompt]), i)
    assert_same(batch, alone, "alone", prompts, spec_engine_factory)


def test_from_the_cache_as_cold(
    spec_engine: SpecEngine, spec_engine_factory: SpecEngineFactory, prompts: list[list[int]]
) -> None:
    """A prefix from the cache gives the drafts that computing it gives."""
    if not spec_engine.info["prefix_caching"]:
        pytest.skip("prefix caching is off in this engine")
    first = lossless(spec_engine, prompts)
    turns = [p + o + [9, 8, 7] for p, o in zip(prompts, first.outputs, strict=True)]
    warm = lossless(spec_engine, turns)
    hits = {row.index: row.computed for row in warm.scheduler[0].rows}
    assert any(hits.values()), "no prefix came from the cache"
    spec_engine.llm.reset_prefix_cache()
    cold = lossless(spec_engine, turns)
    assert not any(row.computed for row in cold.scheduler[0].rows)
    assert_same(warm, proposals(cold), "without the cache", turns, spec_engine_factory)


def test_a_prefix_as_a_new_prompt(
    spec_engine: SpecEngine, spec_engine_factory: SpecEngineFactory, prompts: list[list[int]]
) -> None:
    """Decoding to a prefix gives the drafts that a prefill of the same tokens gives."""
    run = lossless(spec_engine, prompts)
    fresh: Proposals = {}
    for step in run.steps[::3]:
        prompt, output = prompts[step.index], run.outputs[step.index]
        committed = (prompt + output)[: step.position - 1]
        spec_engine.llm.reset_prefix_cache()
        again = lossless(spec_engine, [committed], tokens=2)
        fresh |= proposals(again, step.index)
    how = "after a prefill of the prefix"
    assert_same(run, fresh, how, prompts, spec_engine_factory)


def test_prefilled_in_chunks_as_at_once(
    spec_engine: SpecEngine,
    spec_engine_factory: SpecEngineFactory,
    spec_engine_args: dict[str, Any],
    spec_drafter: Drafter,
    spec_seed: int,
) -> None:
    """A prompt prefilled in chunks gives the drafts that a prefill at once gives."""
    tight = tight_args(spec_engine_args, spec_drafter.num_speculative_tokens)
    chunked_engine = spec_engine_factory(**tight)
    block = int(tight["block_size"])
    lengths = (3 * block + 5, 2 * block, 3 * block - 1)
    prompts = spec_engine.strong_prompts(lengths, max_tokens=TOKENS // 2, seed=spec_seed)
    chunked = lossless(chunked_engine, prompts, TOKENS // 2)
    kinds = {row.kind for step in chunked.scheduler for row in step.rows}
    assert "chunk" in kinds, "no prefill came in chunks"
    whole = lossless(spec_engine, prompts, TOKENS // 2)
    assert "chunk" not in {row.kind for step in whole.scheduler for row in step.rows}
    at_once = proposals(whole)
    how = "prefilled at once"
    assert_same(chunked, at_once, how, prompts, spec_engine_factory, TOKENS // 2)


def test_by_graph_as_without(
    spec_engine: SpecEngine, spec_engine_factory: SpecEngineFactory, prompts: list[list[int]]
) -> None:
    """CUDA graphs give the drafts that the same kernels give without them."""
    if spec_engine.info["device"] == "cpu" or spec_engine.info["cudagraph_mode"] == "NONE":
        pytest.skip("this engine runs no CUDA graphs")
    graph = lossless(spec_engine, prompts)
    # Not enforce_eager: that compiles nothing, and other kernels round otherwise.
    without = spec_engine_factory(compilation_config={"cudagraph_mode": "NONE"})
    assert compare_proposals(graph, proposals(lossless(without, prompts)), "without graphs") > 0
