"""Acceptance patterns: the histories of accepts and rejects that real bugs needed to show.

Each pattern is a lossless run (or several) and a condition on what the engine did meanwhile: a
pattern whose situation did not occur fails, as it proved nothing. The checks judge the runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pytest_synthaccept.engine.engine import SpecEngine
    from pytest_synthaccept.run import Request, ScheduledRow, SpecRun, Step

DEFAULT_BLOCK_SIZE = 32
# Drafters that need the target's hidden state of the last cached token: vLLM takes the last
# block of a prefix hit back for them.
HIT_LOSES_A_BLOCK = ("eagle", "eagle3", "mtp")


class PatternError(AssertionError):
    """The situation that a pattern is about did not come about."""


class Stage:
    """What a pattern plays on: an engine, its K and block size, and prompts by seed."""

    def __init__(self, name: str, engine: SpecEngine, seed: int) -> None:
        self.name = name
        self.engine = engine
        self.seed = seed
        self.k = engine.num_speculative_tokens
        self.block = int(engine.info["block_size"])
        self.end = int(engine.info["max_model_len"])
        self.occurred: list[str] = []  # what the pattern exercised, in words

    def prompts(self, *lengths: int, max_tokens: int) -> list[list[int]]:
        """Prompts of these lengths whose outputs have no near-tie."""
        return self.engine.strong_prompts(lengths, max_tokens=max_tokens, seed=self.seed)

    def plan(self, script: Sequence[int] | Mapping[int, Sequence[int]]) -> None:
        """Accept these counts per step, losslessly."""
        self.engine.set_acceptance(script=script, lossless=True, seed=self.seed)

    def play(
        self,
        prompts: Sequence[Sequence[int]],
        script: Sequence[int] | Mapping[int, Sequence[int]],
        max_tokens: int | Sequence[int],
        **more: Any,
    ) -> SpecRun:
        """A lossless run of ``prompts`` under ``script``."""
        self.plan(script)
        return self.engine.generate(prompts, max_tokens=max_tokens, **more)

    def saw(self, found: object, what: str) -> None:
        """``what`` came about, or the pattern fails."""
        if not found:
            self.missed(what)
        self.occurred.append(what)

    def missed(self, what: str) -> NoReturn:
        """Fail: ``what`` did not come about."""
        raise PatternError(
            f"pattern {self.name}: did not occur: {what} (K={self.k}, block size {self.block}, "
            f"max_model_len {self.end}, seed {self.seed})"
        )


@dataclass(frozen=True)
class Pattern:
    """One row of ``PATTERNS``. ``tight``: it needs an engine with little room."""

    name: str
    says: str
    play: Callable[[Stage], None]
    tight: bool = False

    def engine_args(self, given: Mapping[str, Any], num_speculative_tokens: int) -> dict[str, Any]:
        """vLLM arguments that it needs over those ``given``."""
        return tight_args(given, num_speculative_tokens) if self.tight else {}


def tight_args(given: Mapping[str, Any], num_speculative_tokens: int) -> dict[str, Any]:
    """A context of five blocks, a pool of seven, prefill in chunks."""
    block = int(given.get("block_size") or DEFAULT_BLOCK_SIZE)
    seqs = 8
    return {
        "block_size": block,
        "max_model_len": 5 * block,
        "num_gpu_blocks_override": 8,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(block + block // 2, seqs * (num_speculative_tokens + 1)),
    }


PATTERNS: dict[str, Pattern] = {}


def _pattern(
    name: str, *, tight: bool = False
) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    def register(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
        says = (play.__doc__ or "").strip().splitlines()[0].rstrip(".")
        PATTERNS[name] = Pattern(name, says, play, tight)
        return play

    return register


# --- what a run did, for the conditions ---


def _steps(run: SpecRun, index: int) -> list[Step]:
    return [step for step in run.steps if step.index == index]


def _rows(run: SpecRun, index: int) -> list[ScheduledRow]:
    return [row for step in run.scheduler for row in step.rows if row.index == index]


def _accepted(run: SpecRun) -> set[int]:
    return {step.accepted for step in run.steps}


def _boundary_inside(step: Step, block: int) -> bool:
    """The accepted drafts begin in one block and the step ends in the next."""
    return (step.position - 1) // block != (step.position + step.accepted - 1) // block


def _preempted_after_a_step(run: SpecRun) -> Iterator[int]:
    """Keys of requests preempted once a verification step of theirs was through."""
    verified: set[int] = set()
    for step in run.scheduler:
        yield from (key for key in step.preempted if key in verified)
        verified |= {row.request for row in step.rows if row.kind == "verify"}


def _first_at(output: Sequence[int], i: int) -> bool:
    return output[i] not in output[:i]


# --- the patterns ---


@_pattern("full")
def full(stage: Stage) -> None:
    """Every draft is accepted."""
    run = stage.play(stage.prompts(4, 9, 17, max_tokens=24), [stage.k], 24)
    stage.saw(_accepted(run) == {stage.k}, "every step accepts all drafts")


@_pattern("zero")
def zero(stage: Stage) -> None:
    """No draft is accepted."""
    run = stage.play(stage.prompts(4, 9, 17, max_tokens=12), [0], 12)
    stage.saw(_accepted(run) == {0}, "no step accepts a draft")


@_pattern("partial")
def partial(stage: Stage) -> None:
    """Each request accepts another number of drafts, the same in every step."""
    counts = range(stage.k + 1)
    prompts = stage.prompts(*(5 + i for i in counts), max_tokens=20)
    run = stage.play(prompts, {i: [i] for i in counts}, 20)
    stage.saw(_accepted(run) == set(counts), "0 to K drafts accepted side by side")


@_pattern("alternating")
def alternating(stage: Stage) -> None:
    """All drafts and none by turns, two requests out of step."""
    k = stage.k
    run = stage.play(stage.prompts(6, 11, max_tokens=24), {0: [k, 0], 1: [0, k]}, 24)
    pairs = itertools.pairwise(step.accepted for step in _steps(run, 0))
    stage.saw((k, 0) in pairs, "a full step is followed by one that accepts nothing")


@_pattern("mixed")
def mixed(stage: Stage) -> None:
    """A rate of one half by the plan's own sequence: another table for every seed."""
    stage.engine.set_acceptance(0.5, lossless=True, seed=stage.seed)
    run = stage.engine.generate(stage.prompts(4, 7, 10, 13, max_tokens=32), max_tokens=32)
    stage.saw(len(_accepted(run)) > 1, "steps accept different numbers of drafts")


