"""What a measurement depends on: the names that must agree before two of them are compared."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_synthaccept.acceptance.sequence import VERSION

if TYPE_CHECKING:
    from pytest_synthaccept.bench.workload import Workload
    from pytest_synthaccept.engine.engine import SpecEngine

PLAN_VERSION = VERSION


def device_name() -> str:
    """The GPU, or the CPU where engines run on that. Loads vLLM."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return f"cpu ({_cpu_model()})"
    return str(current_platform.get_device_name())


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def versions(engine: SpecEngine) -> dict[str, Any]:
    """Of what ran: vLLM, PyTorch, Triton, and the plan's decisions."""
    from importlib import metadata

    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = "unknown"
    return {
        "vllm": engine.info["vllm"],
        "torch": engine.info["torch"],
        "triton": triton,
        "plan": PLAN_VERSION,
    }


def same(engine: SpecEngine, workload: Workload, plan: str) -> dict[str, Any]:
    """What must agree before work is compared: the benchmark, not the machine."""
    model = engine.config.model or engine.config.args.get("model")
    return {
        "plan": plan,
        "plan_version": PLAN_VERSION,
        "cost": engine.cost,
        "lossless": engine.lossless,
        "model": "tiny" if model is None else Path(model).name,
        "method": engine.info["method"],
        "num_speculative_tokens": engine.num_speculative_tokens,
        "requests": len(workload.prompts),
        "tokens": workload.tokens,
        # The same passes are calls on one and replays on the other.
        "cudagraph_mode": engine.info["cudagraph_mode"],
    }
