"""``outputs``: a lossless run says what the target says without speculation, whatever the plan."""

from __future__ import annotations

from pytest_synthaccept.run import Request, SpecRun

# Below this logprob margin the target hardly prefers one token to the next: another batch
# shape may tip it. Such a difference is named a near-tie.
NEAR_TIE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}


def check_outputs(run: SpecRun) -> str | None:
    """Outputs are token-identical to the target's own, as far as each request went."""
    __tracebackhide__ = True
    if not run.lossless:
        return "not a lossless run"
    for request in run.requests:
        if request.expected is None:  # not ours: given to vLLM directly
            continue
        expected = request.expected
        if request.finish_reason != "length":  # a stop string or an abort may come earlier
            expected = expected[: len(request.output)]
        if request.output != expected:
            _fail(run, request, expected)
    return None


def _fail(run: SpecRun, request: Request, expected: list[int]) -> None:
    __tracebackhide__ = True
    output = request.output
    pairs = enumerate(zip(output, expected, strict=False))
    at = next((i for i, (got, want) in pairs if got != want), min(len(output), len(expected)))
    position = request.prompt_len + at
    block_size = run.info["block_size"]
    raise AssertionError(
        f"outputs: request {request.key}{_sample(request)}: output token {at} is "
        f"{_token(output, at)}, the target alone says {_token(expected, at)}; "
        f"{_step_of(run, request, position)}, position {position} "
        f"(block {position // block_size}, slot {position % block_size}){_margin(run, request, at)}"
    )


def _token(tokens: list[int], at: int) -> str:
    return str(tokens[at]) if at < len(tokens) else "missing"


def _sample(request: Request) -> str:
    return f" sample {request.sample}" if request.sample else ""


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


def _margin(run: SpecRun, request: Request, at: int) -> str:
    if at >= len(request.margins):
        return ""
    margin = request.margins[at]
    near = margin < NEAR_TIE.get(str(run.info.get("dtype")), 0)
    return f"; the target's logprob margin there is {margin:.2g}" + (": a near-tie" if near else "")