@_pattern("cross-block")
def cross_block(stage: Stage) -> None:
    """An accepted run crosses a block boundary, and the next step rejects everything."""
    k, block = stage.k, stage.block
    prompts = stage.prompts(block - 2, block - 3, 2 * block - 2, max_tokens=16)
    run = stage.play(prompts, {0: [k, 0], 1: [1, 0], 2: [k, 0]}, 16)
    crossed = [
        one
        for i in (0, 2)
        for one, then in itertools.pairwise(_steps(run, i))
        if _boundary_inside(one, block) and one.accepted and not then.accepted
    ]
    stage.saw(crossed, "a step over a block boundary, then a step without accepts")
    if k > 1:
        tails = [s for s in _steps(run, 1) if s.accepted < k and _tail_in_next(s, block)]
        stage.saw(tails, "rejected drafts in the block after the accepted ones")


def _tail_in_next(step: Step, block: int) -> bool:
    last_kept = step.position - 1 + step.accepted
    return last_kept // block < (step.position - 1 + step.drafted) // block


@_pattern("end-on-block")
def end_on_block(stage: Stage) -> None:
    """Requests end exactly on a block boundary, and the conversation goes on from the cache."""
    k, block = stage.k, stage.block
    tokens = 12
    counts = sorted({0, 1, k})
    prompts = stage.prompts(*[2 * block - tokens] * len(counts), max_tokens=tokens)
    run = stage.play(prompts, {i: [count] for i, count in enumerate(counts)}, tokens)
    stage.saw(all(r.committed % block == 0 for r in run.requests), "an end on a block boundary")
    more = [7, 8, 9]
    turns = [p + o + more for p, o in zip(prompts, run.outputs, strict=True)]
    stage.play(turns, [k], 8)


