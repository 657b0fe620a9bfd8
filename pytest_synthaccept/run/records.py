"""The rows a run is made of. Builtins only, so that they serialise and travel between processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Step:
    """One verification step of one request: a ledger row.

    ``position`` counts committed tokens, prompt included, before the step. ``drafted`` are the
    row's real drafts, ``planned`` is the plan's decision, ``accepted`` what was accepted:
    min(planned, drafted). ``proposed`` are the drafter's own tokens that entered the step.
    """

    request: int  # the request key
    index: int  # the request's order in the run; negative if given to vLLM directly
    sample: int
    step: int  # from 0 within (index, sample)
    position: int
    drafted: int
    planned: int
    accepted: int
    proposed: tuple[int, ...]
    plan_version: int
    token: int  # the target's own token that ended the step: recovered or bonus
    verified: tuple[int, ...] = ()  # the draft ids that were verified: rewritten in a lossless run
    made: tuple[int, ...] | None = None  # those stored for this step; None if nobody saw it
    engine_step: int | None = None  # its place in ``SpecRun.scheduler``
    no_alternative: bool = False  # the rejected draft was the target's only possible token
    # By how much the drafter preferred each of ``proposed``: (best - second logit) / largest
    # |logit|. Empty where unknown: in runs that are not lossless, and under CUDA graphs.
    margins: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """What the scheduler gave one request in one engine step, as the worker received it.

    ``kind``: ``chunk`` (prefill goes on, no token), ``prefill`` (completes it: one token),
    ``padded`` (completes it, with placeholder drafts: one token), ``decode`` (no drafts: one
    token), ``verify`` (drafts: accepted + 1 tokens).
    """

    request: int
    index: int
    sample: int
    kind: str
    tokens: int  # scheduled in this engine step, drafts included
    drafts: int  # of these, drafts (placeholders included)
    computed: int  # num_computed_tokens before the step
    prefill_len: int  # prompt, plus outputs so far after a preemption
    new_blocks: int = 0  # KV blocks allocated for this step
    blocks: int = 0  # KV blocks held in this step


@dataclass(frozen=True, slots=True)
class SchedulerStep:
    """One engine step: its rows in batch order, and the keys preempted and finished before it.

    Forward passes are counted where each is a call of the model: not under CUDA graphs.
    """

    rows: tuple[ScheduledRow, ...]
    preempted: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    target_forwards: int | None = None
    drafter_forwards: int | None = None

    @property
    def scheduled(self) -> dict[int, int]:
        """Request key -> tokens scheduled (summed over requests that share a key)."""
        return self._by_key("tokens")

    @property
    def drafts(self) -> dict[int, int]:
        """Request key -> drafts scheduled (summed over requests that share a key)."""
        return self._by_key("drafts")

    @property
    def blocks(self) -> dict[int, int]:
        """Request key -> KV blocks held (summed over requests that share a key)."""
        return self._by_key("blocks")

    def _by_key(self, name: str) -> dict[int, int]:
        out: dict[int, int] = {}
        for row in self.rows:
            out[row.request] = out.get(row.request, 0) + int(getattr(row, name))
        return out


@dataclass(frozen=True, slots=True)
class CoreRow:
    """What one ``schedule`` call gave one request. ``computed`` is before the call."""

    index: int
    sample: int
    tokens: int
    drafts: int
    computed: int


@dataclass(frozen=True, slots=True)
class CoreRequest:
    """One unfinished request as scheduler and KV cache manager hold it, right after a call.

    ``state``: ``waiting``, ``running``, ``preempted``, or ``finished`` in the call itself.
    The last three have one entry per KV cache group; the null block is left out.
    """

    request: int
    index: int
    sample: int
    state: str
    committed: int  # tokens, prompt included
    computed: int  # num_computed_tokens: those of steps in flight count already
    placeholders: int  # output placeholders of steps in flight (async scheduling)
    blocks: tuple[tuple[int, ...], ...]  # ids, in the order of the positions
    refs: tuple[tuple[int, ...], ...]  # the blocks' reference counts
    hashed: tuple[int, ...]  # blocks up to the last that the prefix cache may hand out


@dataclass(frozen=True, slots=True)
class CoreEvent:
    """One call of the scheduler: ``schedule``, or ``update`` with the outcome of that step.

    Under async scheduling step n + 1 is scheduled before the update of step n.
    """

    kind: str
    step: int  # as in ``SpecRun.scheduler``; -1: nothing was scheduled, or before the run
    rows: tuple[CoreRow, ...]
    requests: tuple[CoreRequest, ...]
    free_blocks: int


@dataclass(slots=True)
class SchedulerStats:
    """The engine's own speculative-decoding statistics, summed over the run."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    def clear(self) -> None:
        """Start counting anew, in place."""
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.num_accepted_tokens_per_pos.clear()


@dataclass(slots=True)
class KvCache:
    """KV blocks over the run.

    ``blocks[i]`` maps request keys to the blocks held in engine step i (summed over requests
    that share a key). ``pool_before`` and ``pool_after`` are free blocks of the pool, None
    where the engine core lives in another process. ``block_sizes`` are those of the KV cache
    groups; ``num_blocks`` is the pool's size without the null block.
    """

    blocks: list[dict[int, int]] = field(default_factory=list)
    pool_before: int | None = None
    pool_after: int | None = None
    num_blocks: int = 0
    block_sizes: tuple[int, ...] = ()


@dataclass(slots=True)
class Request:
    """One sample of one prompt: what was asked for and what came back."""

    key: int
    index: int
    sample: int
    prompt_len: int
    limit: int  # most output tokens max_tokens and max_model_len leave room for
    output: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None  # "length", "stop", "abort"; None while unfinished
    expected: list[int] | None = None  # lossless: the target's own output without speculation
    margins: list[float] = field(default_factory=list)  # its logprob lead over the runner-up
    stop_token_ids: tuple[int, ...] = ()  # that end it, the end-of-sequence token included
    min_tokens: int = 0  # outputs before the first of which may

    @property
    def committed(self) -> int:
        """Committed tokens, prompt included."""
        return self.prompt_len + len(self.output)


@dataclass(frozen=True, slots=True)
class Work:
    """What a run had the device do: the same on every machine, whatever the clock says.

    Under CUDA graphs a pass that is replayed is no call of the model: it is counted among the
    replays, several to a pass where only pieces of the model are captured.
    """

    engine_steps: int
    target_forwards: int
    drafter_forwards: int
    graph_replays: int


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Realised acceptance over verification steps. Rates are ``nan`` where nothing was drafted."""

    drafted: int
    accepted: int
    steps: int
    per_position: tuple[float, ...]
    requested: str

    @classmethod
    def of(cls, steps: Sequence[Step], requested: str) -> Acceptance:
        """Count ``steps``; ``per_position[i]`` is accepted at i + 1 / rows that had it."""
        width = max((s.drafted for s in steps), default=0)
        had = [sum(s.drafted > i for s in steps) for i in range(width)]
        got = [sum(s.accepted > i for s in steps) for i in range(width)]
        return cls(
            drafted=sum(s.drafted for s in steps),
            accepted=sum(s.accepted for s in steps),
            steps=len(steps),
            per_position=tuple(g / h for g, h in zip(got, had, strict=True)),
            requested=requested,
        )

    @property
    def rate(self) -> float:
        """Mean acceptance rate: accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else math.nan

    @property
    def length(self) -> float:
        """Acceptance length: tokens per verification step, recovered or bonus token included."""
        return 1 + self.accepted / self.steps if self.steps else math.nan
