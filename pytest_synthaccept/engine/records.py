"""From what the workers recorded to the rows of a ``SpecRun``."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from pytest_synthaccept.engine.request_ids import RequestId
from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.run import ScheduledRow, SchedulerStep, SpecRun, Step, Work
from pytest_synthaccept.run.ledger import NO_ALTERNATIVE, PADDED, VERIFICATION, LedgerRow


def fill(run: SpecRun, answers: list[dict[str, Any] | None]) -> None:
    """Put the drained records of all ranks into ``run``, whose requests are already there."""
    records = _one_truth(answers)
    lanes = [RequestId(*lane) for lane in records["lanes"]]
    ledger = [LedgerRow.of(row) for row in records["ledger"]]
    committed = {(r.index, r.sample): r.committed for r in run.requests}
    drafts = _drafts(records, ledger)
    after = _later_positions(records, ledger, drafts)
    for i, row in enumerate(ledger):
        lane = lanes[row.lane]
        end = committed.get((lane.order, lane.sample))
        gone = end is not None and (row.position >= end or after.get(i, end) <= row.position)
        if row.flags & VERIFICATION:
            (run.discarded if gone else run.steps).append(_step(lane, row, drafts.get(i)))
        elif row.flags & PADDED and not gone:
            run.padded_rows += 1
            run.padded_drafts += row.scheduled
    held = dict.fromkeys(range(len(lanes)), 0)
    run.scheduler.extend(_scheduler_step(lanes, held, step) for step in records["scheduler"])
    run.kv_cache.blocks = [step.blocks for step in run.scheduler]
    run.work = Work(engine_steps=len(run.scheduler), **records["work"])
    run.draft_seconds = max(answer["draft_seconds"] for answer in answers if answer)


class _Drafts(NamedTuple):
    """What a row's drafts were: as proposed, as stored, and the engine step that verified them."""

    proposed: tuple[int, ...] | None
    made: tuple[int, ...] | None
    margins: tuple[float, ...]
    engine_step: int


def _drafts(records: dict[str, Any], ledger: list[LedgerRow]) -> dict[int, _Drafts]:
    """By ledger row: the latest drafts of its lane, made in an earlier engine step.

    A lane's rows with drafts reach the ledger in the order of their engine steps. Where the two
    do not match one to one, nothing is said.
    """
    sent: dict[int, list[_Drafts]] = defaultdict(list)
    latest: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]] = {}
    for number, step in enumerate(records["scheduler"]):
        proposed, made = records["proposed"][number], records["made"][number]
        margins = records["margins"][number]
        for lane in step["preempted"]:
            latest.pop(lane, None)
        for lane, i, _, num_drafts, *_ in step["rows"]:
            if num_drafts:
                was_proposed, was_made, were = latest.get(lane, (None, None, ()))
                sent[lane].append(_Drafts(was_proposed, was_made, were, number))
            latest[lane] = tuple(proposed[i]), tuple(made[i]), tuple(margins[i] if margins else ())
    received: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(ledger):
        if row.scheduled:
            received[row.lane].append(i)
    return {
        i: drafts
        for lane, rows in received.items()
        if len(rows) == len(sent[lane])
        for i, drafts in zip(rows, sent[lane], strict=True)
    }


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


def _later_positions(
    records: dict[str, Any], ledger: list[LedgerRow], drafts: dict[int, _Drafts]
) -> dict[int, int]:
    """By ledger row, the smallest position at which its request got a token in a later step.

    A row at or past it was dropped: the request was preempted with the row in flight and went
    over the same ground again. Rows of prefill chunks get no token.
    """
    got: dict[int, list[tuple[int, int, int]]] = defaultdict(list)  # engine step, position, row
    for i, of in drafts.items():
        got[ledger[i].lane].append((of.engine_step, ledger[i].position, i))
    for number, step in enumerate(records["scheduler"]):
        for lane, _, tokens, _, computed, prefill_len, _ in step["rows"]:
            if computed < prefill_len <= computed + tokens:
                got[lane].append((number, prefill_len, -1))
    out: dict[int, int] = {}
    for rows in got.values():
        smallest: int | None = None
        for _, position, i in sorted(rows, reverse=True):
            if smallest is not None:
                out[i] = smallest
            smallest = position if smallest is None else min(smallest, position)
    return out


def _step(lane: RequestId, row: LedgerRow, drafts: _Drafts | None) -> Step:
    proposed, made, margins, engine_step = drafts or (None, None, (), None)
    verified = row.drafts[: row.scheduled]
    return Step(
        request=lane.key,
        index=lane.order,
        sample=lane.sample,
        step=row.step,
        position=row.position,
        drafted=row.drafted,
        planned=row.planned,
        accepted=row.accepted,
        proposed=verified if proposed is None else proposed[: row.scheduled],
        plan_version=row.version,
        token=row.token,
        verified=verified,
        made=made and made[: row.scheduled],
        engine_step=engine_step,
        no_alternative=bool(row.flags & NO_ALTERNATIVE),
        margins=margins[: row.scheduled],
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
        target_forwards=step["forwards"].get("target"),
        drafter_forwards=step["forwards"].get("drafter"),
    )


def _scheduled_row(
    lanes: list[RequestId],
    held: dict[int, int],
    lane: int,
    _row: int,
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
