"""``scheduler``: every engine step's decisions and counters are those the requests call for.

Two witnesses: the workers, who say what they were given (always), and the engine core, which
says what it holds after each call of its scheduler (where it lives in this process).
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from pytest_synthaccept.checks.evidence import fail, named, stray_drafts
from pytest_synthaccept.run import CoreEvent, CoreRequest, CoreRow, ScheduledRow, SpecRun

PATIENCE = 2  # schedule calls that may pass over a running request though there is room

Owner = tuple[int, int]  # (index, sample)


def check_scheduler(run: SpecRun) -> str | None:
    """Budget, limits, drafts and work as the workers saw them; counters as the core holds them."""
    __tracebackhide__ = True
    if not run.scheduler:
        return "no engine step in this run"
    _engine_steps(run)
    _ends(run)
    _drafts_are_the_ones_made(run)
    if not run.core:
        return f"{run.unwatched}, its counters were not seen; the rest holds"
    check_counters(run)
    return None


def check_counters(run: SpecRun) -> None:
    """Judge the engine core's counters alone, as far as the run has come."""
    __tracebackhide__ = True
    _Counters(run).replay()


def _fail(what: str) -> None:
    __tracebackhide__ = True
    fail("scheduler", what)


# --- what the workers were given ---


def _engine_steps(run: SpecRun) -> None:
    __tracebackhide__ = True
    budget, most = run.info["max_num_batched_tokens"], run.info["max_num_seqs"]
    for number, step in enumerate(run.scheduler):
        tokens = sum(row.tokens for row in step.rows)
        if tokens > budget:
            _fail(f"engine step {number}: {tokens} tokens scheduled, the budget is {budget}")
        if len(step.rows) > most:
            _fail(f"engine step {number}: {len(step.rows)} requests, max_num_seqs is {most}")
        for row in step.rows:
            _row(run, number, row, full=_is_full(run, tokens, len(step.rows)))
        _forwards(run, number)


def _is_full(run: SpecRun, tokens: int, rows: int) -> bool:
    """No token is left in the budget; some drafters need slots of their own per request."""
    return tokens + rows * int(run.info["draft_slots"]) >= int(run.info["max_num_batched_tokens"])


def _row(run: SpecRun, number: int, row: ScheduledRow, *, full: bool) -> None:
    __tracebackhide__ = True
    where = f"{named(row)}, engine step {number}"
    end, k = int(run.info["max_model_len"]), int(run.info["num_speculative_tokens"])
    if row.tokens < 1:
        _fail(f"{where}: {row.tokens} tokens scheduled")
    # A prefill of one token may be padded to the shape of a verification step.
    if row.drafts and row.computed + 1 < row.prefill_len:
        _fail(
            f"{where}: {row.drafts} drafts scheduled on a prefill chunk, "
            f"{row.computed} of {row.prefill_len} prompt tokens computed"
        )
    if row.drafts > k:
        _fail(f"{where}: {row.drafts} drafts scheduled, the drafter makes {k}")
    if row.computed + row.tokens + 1 > end:
        _fail(
            f"{where}: {row.computed} computed + {row.tokens} scheduled + 1 sampled tokens, "
            f"max_model_len is {end}"
        )
    at_the_end = row.computed + row.tokens + 1 >= end
    capped = row.tokens == run.info["long_prefill_token_threshold"]
    if row.kind in ("verify", "decode") and row.drafts < k and not (full or at_the_end or capped):
        _fail(
            f"{where}: {row.drafts} of {k} drafts scheduled, though neither the token budget "
            f"nor max_model_len={end} stood in the way ({row.computed} tokens computed)"
        )


def _forwards(run: SpecRun, number: int) -> None:
    """The work a step costs: one pass of the target, K of the drafter."""
    __tracebackhide__ = True
    step = run.scheduler[number]
    expected = {"target": 1, "drafter": run.info["drafter_forwards"]}
    seen = {"target": step.target_forwards, "drafter": step.drafter_forwards}
    for model, passes in seen.items():
        if passes is not None and expected[model] is not None and passes != expected[model]:
            _fail(
                f"engine step {number}: {passes} forward passes of the {model}, "
                f"expected {expected[model]}"
            )


def _ends(run: SpecRun) -> None:
    """No token past a limit or a stop; no step for a request that was at its end."""
    __tracebackhide__ = True
    preempted = {key for step in run.scheduler for key in step.preempted}
    dropped: dict[Owner, int] = defaultdict(int)
    for step in run.discarded:
        dropped[step.index, step.sample] += 1
    for request in run.requests:
        if len(request.output) > request.limit:
            _fail(f"{named(request)}: {len(request.output)} tokens, the limit is {request.limit}")
        for i, token in enumerate(request.output[:-1], 1):
            if token in request.stop_token_ids and i >= request.min_tokens:
                _fail(
                    f"{named(request)}: output token {i - 1} is the stop token {token}, "
                    f"yet {len(request.output) - i} more tokens follow"
                )
        # With a step in flight the end is known one step late.
        spare = 1 if run.info["async_scheduling"] else 0
        extra = dropped[request.index, request.sample]
        whole = request.finish_reason in ("length", "stop") and request.key not in preempted
        if whole and extra > spare:
            _fail(f"{named(request)}: {extra} verification steps after its end, expected {spare}")


