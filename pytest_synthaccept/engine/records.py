"""From what the workers recorded to the rows of a ``SpecRun``."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pytest_synthaccept.engine.request_ids import RequestId
from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.run import ScheduledRow, SchedulerStep, SpecRun, Step
from pytest_synthaccept.run.ledger import NO_ALTERNATIVE, PADDED, VERIFICATION, LedgerRow


def fill(run: SpecRun, answers: list[dict[str, Any] | None]) -> None:
    """Put the drained records of all ranks into ``run``, whose requests are already there."""
    records = _one_truth(answers)
    lanes = [RequestId(*lane) for lane in records["lanes"]]
    ledger = [LedgerRow.of(row) for row in records["ledger"]]
    committed = {(r.index, r.sample): r.committed for r in run.requests}
    after = _later_positions(ledger)
    for i, row in enumerate(ledger):
        lane = lanes[row.lane]
        end = committed.get((lane.order, lane.sample))
        gone = end is not None and (row.position >= end or after[i] <= row.position)
        if row.flags & VERIFICATION:
            (run.discarded if gone else run.steps).append(_step(lane, row))
        elif row.flags & PADDED and not gone:
            run.padded_rows += 1
            run.padded_drafts += row.scheduled
    held = dict.fromkeys(range(len(lanes)), 0)
    run.scheduler.extend(_scheduler_step(lanes, held, step) for step in records["scheduler"])
    run.kv_cache.blocks = [step.blocks for step in run.scheduler]


def _one_truth(answers: list[dict[str, Any] | None]) -> dict[str, Any]:
    """The records, which every verifying rank must have alike."""
    verifying = [answer for answer in answers if answer is not None]
    if len({answer["digest"] for answer in verifying}) != 1:
        raise EngineError(
            f"the {len(verifying)} verifying ranks recorded different decisions: "
            "ranks have diverged"
        )
    records: dict[str, Any] = next(a["records"] for a in verifying if a["records"] is not None)
    return records


def _later_positions(ledger: list[LedgerRow]) -> list[float]:
    """Per row, the smallest position its request has later.

    A row at or past it was dropped: the request was preempted with the row in flight and went
    over the same ground again.
    """
    smallest: dict[int, float] = defaultdict(lambda: float("inf"))
    out = [0.0] * len(ledger)
    for i in range(len(ledger) - 1, -1, -1):
        row = ledger[i]
        out[i] = smallest[row.lane]
        smallest[row.lane] = min(smallest[row.lane], row.position)
    return out


def _step(lane: RequestId, row: LedgerRow) -> Step:
    return Step(
        request=lane.key,
        index=lane.order,
        sample=lane.sample,
        step=row.step,
        position=row.position,
        drafted=row.drafted,
        planned=row.planned,
        accepted=row.accepted,
        proposed=row.drafts[: row.scheduled],
        plan_version=row.version,
        token=row.token,
        no_alternative=bool(row.flags & NO_ALTERNATIVE),
    )


def _scheduler_step(
    lanes: list[RequestId], held: dict[int, int], step: dict[str, Any]
) -> SchedulerStep:
    """``held`` counts the KV blocks of each lane from step to step."""
    for lane in step["preempted"]:
        held[lane] = 0
    for lane, *_, new_blocks in step["rows"]:
        held[lane] += new_blocks
    return SchedulerStep(
        rows=tuple(_scheduled_row(lanes, held, *row) for row in step["rows"]),
        preempted=tuple(lanes[lane].key for lane in step["preempted"]),
        finished=tuple(lanes[lane].key for lane in step["finished"]),
    )


def _scheduled_row(
    lanes: list[RequestId],
    held: dict[int, int],
    lane: int,
    tokens: int,
    drafts: int,
    computed: int,
    prefill_len: int,
    new_blocks: int,
) -> ScheduledRow:
    request = lanes[lane]
    if computed >= prefill_len:
        kind = "verify" if drafts else "decode"
    elif computed + tokens < prefill_len:
        kind = "chunk"
    else:
        kind = "padded" if drafts else "prefill"
    return ScheduledRow(
        request=request.key,
        index=request.order,
        sample=request.sample,
        kind=kind,
        tokens=tokens,
        drafts=drafts,
        computed=computed,
        prefill_len=prefill_len,
        new_blocks=new_blocks,
        blocks=held[lane],
    )
