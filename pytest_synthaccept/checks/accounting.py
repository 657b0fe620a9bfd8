"""``accounting``: tokens, drafts and acceptances add up, by two independent counts.

One count is the ledger's, written by our sampler. The other is the engine's: what its scheduler
handed out, what its statistics say and what the requests got back.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from pytest_synthaccept.checks.evidence import fail, named
from pytest_synthaccept.run import Request, ScheduledRow, SpecRun, Step


def check_accounting(run: SpecRun) -> str | None:
    """The forced path ran, every committed token is accounted for, and the engine agrees.

    Per request: committed tokens = one per completed (re)prefill + one per row without drafts
    or with placeholders only + sum(accepted + 1) over verification steps - truncated by a stop
    rule; and each verification step started where the tokens before it end.
    """
    __tracebackhide__ = True
    if run.info.get("model_runner") != "v2":
        _fail(f"the engine ran model runner {run.info.get('model_runner')!r}, not v2")
    _drafts_were_verified(run)
    _tokens_add_up(run)
    _tokens_are_the_sampled_ones(run)
    _engine_agrees(run)
    return None


def _drafts_were_verified(run: SpecRun) -> None:
    """Requests that decode past their first token have drafts verified on the way."""
    __tracebackhide__ = True
    rows = [row for step in run.scheduler for row in step.rows]
    decoded = [row for row in rows if row.kind in ("decode", "verify")]
    if decoded and not run.steps and not run.discarded:
        _fail(
            f"no draft token was verified in {len(decoded)} decode rows: "
            "the drafter proposed nothing, or the scheduler dropped it"
        )


def _tokens_add_up(run: SpecRun) -> None:
    __tracebackhide__ = True
    scheduled: dict[tuple[int, int], list[ScheduledRow]] = defaultdict(list)
    for engine_step in run.scheduler:
        for row in engine_step.rows:
            scheduled[row.index, row.sample].append(row)
    verified: dict[tuple[int, int], list[Step]] = defaultdict(list)
    for step in run.steps:
        verified[step.index, step.sample].append(step)
    dropped: dict[tuple[int, int], int] = defaultdict(int)
    for step in run.discarded:
        dropped[step.index, step.sample] += 1
    for request in run.requests:
        owner = (request.index, request.sample)
        _request_adds_up(request, scheduled[owner], verified[owner], dropped[owner])


def _request_adds_up(
    request: Request, scheduled: list[ScheduledRow], verified: list[Step], dropped: int
) -> None:
    __tracebackhide__ = True
    kinds = {kind: sum(row.kind == kind for row in scheduled) for kind in _KINDS}
    emitted = sum(kinds[kind] for kind in ("prefill", "padded", "decode"))
    emitted += sum(step.accepted + 1 for step in verified)
    # Rows the scheduler sent for verification, but which held no real draft.
    empty = kinds["verify"] - dropped - len(verified)
    emitted += empty
    truncated = _truncated(request, emitted, verified)
    terms = (
        f"completed prefills {kinds['prefill']} + rows without drafts {kinds['decode']} "
        f"+ padded rows {kinds['padded'] + empty} "
        f"+ tokens of verification steps {sum(s.accepted + 1 for s in verified)} "
        f"- truncated by a stop rule {truncated}"
    )
    if emitted - truncated != len(request.output):
        _fail(
            f"{named(request)}: {len(request.output)} committed tokens, "
            f"expected {emitted - truncated} = {terms}"
        )
    if empty < 0:
        _fail(
            f"{named(request)}: {len(verified) + dropped} verification steps in the ledger, "
            f"the scheduler sent {kinds['verify']}"
        )
    for before, step in pairwise(verified):
        if step.position < before.position + before.accepted + 1:
            _fail(
                f"{named(request)}, step {step.step}: started at position {step.position}, "
                f"but step {before.step} ended at {before.position + before.accepted + 1}"
            )


def _tokens_are_the_sampled_ones(run: SpecRun) -> None:
    """What a request got is what its verification steps emitted, token by token."""
    __tracebackhide__ = True
    requests = {(r.index, r.sample): r for r in run.requests}
    for step in run.steps:
        request = requests.get((step.index, step.sample))
        if request is None:
            continue
        start = step.position - request.prompt_len
        emitted = [*step.verified[: step.accepted], step.token]
        committed = request.output[start : start + len(emitted)]
        if committed != emitted[: len(committed)]:
            _fail(
                f"{named(step)}, step {step.step}, position {step.position}: "
                f"committed {committed}, the verification emitted {emitted}"
            )


_KINDS = ("chunk", "prefill", "padded", "decode", "verify")


def _truncated(request: Request, emitted: int, verified: list[Step]) -> int:
    """Tokens a stop rule cut off: only the last step can hold any; a length limit says how many."""
    if request.finish_reason == "length":
        return max(0, emitted - request.limit)
    most = verified[-1].accepted if verified else 0
    return min(max(0, emitted - len(request.output)), most)


def _engine_agrees(run: SpecRun) -> None:
    """Ledger = the scheduler's statistics; padded rows are in theirs, discarded ones in neither."""
    __tracebackhide__ = True
    stats = run.scheduler_stats
    width = len(stats.num_accepted_tokens_per_pos)
    per_pos = [sum(s.accepted > i for s in run.steps) for i in range(width)]
    drafts = sum(sum(d >= 0 for d in s.proposed) for s in run.steps)
    counts = {
        "drafts": (len(run.steps) + run.padded_rows, stats.num_drafts),
        "draft tokens": (drafts + run.padded_drafts, stats.num_draft_tokens),
        "accepted tokens": (sum(s.accepted for s in run.steps), stats.num_accepted_tokens),
        "accepted tokens per position": (per_pos, stats.num_accepted_tokens_per_pos),
    }
    for what, (ledger, engine) in counts.items():
        if ledger != engine:
            _fail(
                f"{what}: the ledger counts {ledger}, the engine's scheduler statistics {engine} "
                f"(verification steps {len(run.steps)}, padded rows {run.padded_rows}, "
                f"discarded rows {len(run.discarded)})"
            )


def _fail(what: str) -> None:
    __tracebackhide__ = True
    fail("accounting", what)
