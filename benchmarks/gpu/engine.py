"""Whole steps of a real engine with CUDA graphs, and what a change of rate costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.timing import ROUNDS, percentiles
from pytest_synthaccept import Drafter, SpecEngine
from pytest_synthaccept.engine import start
from pytest_synthaccept.engine.config import EngineConfig
from pytest_synthaccept.engine.device import choose

REQUESTS, K, WARM_UP, STEPS = 64, 3, 30, 200
ARGS = {"max_num_seqs": REQUESTS}
RATES = [0.7, 0.49, 0.343]
PROMPTS = [[3 + (7 * i + 5 * j) % 500 for j in range(20)] for i in range(REQUESTS)]


def plain(**speculative: Any) -> Any:
    """``vllm.LLM`` without the plugin, its arguments those of ``SpecEngine``."""
    from vllm import LLM

    config = EngineConfig(None, Drafter("eagle", num_speculative_tokens=K), "auto", ARGS)
    device = choose("auto")
    args = start.engine_args(config, device)
    del args["worker_extension_cls"]
    args["speculative_config"] = args["speculative_config"] | speculative
    with start._environment(args, device, tiny=True), start.quiet():
        return LLM(**args)


def fill(llm: Any, tag: str) -> None:
    """Queue the requests, each longer than what is measured."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=980, ignore_eos=True)
    for i, prompt in enumerate(PROMPTS):
        llm.llm_engine.add_request(f"{tag}-{i}", {"prompt_token_ids": prompt}, params)


def step_microseconds(llm: Any) -> float:
    """Mean over ``STEPS`` engine steps in which every request decodes."""
    import torch

    for _ in range(WARM_UP):
        llm.llm_engine.step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(STEPS):
        llm.llm_engine.step()
    torch.cuda.synchronize()
    taken = (time.perf_counter() - begin) * 1e6 / STEPS
    unfinished = llm.llm_engine.get_num_unfinished_requests()
    assert unfinished == REQUESTS, f"{unfinished} of {REQUESTS} requests still decode"
    llm.llm_engine.abort_request(list(llm.llm_engine.output_processor.request_states), True)
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()
    return taken


def direct(llm: Any, tag: str) -> float:
    """Requests given to ``vllm.LLM``; under the plugin the workers decide and log."""
    fill(llm, tag)
    return step_microseconds(llm)


def measure() -> Iterator[dict[str, Any]]:
    """The records: steps of four engines by turns, then starts and changes of rate."""
    begin = time.perf_counter()
    ours = SpecEngine(drafter=Drafter("eagle", num_speculative_tokens=K), **ARGS)
    first_start = time.perf_counter() - begin
    synthetic = plain(rejection_sample_method="synthetic", synthetic_acceptance_rates=RATES)
    standard = plain()
    times: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        for provider, llm, cost in (
            ("vLLM, synthetic", synthetic, None),
            ("ours, lean, ledger on", ours.llm, "lean"),
            ("vLLM, standard", standard, None),
            ("ours, faithful, ledger on", ours.llm, "faithful"),
        ):
            if cost is not None:
                ours.set_acceptance(rates=RATES, cost=cost)
            times.setdefault(provider, []).append(direct(llm, f"{number}-{provider}"))
        ours.set_acceptance(rates=RATES, cost="lean")
        times.setdefault("ours, lean, watched for every check", []).append(watched(ours))
    shape = {"requests": REQUESTS, "k": K, "temperature": 0.0, "vocab": 512}
    for provider, values in times.items():
        yield {
            "op": "engine step, us",
            "provider": provider,
            "shape": shape,
            **percentiles(values[1:]),
        }
    changes = []
    for i in range(50):
        begin = time.perf_counter()
        ours.set_acceptance(0.3 + i / 100)
        changes.append((time.perf_counter() - begin) * 1e6)
    yield {"op": "change of rate, us", "provider": "ours", "shape": {}, **percentiles(changes)}
    seconds = {"p50": round(first_start * 1e6)}
    yield {"op": "engine start, us", "provider": "ours, the first", "shape": {}, **seconds}
    ours.close()


def watched(engine: SpecEngine) -> float:
    """A run of the plugin's: scheduler and KV cache are watched too."""
    from pytest_synthaccept.engine import seam

    try:
        with engine.run() as run:
            for prompt in PROMPTS:
                run.add(prompt, max_tokens=980)
            for _ in range(WARM_UP):
                run.step()
            begin = time.perf_counter()
            for _ in range(STEPS):
                run.step()
            taken = (time.perf_counter() - begin) * 1e6 / STEPS
            raise _MeasuredError
    except _MeasuredError:
        seam.abort_all(engine.llm)
    return taken


class _MeasuredError(Exception):
    """Leaves a run without running it to its end."""
