"""``outputs``: a lossless run says what the target says without speculation, whatever the plan."""

from __future__ import annotations

from pytest_synthaccept.checks.evidence import fail, first_difference, named
from pytest_synthaccept.errors import Inconclusive
from pytest_synthaccept.run import Request, SpecRun

# Below this logprob margin the target hardly prefers one token to the next: another batch
# shape may tip it. A run that differs in such tokens alone is inconclusive.
NEAR_TIE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


def check_outputs(run: SpecRun) -> str | None:
    """Outputs are token-identical to the target's own, as far as each request went.

    Raises ``Inconclusive`` where every first difference is at a near-tie of the target.
    """
    __tracebackhide__ = True
    if not run.lossless:
        return "not a lossless run"
    near_ties = []
    for request in run.requests:
        at = first_difference(request)
        if at is None:
            continue
        if not _is_near_tie(run, request, at):
            fail("outputs", _describe(run, request, at))
        near_ties.append(_describe(run, request, at))
    if near_ties:
        threshold = _near_tie(run)
        raise Inconclusive(
            f"outputs: {near_ties[0]}, a near-tie (below {threshold:g} in {run.info['dtype']}): "
            f"{_count(near_ties)}; take prompts with wider margins (SpecEngine.strong_prompts), "
            "or float32"
        )
    return None


def _count(near_ties: list[str]) -> str:
    return f"{len(near_ties)} request{'s' if len(near_ties) > 1 else ''} differ so"


def _near_tie(run: SpecRun) -> float:
    return NEAR_TIE.get(str(run.info.get("dtype")), 0.0)


def _is_near_tie(run: SpecRun, request: Request, at: int) -> bool:
    # A missing or surplus token is no matter of margins.
    both = at < len(request.output) and at < len(request.expected or ())
    return both and at < len(request.margins) and request.margins[at] < _near_tie(run)


def _describe(run: SpecRun, request: Request, at: int) -> str:
    position = request.prompt_len + at
    block_size = run.info["block_size"]
    expected = request.expected or []
    return (
        f"{named(request)}: output token {at} is {_token(request.output, at)}, "
        f"the target alone says {_token(expected, at)}; {_step_of(run, request, position)}"
        f"{_engine_step_of(run, request, position)}, position {position} "
        f"(block {position // block_size}, slot {position % block_size}){_margin(request, at)}"
    )


def _token(tokens: list[int], at: int) -> str:
    return str(tokens[at]) if at < len(tokens) else "missing"


def _step_of(run: SpecRun, request: Request, position: int) -> str:
    """The verification step that committed the token at ``position``, or the last before it."""
    before = [
        step
        for step in run.steps
        if (step.index, step.sample) == (request.index, request.sample)
        and step.position <= position
    ]
    if not before:
        return "before any verification step"
    step = before[-1]
    where = "committed by" if position <= step.position + step.accepted else "after"
    return f"{where} step {step.step} ({step.accepted} of {step.drafted} drafts accepted)"


def _engine_step_of(run: SpecRun, request: Request, position: int) -> str:
    """The engine step whose outcome brought the token at ``position``."""
    for event in run.core:
        for state in event.requests if event.kind == "update" else ():
            mine = (state.index, state.sample) == (request.index, request.sample)
            if mine and state.committed > position:
                return f" in engine step {event.step}"
    return ""


def _margin(request: Request, at: int) -> str:
    if at >= len(request.margins):
        return ""
    return f"; the target's logprob margin there is {request.margins[at]:.2g}"
