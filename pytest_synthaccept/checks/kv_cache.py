"""``kv_cache``: blocks are counted, owned, shared and published as they may be.

Judged from what the KV cache manager holds after each call of the scheduler. Reads of slots
that nobody wrote are another matter: poison makes those show in the outputs and the drafts.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from pytest_synthaccept.checks.evidence import fail, named
from pytest_synthaccept.run import CoreEvent, CoreRequest, SpecRun

Owner = tuple[int, int]  # (index, sample)


def check_kv_cache(run: SpecRun) -> str | None:
    """The pool adds up, blocks have the owners they count, hashes cover written tokens only."""
    __tracebackhide__ = True
    if not run.core:
        return f"{run.unwatched}, its block pool was not seen"
    if not run.kv_cache.num_blocks:
        return "the engine has no block pool"
    held = _Held(run)
    for event in run.core:
        _pool_adds_up(run, event)
        for request in event.requests:
            _hashes_cover_written_tokens(run, event, request)
        _owners(event)
        held.judge(event)
    _drained(run)
    return None


def _fail(what: str) -> None:
    __tracebackhide__ = True
    fail("kv_cache", what)


def _where(event: CoreEvent) -> str:
    return f"{event.kind} of engine step {event.step}"


def _live(event: CoreEvent) -> list[CoreRequest]:
    return [request for request in event.requests if request.state != "finished"]


def _pool_adds_up(run: SpecRun, event: CoreEvent) -> None:
    """Every block is free or in the table of a live request."""
    __tracebackhide__ = True
    held = {block for r in _live(event) for group in r.blocks for block in group}
    total = run.kv_cache.num_blocks
    if event.free_blocks + len(held) != total:
        missing = total - event.free_blocks - len(held)
        gone = [named(r) for r in event.requests if r.state == "finished"]
        what = f"{missing} blocks belong to nobody" if missing > 0 else "blocks in use are free"
        _fail(
            f"{_where(event)}: {what}: {event.free_blocks} free + {len(held)} held "
            f"by {', '.join(named(r) for r in _live(event)) or 'no request'}, the pool has {total}"
            + (f"; just finished: {', '.join(gone)}" if gone else "")
        )


def _owners(event: CoreEvent) -> None:
    """Reference counts equal the tables that hold a block; two tables share hashed blocks only."""
    __tracebackhide__ = True
    live = _live(event)
    owners = Counter(block for r in live for group in r.blocks for block in group)
    hashed = {
        block
        for r in live
        for group, count in zip(r.blocks, r.hashed, strict=True)
        for block in group[:count]
    }
    for request in live:
        for group, refs in zip(request.blocks, request.refs, strict=True):
            for place, (block, count) in enumerate(zip(group, refs, strict=True)):
                who = f"{named(request)}, {_where(event)}: block {block} (number {place})"
                if owners[block] > 1 and block not in hashed:
                    others = [named(r) for r in live if r is not request and _holds(r, block)]
                    what = ", ".join(others) or "the same request twice"
                    _fail(f"{who} is also in the table of {what}, and is no cached prefix")
                if count != owners[block]:
                    _fail(
                        f"{who} has a reference count of {count}, {owners[block]} requests hold it"
                    )


def _holds(request: CoreRequest, block: int) -> bool:
    return any(block in group for group in request.blocks)


def _hashes_cover_written_tokens(run: SpecRun, event: CoreEvent, request: CoreRequest) -> None:
    """The prefix cache hands out what has been or is being written: never the last token.

    A token whose step is in flight counts as written: later steps run after it.
    """
    __tracebackhide__ = True
    last = 1 if request.state == "finished" else 0
    written = min(request.committed - last, request.computed)
    for size, count in zip(run.kv_cache.block_sizes, request.hashed, strict=True):
        if count * size > written:
            _fail(
                f"{named(request)}, {_where(event)}: the prefix cache may hand out "
                f"{count} blocks of it, {count * size} tokens; {written} of its "
                f"{request.committed} tokens have been written"
            )


class _Held:
    """How many blocks a request may hold, and that it keeps those it has."""

    def __init__(self, run: SpecRun) -> None:
        self._run = run
        self._most: dict[tuple[Owner, int], int] = defaultdict(int)
        self._before: dict[Owner, CoreRequest] = {}

    def judge(self, event: CoreEvent) -> None:
        """The blocks of the requests scheduled in this call, and of those that just run on."""
        __tracebackhide__ = True
        scheduled = {(row.index, row.sample): row for row in event.rows}
        for request in event.requests:
            owner = (request.index, request.sample)
            if request.state != "running":
                self._before.pop(owner, None)
                for group in range(len(request.blocks)):
                    self._most.pop((owner, group), None)
                continue
            self._keeps_its_blocks(event, owner, request)
            if event.kind == "schedule" and owner in scheduled:
                self._has_the_right_number(event, owner, request)

    def _keeps_its_blocks(self, event: CoreEvent, owner: Owner, request: CoreRequest) -> None:
        __tracebackhide__ = True
        before = self._before.get(owner)
        self._before[owner] = request
        if before is None or not self._plain:
            return
        for was, now in zip(before.blocks, request.blocks, strict=True):
            if now[: len(was)] != was:
                _fail(
                    f"{named(request)}, {_where(event)}: its block table was {list(was)} and is "
                    f"now {list(now)}: a block that it still reads was taken away or replaced"
                )

    def _has_the_right_number(self, event: CoreEvent, owner: Owner, request: CoreRequest) -> None:
        __tracebackhide__ = True
        end = int(self._run.info["max_model_len"])
        ahead = int(self._run.info["num_speculative_tokens"])
        needed = min(request.computed + ahead, end)
        sizes = self._run.kv_cache.block_sizes
        for group, (size, blocks) in enumerate(zip(sizes, request.blocks, strict=True)):
            number = -(-needed // size)
            most = self._most[owner, group] = max(self._most[owner, group], number)
            where = f"{named(request)}, {_where(event)}: {len(blocks)} blocks of {size} tokens"
            why = f"{request.computed} computed + {ahead} lookahead tokens"
            if len(blocks) > most and self._plain:
                _fail(f"{where}, {why} need {most}: more than it may hold")
            if len(blocks) < number and self._plain:
                _fail(f"{where}, {why} need {number}: drafts have no slot of their own")

    @property
    def _plain(self) -> bool:
        """One group of full attention: tables only grow, up to what the counts say."""
        return bool(self._run.info["plain_kv_cache"])


def _drained(run: SpecRun) -> None:
    """At rest every block is back, unless requests from outside the run still hold some."""
    __tracebackhide__ = True
    before, after = run.kv_cache.pool_before, run.kv_cache.pool_after
    outside = any(request.index < 0 for event in run.core for request in event.requests)
    if before is not None and after is not None and after < before and not outside:
        _fail(f"{before - after} blocks were not given back: {before} free before, {after} after")