@_pattern("stop-inside")
def stop_inside(stage: Stage) -> None:
    """A stop token inside an accepted run, first and last of it, and as the bonus token."""
    from vllm import SamplingParams

    k, tokens = stage.k, 4 * (stage.k + 1)
    # Step 1 of a full run emits output tokens k + 2 .. 2k + 2, the last of them as the bonus.
    wanted = sorted({k + 2, 2 * k + 1, 2 * k + 2})
    cases = []
    prompts = stage.prompts(*range(5, 17), max_tokens=tokens)
    outputs = stage.engine.target_outputs(prompts, max_tokens=tokens)
    for prompt, output in zip(prompts, outputs, strict=True):
        usable = [at for at in wanted if _first_at(output, at)]
        if usable:
            cases.append((prompt, output, usable[0]))
            wanted.remove(usable[0])
        if not wanted:
            break
    else:
        stage.missed("prompts whose output has a token once only where the stop shall be")
    params = [
        SamplingParams(temperature=0.0, ignore_eos=True, stop_token_ids=[output[at]])
        for _, output, at in cases
    ]
    run = stage.play([prompt for prompt, *_ in cases], [k], tokens, sampling_params=params)
    ends = [len(output) - 1 for output in run.outputs]
    stage.saw(ends == [at for *_, at in cases], "each request stops at its stop token")
    stage.saw(all(r.finish_reason == "stop" for r in run.requests), "stop is the reason")


@_pattern("max-tokens-inside")
def max_tokens_inside(stage: Stage) -> None:
    """max_tokens falls inside an accepted run, at every place of it."""
    k = stage.k
    limits = [1 + (k + 1) + i for i in range(1, k + 1)]
    run = stage.play(stage.prompts(*(4 + i for i in limits), max_tokens=limits[-1]), [k], limits)
    cut = [_cut_tokens(run, request) for request in run.requests]
    stage.saw(cut == [k + 1 - i for i in range(1, k + 1)], "1 to K tokens of a run are cut off")


def _cut_tokens(run: SpecRun, request: Request) -> int:
    last = _steps(run, request.index)[-1]
    return last.position + last.accepted + 1 - request.committed


@_pattern("to-max-model-len", tight=True)
def to_max_model_len(stage: Stage) -> None:
    """Full steps run into max_model_len, from every distance."""
    k, end = stage.k, stage.end
    for start in range(end - 2 * k - 4, end - k - 2):
        (prompt,) = stage.prompts(start, max_tokens=end - start)
        run = stage.play([prompt], [k], end)
        stage.saw(run.requests[0].committed == end, f"max_model_len reached from {start}")


@_pattern("gap", tight=True)
def gap(stage: Stage) -> None:
    """A full step is followed by a step without drafts: there is no room for them."""
    k, end = stage.k, stage.end
    (prompt,) = stage.prompts(end - 2 - 2 * (k + 1), max_tokens=2 * (k + 1) + 2)
    run = stage.play([prompt], [k], end)
    kinds = [row.kind for row in _rows(run, 0)]
    stage.saw(kinds[-2:] == ["verify", "decode"], "drafts, all accepted, then a step without any")


@_pattern("preempt", tight=True)
def preempt(stage: Stage) -> None:
    """Requests are preempted with drafts outstanding, and come back."""
    tokens = stage.block + 8
    prompts = stage.prompts(*[stage.block + 3 * i for i in range(3)], max_tokens=tokens)
    for script in ([stage.k], [0, stage.k], [1]):
        run = stage.play(prompts, script, tokens)
        keys = set(_preempted_after_a_step(run))
        stage.saw(keys, f"a preemption after a verification step, script {script}")
        back = {r.key for r in run.requests if r.key in keys and len(r.output) == tokens}
        stage.saw(back == keys, "the preempted requests go on to their end")


@_pattern("max-model-len-after-resume", tight=True)
def max_model_len_after_resume(stage: Stage) -> None:
    """A request that was preempted and came back runs into max_model_len."""
    k, end = stage.k, stage.end
    start = end - 2 * stage.block - 8
    prompts = stage.prompts(start, start + 1, max_tokens=end - start)
    run = stage.play(prompts, [k], end)
    resumed = set(_preempted_after_a_step(run))
    full = {r.key for r in run.requests if r.committed == end}
    stage.saw(resumed & full, "max_model_len reached after a resume")


