"""A run in progress: requests go in, engine steps happen, records come out as a ``SpecRun``."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_synthaccept.acceptance.plan import AcceptancePlan
from pytest_synthaccept.checks import check_core
from pytest_synthaccept.checks.evidence import named
from pytest_synthaccept.engine import core_seam, seam
from pytest_synthaccept.engine.baseline import Truth, cut, stop_tokens
from pytest_synthaccept.engine.plain import drive
from pytest_synthaccept.engine.records import fill
from pytest_synthaccept.engine.request_ids import format_id
from pytest_synthaccept.engine.start import quiet
from pytest_synthaccept.engine.worker import LOSSLESS, SYNTHETIC_MODES
from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.run import Proposals, Request, SpecRun

if TYPE_CHECKING:
    from pytest_synthaccept.engine.engine import SpecEngine

T = TypeVar("T")

DEFAULT_MAX_TOKENS = 16
MAX_KEY = 2**32 - 1
MOST_IDLE_STEPS = 50

# The run that others are compared with gets the other sign: a slot that is always read by
# mistake would spoil both alike.
POISON, REFERENCE_POISON = 1e4, -1e4


class Prepared(NamedTuple):
    """A checked request: ``room`` is what the context leaves for output, ``limit`` the most."""

    order: int
    key: int
    tokens: list[int]
    params: Any
    room: int
    limit: int


def plan_row(plan: AcceptancePlan) -> list[Any]:
    """A plan as it travels to the workers; see ``worker.PlanRow``."""
    return [list(plan.thresholds), plan.sampling, plan.seed, list(plan.script)]


class LiveRun(SpecRun):
    """``with engine.run() as run``: add requests, step, abort; afterwards a complete ``SpecRun``.

    With the engine core in this process (the default) ``step`` is one engine step. A separate
    engine core steps on its own; ``step`` then waits for its next outputs.
    """

    def __init__(
        self,
        engine: SpecEngine,
        number: int,
        *,
        plan: AcceptancePlan | None = None,
        lossless: bool = False,
        cost: str = "lean",
        reference: bool = False,
        timed: bool = False,
    ) -> None:
        super().__init__(lossless=lossless, info=engine.info, timed=timed)
        self.cost = cost
        self._plan = plan
        self._engine = engine
        self._number = number
        self._ids: dict[str, list[Request]] = {}  # vLLM's request id -> its samples
        self._prepared: list[Prepared] = []
        self._state = "not open yet"
        self._idle = 0
        self._cold = reference  # what others are compared with has nothing from a cache
        poison = engine.poison and not timed
        self._poison = (REFERENCE_POISON if reference else POISON) if poison else 0.0

    def __enter__(self) -> LiveRun:
        engine = self._engine
        engine.opened(self)
        self._state = "open"
        plan = self._plan or engine.plan  # the one in force when the block is entered
        assert plan is not None  # SpecEngine.run refuses otherwise
        seam.record_stats(engine.llm, self.scheduler_stats)
        self._begin(plan)
        core_seam.describe_pool(engine.llm, self.kv_cache)
        self.kv_cache.pool_before = core_seam.free_blocks(engine.llm)
        return self

    def _begin(self, plan: AcceptancePlan) -> None:
        """Records start here."""
        engine = self._engine
        mode = LOSSLESS if self.lossless else SYNTHETIC_MODES[self.cost]
        engine.call_workers("synthaccept_begin", plan_row(plan), mode, self._poison, self.timed)
        self.plans = [plan]
        self.scheduler_stats.clear()
        if engine.core_log is not None:
            self.core = engine.core_log.begin(self._number, paused=self.timed)

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        __tracebackhide__ = True
        if error is not None:
            self.abandon()
            return
        try:
            while self._unfinished():
                self.step()
            self._drain_queue()
            self._require_complete()
            fill(self, self._engine.call_workers("synthaccept_drain"))
        except BaseException:
            self.abandon()
            raise
        self._state = "over"
        self.kv_cache.pool_after = core_seam.free_blocks(self._engine.llm)
        self._decode()
        self._engine.finished(self)

    def add(
        self,
        prompt: Sequence[int] | str,
        *,
        key: int | None = None,
        max_tokens: int | None = None,
        sampling_params: Any = None,
    ) -> None:
        """Give the engine one more request; see ``SpecEngine.generate`` for the arguments."""
        __tracebackhide__ = True
        self._require_open()
        self.add_all([self.prepare(len(self._ids), prompt, key, max_tokens, sampling_params)])

    def prepare(
        self,
        order: int,
        prompt: Sequence[int] | str,
        key: int | None,
        max_tokens: int | None,
        sampling_params: Any,
    ) -> Prepared:
        """Check a request that will be the run's ``order``-th; nothing is started."""
        __tracebackhide__ = True
        number = _integer(order if key is None else key)
        if number is None or not 0 <= number <= MAX_KEY:
            raise EngineError(f"request key {key!r} must be an integer in 0..{MAX_KEY}")
        if (plan := self._engine.plan) is not None and not plan.covers(number):
            raise EngineError(
                f"request key {number} is not in the {plan.requested}; "
                "give it counts there, or give keys= that are"
            )
        tokens = self._tokens(prompt)
        params = _sampling_params(sampling_params, max_tokens)
        room = self.info["max_model_len"] - len(tokens)
        if room < 1:
            raise EngineError(
                f"prompt {order} has {len(tokens)} tokens; "
                f"max_model_len={self.info['max_model_len']} leaves no room for an output"
            )
        if self.lossless and params.temperature > 0:
            raise EngineError(
                f"prompt {order} has temperature={params.temperature}; a lossless run compares "
                "with the target's greedy output: give temperature=0, or lossless=False"
            )
        if getattr(params, "structured_outputs", None) and self.info["device"] == "cpu":
            raise EngineError(
                f"prompt {order} asks for structured output, which Triton's interpreter refuses; "
                "leave it out, or run on a GPU"
            )
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        return Prepared(order, number, tokens, params, room, limit)

    def add_all(self, prepared: Sequence[Prepared]) -> None:
        """Give the engine several requests at once."""
        __tracebackhide__ = True
        truths = self._truths(prepared) if self.lossless else [None] * len(prepared)
        ends = self._engine.end_tokens
        for one, truth in zip(prepared, truths, strict=True):
            stops = stop_tokens(one.params, ends)
            samples = [
                Request(
                    key=one.key,
                    index=one.order,
                    sample=sample,
                    prompt_len=len(one.tokens),
                    limit=one.limit,
                    stop_token_ids=stops,
                    min_tokens=one.params.min_tokens,
                )
                for sample in range(one.params.n)
            ]
            if truth is not None:
                expected = cut(truth.tokens, stops, one.limit)
                for request in samples:
                    request.expected, request.margins = expected, truth.margins[: len(expected)]
            request_id = format_id(self._number, one.order, one.key)
            with self._fatal(), quiet():
                refusal = seam.add_request(
                    self._engine.llm,
                    request_id,
                    one.tokens,
                    one.params,
                    cache_salt=request_id if self._cold else None,
                )
            if refusal is not None:
                raise EngineError(f"vLLM refuses prompt {one.order}: {refusal}")
            self._ids[request_id] = samples
            self._prepared.append(one)
            self.requests.extend(samples)

    def _truths(self, prepared: Sequence[Prepared]) -> list[Truth]:
        """What the target alone says, told to the workers too: past the end, where drafts reach."""
        engine = self._engine
        truths = self._timed(lambda: engine.truths(prepared, busy=self._unfinished()))
        if engine.asked_itself:
            self._begin(self.plans[-1])
            engine.asked_itself = False
        expected = [
            (one.order, one.tokens + truth.tokens)
            for one, truth in zip(prepared, truths, strict=True)
        ]
        self._engine.call_workers("synthaccept_expect", expected)
        return truths

    def step(self, n: int = 1) -> None:
        """Let the engine step ``n`` times, or until nothing is unfinished."""
        __tracebackhide__ = True
        self._require_open()
        times = _integer(n)
        if times is None or times < 1:
            raise EngineError(f"step: n={n!r} must be an integer >= 1")
        for _ in range(times):
            if not self._unfinished():
                return
            self._step_once()

    def rush(self, section: AbstractContextManager[None]) -> None:
        """Run everything to its end inside ``section``, and look at the outputs afterwards."""
        __tracebackhide__ = True
        self._require_open()
        with self._fatal(), quiet():
            tokens = sum(request.prompt_len + request.limit for request in self.requests)
            answers = drive(self._engine.llm, tokens, section)
        self._take(answers)

    def abort(self, key: int) -> None:
        """Abort the unfinished requests of a key; what they have committed stays in ``outputs``."""
        __tracebackhide__ = True
        self._require_open()
        ids = [i for i, samples in self._ids.items() if samples[0].key == key]
        if not ids:
            known = ", ".join(str(s[0].key) for s in self._ids.values())
            raise EngineError(f"abort: no request has key {key!r}; keys of this run: {known}")
        self._abort(ids)

    def change_plan(self, plan: AcceptancePlan) -> None:
        """The plan from the next proposal on."""
        self._engine.call_workers("synthaccept_set_plan", plan_row(plan))
        self.plans.append(plan)

    def abandon(self) -> None:
        """Abort everything and leave the engine clean; the run keeps no records."""
        self._state = "over"
        if self._engine.failure is None:
            self._abort(list(self._ids))
            self._drain_queue()
        self._engine.dropped(self)

    def reference_proposals(self) -> Proposals | None:
        """The drafter's tokens at every committed prefix, from a run that accepts nothing."""
        __tracebackhide__ = True
        if self._reference is None and self.lossless:
            engine = self._engine
            self._reference = self._timed(lambda: engine.reference_proposals(self._prepared))
        return self._reference

    def _timed(self, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return work()
        finally:
            self.reference_seconds += time.perf_counter() - began

    # --- the engine's side ---

    def _unfinished(self) -> bool:
        return bool(self._engine.llm.llm_engine.has_unfinished_requests())

    def _step_once(self) -> None:
        __tracebackhide__ = True
        with self._fatal(), quiet():
            outputs = self._engine.llm.llm_engine.step()
        self._watch_for_a_stall()
        self._take(outputs)

    def _take(self, outputs: Iterable[Any]) -> None:
        __tracebackhide__ = True
        for output in outputs:
            if output.request_id not in self._ids:
                continue  # given to vLLM directly; its answer is for whoever asked
            for completion in output.outputs:
                request = self._ids[output.request_id][completion.index]
                known, request.output = len(request.output), list(completion.token_ids)
                self._require_in_vocabulary(request, known)
                request.text = completion.text or ""
                request.finish_reason = completion.finish_reason

    def _where(self) -> str:
        """The engine step under way, for an error that says nothing of it."""
        if not self.core:
            return "in an engine core of another process, or before the first engine step"
        last = self.core[-1]
        rows = {(row.index, row.sample) for row in last.rows}
        who = ", ".join(named(r) for r in last.requests if (r.index, r.sample) in rows)
        return f"after the {last.kind} of engine step {last.step}, with {who or 'no request'}"

    def _require_in_vocabulary(self, request: Request, known: int) -> None:
        """A token id that is none would end the engine a step or two later, without a word."""
        __tracebackhide__ = True
        size, log = self.info["vocab_size"], self._engine.core_log
        for i, token in enumerate(request.output[known:], known):
            if not 0 <= token < size:
                self._engine.failure = f"it sampled the token id {token}"
                where = "" if log is None else f", engine step {log.last_step}"
                raise AssertionError(
                    f"outputs: {named(request)}{where}: output token {i} is {token}, "
                    f"not in the vocabulary of {size} ids"
                )

    def _watch_for_a_stall(self) -> None:
        """A scheduler that has lost a request would let us step for ever."""
        __tracebackhide__ = True
        log = self._engine.core_log
        self._idle = self._idle + 1 if log is not None and log.idle else 0
        if log is None or self._idle < MOST_IDLE_STEPS:
            return
        self._engine.failure = f"stalled: nothing scheduled in {self._idle} engine steps"
        check_core(self)  # which may know the cause
        held = [
            f"{named(r)} ({r.state}, {r.computed} tokens computed, {r.committed} committed)"
            for r in log.events[-1].requests
        ]
        raise AssertionError(
            f"scheduler: nothing scheduled in {self._idle} steps after engine step "
            f"{log.last_step}, though unfinished: {'; '.join(held)}; "
            f"{log.events[-1].free_blocks} KV blocks free"
        )

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """An exception of vLLM's own leaves an engine that nobody should trust again."""
        __tracebackhide__ = True
        try:
            yield
        except Exception as error:
            self._engine.failure = f"{type(error).__name__}: {error}"
            error.add_note(f"synthaccept: {self._where()}")
            check_core(self)  # which may know what led to it
            raise

    def _require_open(self) -> None:
        __tracebackhide__ = True
        if self._state != "open":
            raise EngineError(f"this run is {self._state}; use it inside its with block")

    def _require_complete(self) -> None:
        __tracebackhide__ = True
        lost = [str(r.key) for r in self.requests if r.finish_reason is None]
        if lost:
            raise EngineError(
                f"requests {', '.join(lost)} ended without an answer here: something else stepped "
                "the engine inside the run; step it by run.step() alone"
            )

    def _drain_queue(self) -> None:
        """Async scheduling leaves a step in flight when the last request ends."""
        while core_seam.step_in_flight(self._engine.llm):
            self._step_once()

    def _abort(self, ids: list[str]) -> None:
        self._engine.llm.llm_engine.abort_request(ids)
        for request_id in ids:
            for request in self._ids[request_id]:
                request.finish_reason = request.finish_reason or "abort"

    def _tokens(self, prompt: Sequence[int] | str) -> list[int]:
        __tracebackhide__ = True
        if isinstance(prompt, str):
            return list(self._tokenizer().encode(prompt))
        tokens = [_integer(t) for t in prompt] if isinstance(prompt, Iterable) else []
        known = [token for token in tokens if token is not None]
        if not tokens or len(known) < len(tokens):
            raise EngineError(
                f"prompt {prompt!r} must be a non-empty list of token ids, or a string"
            )
        return known

    def _tokenizer(self) -> Any:
        tokenizer = seam.tokenizer(self._engine.llm)
        if tokenizer is None:
            raise EngineError("this engine has no tokenizer; give prompts as lists of token ids")
        return tokenizer

    def _decode(self) -> None:
        tokenizer = seam.tokenizer(self._engine.llm)
        for request in self.requests:
            if not request.text and tokenizer is not None:
                request.text = tokenizer.decode(request.output)


def _integer(value: object) -> int | None:
    """The int of an int, a NumPy integer or the like; None for anything else, bools included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _sampling_params(given: Any, max_tokens: int | None) -> Any:
    """Greedy, unstoppable and not detokenised unless the caller says otherwise."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    if max_tokens is not None and not (type(max_tokens) is int and max_tokens >= 1):
        raise EngineError(f"max_tokens={max_tokens!r} must be an integer >= 1")
    if given is not None and not isinstance(given, SamplingParams):
        raise EngineError(f"sampling_params={given!r} must be vllm.SamplingParams, or left out")
    if given is None:
        params = SamplingParams(
            temperature=0.0, ignore_eos=True, detokenize=False, max_tokens=DEFAULT_MAX_TOKENS
        )
    else:
        params = given.clone()
    if max_tokens is not None:
        params.max_tokens = max_tokens
    params.output_kind = RequestOutputKind.CUMULATIVE  # an aborted request shows what it had
    return params
