"""``drafter``: what the drafter proposes depends on the committed tokens, not on how they came."""

from __future__ import annotations

from pytest_synthaccept.checks.evidence import diverged_at, fail, named
from pytest_synthaccept.run import Proposals, SpecRun


def check_drafter(run: SpecRun) -> str | None:
    """The drafter's own tokens equal those of a run that accepted nothing, prefix by prefix.

    That run visits every committed prefix, one token a step, and takes nothing from the prefix
    cache. A drafter that keeps a rejected token's KV entry, reads a stale hidden state or is off
    by a position proposes otherwise after accepted drafts, though the outputs stay right.
    """
    __tracebackhide__ = True
    if not run.lossless:
        return "not a lossless run"
    reference = run.reference_proposals()
    if reference is None:
        return "no engine to make the reference run with"
    compared = compare_proposals(run, reference, "without accepted drafts")
    return None if compared else "no prefix in common with the reference run"


def compare_proposals(run: SpecRun, reference: Proposals, how: str) -> int:
    """Compare a run's proposals with others at equal prefixes; how many there were in common.

    ``how`` says how the reference came to the prefixes: "alone", "without the cache".
    ``AssertionError`` at the first that differs.
    """
    __tracebackhide__ = True
    compared = 0
    diverged = diverged_at(run)
    before: dict[tuple[int, int], int] = {}
    for step in run.steps:
        expected = reference.get((step.index, step.position))
        owner = (step.index, step.sample)
        if expected is not None and step.position <= diverged.get(owner, step.position):
            compared += 1
            width = min(len(expected), len(step.proposed))
            if step.proposed[:width] != expected[:width]:
                last = before.get(owner)
                came = "after its prefill" if last is None else f"after {last} accepted drafts"
                fail(
                    "drafter",
                    f"{named(step)}, step {step.step}, position {step.position}, {came}: "
                    f"proposed {list(step.proposed)}, where "
                    f"the same prefix {how} gets {list(expected)}",
                )
        before[owner] = step.accepted
    return compared