@_pattern("prefill-chunk", tight=True)
def prefill_chunk(stage: Stage) -> None:
    """A prefill in chunks beside verification steps of other requests."""
    long = 3 * stage.block
    short, prompt = stage.prompts(5, long, max_tokens=16)
    stage.plan([stage.k, 0])
    with stage.engine.run() as run:
        run.add(short, max_tokens=40)
        run.step(3)
        run.add(prompt, max_tokens=16)
    kinds = [{row.kind for row in step.rows} for step in run.scheduler]
    stage.saw({"verify", "chunk"} in kinds, "a verification and a prefill chunk in one batch")


@_pattern("short-prompts")
def short_prompts(stage: Stage) -> None:
    """Prompts of 1 and of 1 + K tokens, which look like decodes, join a running batch."""
    k = stage.k
    first, one, like_a_step = stage.prompts(6, 1, 1 + k, max_tokens=20)
    stage.plan([k, 0])
    with stage.engine.run() as run:
        run.add(first, max_tokens=32)
        run.step(2)
        run.add(one, max_tokens=20)
        run.step(1)
        run.add(like_a_step, max_tokens=20)
    joined = [
        row.tokens
        for step in run.scheduler
        for row in step.rows
        if row.index and row.computed == 0 and any(r.kind == "verify" for r in step.rows)
    ]
    stage.saw(joined == [1 + k, 1 + k], "both prefills have the shape of a verification step")


@_pattern("block-prompts")
def block_prompts(stage: Stage) -> None:
    """Prompts around one and two blocks: a token less, exactly, a token more."""
    block = stage.block
    lengths = [n * block + d for n in (1, 2) for d in (-1, 0, 1)]
    run = stage.play(stage.prompts(*lengths, max_tokens=12), [stage.k, 0, 1], 12)
    stage.saw([r.prompt_len for r in run.requests] == lengths, "prompts around block boundaries")


@_pattern("replay")
def replay(stage: Stage) -> None:
    """The same conversation again, and its next turn, from the prefix cache."""
    if not stage.engine.info["prefix_caching"]:
        stage.missed("prefix caching is off in this engine")
    block = stage.block
    (prompt,) = stage.prompts(2 * block + 3, max_tokens=2 * block)
    run = stage.play([prompt], [stage.k, 0], 2 * block)
    turn = prompt + run.outputs[0] + [5, 6, 7]
    for again in (prompt, turn):
        run = stage.play([again], [0, stage.k], 12)
        hit = _rows(run, 0)[0].computed
        loss = block if stage.engine.info["method"] in HIT_LOSES_A_BLOCK else 0
        expected = (len(again) - 1) // block * block - loss
        stage.saw(hit >= expected > 0, f"{expected} of {len(again)} tokens from the cache, or more")


@_pattern("diverge-at-block")
def diverge_at_block(stage: Stage) -> None:
    """Two prompts that part exactly at a block boundary, the second from the first's cache."""
    block = stage.block
    first, other = stage.prompts(3 * block + 2, 5, max_tokens=10)
    stage.play([first], [stage.k], 10)
    for at in (block, 2 * block):
        branch = first[:at] + other
        run = stage.play([branch], [stage.k, 0], 10)
        stage.saw(len(run.outputs[0]) == 10, f"a branch at {at}")


@_pattern("finish-in-the-middle")
def finish_in_the_middle(stage: Stage) -> None:
    """The middle request of a batch ends first, and a new one takes its place."""
    prompts = stage.prompts(4, 6, 8, 5, max_tokens=32)
    stage.plan({0: [stage.k, 0], 1: [0], 2: [1, stage.k], 3: [stage.k]})
    with stage.engine.run() as run:
        for key, tokens in enumerate((32, 6, 32)):
            run.add(prompts[key], key=key, max_tokens=tokens)
        run.step(8)
        run.add(prompts[3], key=3, max_tokens=12)
    after = [{row.request for row in step.rows} for step in run.scheduler]
    stage.saw({0, 2} in after or {0, 2, 3} in after, "the batch goes on without its middle")
