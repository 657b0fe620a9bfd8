"""How the messages of the checks name things: one spelling for all of them."""

from __future__ import annotations

from typing import NoReturn

from pytest_synthaccept.run import CoreRequest, Request, ScheduledRow, SpecRun, Step


def named(record: Request | Step | ScheduledRow | CoreRequest) -> str:
    """``request 3``, or ``request 3 sample 1`` where it has several."""
    key = record.key if isinstance(record, Request) else record.request
    return f"request {key}" + (f" sample {record.sample}" if record.sample else "")


def stray_drafts(step: Step) -> str | None:
    """That a row verified other drafts than were stored for its request after its last step."""
    if step.made is None or step.verified[: step.drafted] == step.made[: step.drafted]:
        return None
    return (
        f"verified the drafts {list(step.verified)}, but those made for it were "
        f"{list(step.made)}: they belong to another request or an older step"
    )


def first_difference(request: Request) -> int | None:
    """The first output token that is not the target's own; None where there is none, or no truth.

    An abort or a stop string may end a request before its truth does.
    """
    if request.expected is None:
        return None
    expected = request.expected
    if request.finish_reason != "length":
        expected = expected[: len(request.output)]
    if request.output == expected:
        return None
    pairs = enumerate(zip(request.output, expected, strict=False))
    at = min(len(request.output), len(expected))
    return next((i for i, (got, want) in pairs if got != want), at)


def diverged_at(run: SpecRun) -> dict[tuple[int, int], int]:
    """(index, sample) -> the position of a request's first wrong token, if it has one.

    From there on a lossless run follows no plan: its drafts are rewritten by another text.
    """
    differences = {(r.index, r.sample): (r, first_difference(r)) for r in run.requests}
    return {
        owner: request.prompt_len + at
        for owner, (request, at) in differences.items()
        if at is not None
    }


def fail(check: str, what: str) -> NoReturn:
    """Raise the ``AssertionError`` of a check."""
    __tracebackhide__ = True
    raise AssertionError(f"{check}: {what}")