def _drafts_are_the_ones_made(run: SpecRun) -> None:
    """A row verifies the drafts stored for its request after that request's last step."""
    __tracebackhide__ = True
    for step in run.steps:
        if stray := stray_drafts(step):
            _fail(f"{named(step)}, step {step.step}, engine step {step.engine_step}: {stray}")


# --- what the engine core holds ---


@dataclass
class _Epoch:
    """One admission of a request, until it is preempted or ends."""

    settled: int  # computed tokens but for the steps in flight
    prefill_end: int
    flying: deque[tuple[int, CoreRow]] = field(default_factory=deque)
    passed_over: int = 0


class _Counters:
    """Follows every request through the scheduler's calls."""

    def __init__(self, run: SpecRun) -> None:
        self._run = run
        self._async = bool(run.info["async_scheduling"])
        self._epochs: dict[Owner, _Epoch] = {}
        self._committed: dict[Owner, int] = {}
        self._next = 0  # engine step

    def replay(self) -> None:
        """Judge every call in order."""
        __tracebackhide__ = True
        for event in self._run.core:
            requests = {(r.index, r.sample): r for r in event.requests}
            for owner in [o for o in self._epochs if not _runs(requests.get(o))]:
                del self._epochs[owner]
            if event.kind == "schedule":
                self._schedule(event, requests)
            else:
                self._update(event, requests)
            for owner, request in requests.items():
                self._counters(event, owner, request)
                self._committed[owner] = request.committed

    def _schedule(self, event: CoreEvent, requests: dict[Owner, CoreRequest]) -> None:
        __tracebackhide__ = True
        before, self._next = self._next, self._next + bool(event.rows)
        for row in event.rows:
            owner = (row.index, row.sample)
            if owner in requests:
                started = _Epoch(row.computed, requests[owner].committed)
                epoch = self._epochs.setdefault(owner, started)
                epoch.flying.append((event.step, row))
                epoch.passed_over = 0
        tokens = sum(row.tokens for row in event.rows)
        room = not _is_full(self._run, tokens + self._k, len(event.rows) + 1)
        scheduled = {(row.index, row.sample) for row in event.rows}
        for owner, epoch in self._epochs.items():
            idle = owner not in scheduled and not epoch.flying
            epoch.passed_over = epoch.passed_over + 1 if idle and room else 0
            if epoch.passed_over > PATIENCE:
                _fail(
                    f"{named(requests[owner])}, before engine step {before}: running, but "
                    f"passed over {epoch.passed_over} times in a row with room in the budget "
                    f"({requests[owner].computed} tokens computed, "
                    f"{requests[owner].committed} committed)"
                )

    @property
    def _k(self) -> int:
        return int(self._run.info["num_speculative_tokens"])

    def _update(self, event: CoreEvent, requests: dict[Owner, CoreRequest]) -> None:
        __tracebackhide__ = True
        for row in event.rows:
            owner = (row.index, row.sample)
            epoch, request = self._epochs.get(owner), requests.get(owner)
            # A step of an earlier admission, or of a request that has ended, is nobody's.
            if epoch is None or request is None or not epoch.flying:
                continue
            if epoch.flying[0][0] != event.step:
                continue
            epoch.flying.popleft()
            if _is_chunk(row, epoch):
                epoch.settled = row.computed + row.tokens
                continue
            if request.committed <= self._committed[owner]:
                _fail(
                    f"{named(request)}, engine step {event.step}: {row.tokens} tokens scheduled "
                    f"({row.drafts} drafts), none committed"
                )
            epoch.settled = request.committed - 1

    def _counters(self, event: CoreEvent, owner: Owner, request: CoreRequest) -> None:
        __tracebackhide__ = True
        where = f"{named(request)}, {event.kind} of engine step {event.step}"
        if request.placeholders < 0:
            _fail(f"{where}: {request.placeholders} output placeholders")
        epoch = self._epochs.get(owner)
        if epoch is None:
            if request.state in ("waiting", "preempted") and request.placeholders:
                _fail(f"{where}: {request.state}, with {request.placeholders} output placeholders")
            return
        flying = sum(row.tokens for _, row in epoch.flying)
        if request.computed != epoch.settled + flying:
            _fail(
                f"{where}: num_computed_tokens is {request.computed}, expected "
                f"{epoch.settled + flying} ({request.committed} committed, "
                f"{flying} scheduled in steps in flight)"
            )
        expected = 0
        if self._async:
            rows = [row for _, row in epoch.flying if not _is_chunk(row, epoch)]
            expected = sum(1 + row.drafts for row in rows)
        if request.placeholders != expected:
            _fail(
                f"{where}: {request.placeholders} output placeholders, "
                f"expected {expected} for the steps in flight"
            )


def _runs(request: CoreRequest | None) -> bool:
    return request is not None and request.state == "running"


def _is_chunk(row: CoreRow, epoch: _Epoch) -> bool:
    return row.computed + row.tokens < epoch.prefill_end
