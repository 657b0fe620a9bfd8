from dataclasses import replace

import pytest

from pytest_synthaccept.acceptance.plan import AcceptancePlan
from pytest_synthaccept.run import (
    CoreEvent,
    CoreRequest,
    CoreRow,
    KvCache,
    Request,
    ScheduledRow,
    SchedulerStats,
    SchedulerStep,
    SpecRun,
    Step,
)

K = 3
BLOCK = 4
POOL = 40
INFO = {
    "model_runner": "v2",
    "num_speculative_tokens": K,
    "async_scheduling": False,
    "max_model_len": 64,
    "max_num_batched_tokens": 32,
    "max_num_seqs": 4,
    "long_prefill_token_threshold": 0,
    "draft_slots": 0,
    "drafter_forwards": K,
    "plain_kv_cache": True,
    "block_size": BLOCK,
    "dtype": "float32",
}


class Core:
    """Scheduler and block pool of a correct engine, as far as they are logged."""

    def __init__(self, requests):
        self.requests = requests
        self.events = []
        self.tables = {}
        self.free = list(range(1, POOL + 1))

    def blocks(self, i, tokens):
        table = self.tables.setdefault(i, [])
        while len(table) * BLOCK < tokens:
            table.append(self.free.pop(0))

    def note(self, kind, step, rows, states):
        """``states``: (index, committed, computed, finished)."""
        done = []
        for i, *_, finished in states:
            if finished:
                done.append((i, tuple(self.tables[i])))
                self.free += self.tables.pop(i)
        kept = dict(done)
        requests = []
        for i, committed, computed, finished in states:
            table = kept[i] if finished else tuple(self.tables[i])
            # Full blocks of committed tokens, the last of which has no KV entry before its step.
            full = (committed if kind == "schedule" else committed - 1) // BLOCK
            requests.append(
                CoreRequest(
                    request=i,
                    index=i,
                    sample=0,
                    state="finished" if finished else "running",
                    committed=committed,
                    computed=computed,
                    placeholders=0,
                    blocks=(table,),
                    refs=(tuple(0 if finished else 1 for _ in table),),
                    hashed=(full,),
                )
            )
        self.events.append(CoreEvent(kind, step, tuple(rows), tuple(requests), len(self.free)))


def simulate(limits=(20, 9), prompt_len=5, plan=None):
    """The run that a correct engine leaves behind: one request per limit, all in one batch."""
    plan = plan or AcceptancePlan.from_rate(0.5, num_speculative_tokens=K)
    requests = [
        Request(key=i, index=i, sample=0, prompt_len=prompt_len, limit=limit)
        for i, limit in enumerate(limits)
    ]
    run = SpecRun(plans=[plan], requests=requests, info=dict(INFO))
    run.scheduler_stats = SchedulerStats(num_accepted_tokens_per_pos=[0] * K)
    emitted, steps = [0] * len(requests), [0] * len(requests)
    core = Core(requests)
    for number in range(10**6):
        live = [i for i, r in enumerate(requests) if emitted[i] < r.limit]
        if not live:
            break
        rows = []
        before = {i: prompt_len + emitted[i] for i in live}
        for i in live:
            if not emitted[i]:
                rows.append(ScheduledRow(i, i, 0, "prefill", prompt_len, 0, 0, prompt_len))
                emitted[i] = 1
                continue
            computed = prompt_len + emitted[i] - 1
            rows.append(ScheduledRow(i, i, 0, "verify", K + 1, K, computed, prompt_len))
            accepted = plan.decide(i, steps[i])
            run.steps.append(
                Step(
                    request=i,
                    index=i,
                    sample=0,
                    step=steps[i],
                    position=prompt_len + emitted[i],
                    drafted=K,
                    planned=accepted,
                    accepted=accepted,
                    proposed=(2,) * K,
                    plan_version=0,
                    token=2,
                    verified=(2,) * K,
                    made=(2,) * K,
                    engine_step=number,
                )
            )
            steps[i] += 1
            emitted[i] += accepted + 1
            stats = run.scheduler_stats
            stats.num_drafts += 1
            stats.num_draft_tokens += K
            stats.num_accepted_tokens += accepted
            for position in range(accepted):
                stats.num_accepted_tokens_per_pos[position] += 1
        run.scheduler.append(SchedulerStep(tuple(rows), target_forwards=1, drafter_forwards=K))
        core_rows = [CoreRow(r.index, 0, r.tokens, r.drafts, r.computed) for r in rows]
        for row in core_rows:
            core.blocks(row.index, row.computed + row.tokens + K)
        states = [(r.index, before[r.index], r.computed + r.tokens, False) for r in core_rows]
        core.note("schedule", number, core_rows, states)
        after = [(i, prompt_len + min(emitted[i], requests[i].limit)) for i in live]
        states = [(i, c, c - 1, emitted[i] >= requests[i].limit) for i, c in after]
        core.note("update", number, core_rows, states)
    for request in requests:
        request.output = [2] * request.limit
        request.finish_reason = "length"
    run.core = core.events
    run.kv_cache = KvCache(pool_before=POOL, pool_after=POOL, num_blocks=POOL, block_sizes=(BLOCK,))
    return run


@pytest.fixture
def run():
    return simulate()


@pytest.fixture
def lossless(run):
    """The run of a correct engine, its reference beside it."""
    run.lossless = True
    for request in run.requests:
        request.output = list(range(100, 100 + request.limit))
        request.expected = list(request.output)
        request.margins = [0.5] * request.limit
    run.steps = [replace(step, proposed=(step.position, 7, 8)) for step in run.steps]
    for i, step in enumerate(run.steps):
        start = 100 + step.position - 5
        ids = (*range(start, start + step.accepted), *(1,) * (K - step.accepted))
        run.steps[i] = replace(step, verified=ids, made=ids, token=start + step.accepted)
    run._reference = {(s.index, s.position): s.proposed for s in run.steps}
    return run


@pytest.fixture
def edit():
    """edit(run, i, accepted=2): replace fields of verification step i."""

    def edited(run, i, **changes):
        run.steps[i] = replace(run.steps[i], **changes)
        return run.steps[i]

    return edited


@pytest.fixture
def core_edit():
    """core_edit(run, n, request, committed=2): replace fields of a request in the core's event n.

    ``request=None`` replaces fields of the event itself.
    """

    def edited(run, n, request, **changes):
        event = run.core[n]
        if request is None:
            run.core[n] = replace(event, **changes)
            return
        requests = [replace(r, **changes) if r.index == request else r for r in event.requests]
        run.core[n] = replace(event, requests=tuple(requests))

    return edited
