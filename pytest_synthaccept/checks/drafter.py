"""``drafter``: what the drafter proposes depends on the committed tokens, not on how they came."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_synthaccept.checks.evidence import diverged_at, fail, named
from pytest_synthaccept.errors import Inconclusive
from pytest_synthaccept.run import Proposals, SpecRun, Step

# Below this relative margin of its logits the drafter hardly prefers one token to the next:
# another batch shape rounds otherwise. Some steps of each type's precision (2^-24, 2^-11, 2^-8).
NEAR_TIE = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}

Margins = Mapping[tuple[int, int], tuple[float, ...]]
"""``Step.margins`` by (index, position)."""


def check_drafter(run: SpecRun) -> str | None:
    """The drafter's own tokens equal those of a run that accepted nothing, prefix by prefix.

    That run visits every committed prefix, one token a step, and takes nothing from the prefix
    cache. A drafter that keeps a rejected token's KV entry, reads a stale hidden state or is off
    by a position proposes otherwise after accepted drafts, though the outputs stay right.

    Raises ``Inconclusive`` where every difference is at a near-tie of the drafter.
    """
    __tracebackhide__ = True
    if not run.lossless:
        return "not a lossless run"
    reference = run.reference_proposals()
    if reference is None:
        return "no engine to make the reference run with"
    compared = compare_proposals(run, reference, "without accepted drafts")
    return None if compared else "no prefix in common with the reference run"


def compare_proposals(
    run: SpecRun, reference: Proposals, how: str, margins: Margins | None = None
) -> int:
    """Compare a run's proposals with others at equal prefixes; how many there were in common.

    ``how`` says how the reference came to the prefixes: "alone", "without the cache".
    ``margins`` are the drafter's there, by default those of the run itself.
    ``AssertionError`` at the first that differs by more than a near-tie; ``Inconclusive`` if
    there are near-ties alone.
    """
    __tracebackhide__ = True
    compared = 0
    near_ties = []
    diverged = diverged_at(run)
    before: dict[tuple[int, int], int] = {}
    for step in run.steps:
        place, owner = (step.index, step.position), (step.index, step.sample)
        expected = reference.get(place)
        if expected is not None and step.position <= diverged.get(owner, step.position):
            compared += 1
            # After a near-tie the later drafts of the step follow another prefix.
            pairs = zip(step.proposed, expected, strict=False)
            at = next((i for i, (ours, other) in enumerate(pairs) if ours != other), None)
            if at is not None:
                known = step.margins if margins is None else margins.get(place, ())
                margin = known[at] if at < len(known) else None
                text = _describe(step, expected, before.get(owner), how)
                if margin is None or not margin < _near_tie(run):
                    fail("drafter", text + _of_margin(run, at, margin))
                near_ties.append(text + _of_margin(run, at, margin))
        before[owner] = step.accepted
    if near_ties:
        raise Inconclusive(
            f"drafter: {near_ties[0]}, a near-tie (below {_near_tie(run):g} in "
            f"{run.info['dtype']}): {len(near_ties)} of {compared} prefixes differ so; take other "
            "prompts, or float32"
        )
    return compared


def _near_tie(run: SpecRun) -> float:
    return NEAR_TIE.get(str(run.info.get("dtype")), 0.0)


def _describe(step: Step, expected: tuple[int, ...], last: int | None, how: str) -> str:
    came = "after its prefill" if last is None else f"after {last} accepted drafts"
    return (
        f"{named(step)}, step {step.step}, position {step.position}, {came}: "
        f"proposed {list(step.proposed)}, where the same prefix {how} gets {list(expected)}"
    )


def _of_margin(run: SpecRun, at: int, margin: float | None) -> str:
    if margin is not None:
        return f"; the drafter's relative margin at draft {at} is {margin:.2g}"
    if run.info.get("dtype") == "float32":
        return ""
    return "; its margin there is unknown (enforce_eager=True tells)"
