from dataclasses import replace

import pytest

from pytest_synthaccept.acceptance.plan import AcceptancePlan
from pytest_synthaccept.run import (
    Request,
    ScheduledRow,
    SchedulerStats,
    SchedulerStep,
    SpecRun,
    Step,
)

K = 3


def simulate(limits=(20, 9), prompt_len=5, plan=None):
    """The run that a correct engine leaves behind: one request per limit, all in one batch."""
    plan = plan or AcceptancePlan.from_rate(0.5, num_speculative_tokens=K)
    requests = [
        Request(key=i, index=i, sample=0, prompt_len=prompt_len, limit=limit)
        for i, limit in enumerate(limits)
    ]
    run = SpecRun(plans=[plan], requests=requests, info={"model_runner": "v2"})
    run.scheduler_stats = SchedulerStats(num_accepted_tokens_per_pos=[0] * K)
    emitted = [0] * len(requests)
    steps = [0] * len(requests)
    while any(e < r.limit for e, r in zip(emitted, requests, strict=True)):
        rows = []
        for i, request in enumerate(requests):
            if emitted[i] >= request.limit:
                continue
            row = ScheduledRow(i, i, 0, "verify", K + 1, K, prompt_len + emitted[i] - 1, prompt_len)
            if not emitted[i]:
                rows.append(replace(row, kind="prefill", tokens=prompt_len, drafts=0, computed=0))
                emitted[i] = 1
                continue
            rows.append(row)
            accepted = plan.decide(i, steps[i])
            run.steps.append(
                Step(
                    i,
                    i,
                    0,
                    steps[i],
                    prompt_len + emitted[i],
                    K,
                    accepted,
                    accepted,
                    (1,) * K,
                    0,
                    2,
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
        run.scheduler.append(SchedulerStep(rows=tuple(rows)))
    for request in requests:
        request.output = [2] * request.limit
        request.finish_reason = "length"
    return run


@pytest.fixture
def run():
    return simulate()


@pytest.fixture
def edit():
    """edit(run, i, accepted=2): replace fields of verification step i."""

    def edited(run, i, **changes):
        run.steps[i] = replace(run.steps[i], **changes)
        return run.steps[i]

    return edited
