"""Start a vLLM engine under the plugin: environment, defaults, refusals, and what is put back."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_synthaccept.engine import cpu_runtime, every_process
from pytest_synthaccept.engine.config import (
    Drafter,
    EngineConfig,
    refuse_unsupported,
    require_path,
)
from pytest_synthaccept.engine.device import Device, choose
from pytest_synthaccept.engine.versions import Installed, require_supported
from pytest_synthaccept.engine.worker import EXTENSION
from pytest_synthaccept.errors import EngineError

MIB = 2**20

# An engine in this process: scheduler and KV manager within reach, and it dies with us.
# The user's own setting of any of these wins.
_ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
# A tiny model spends its time in the interpreter; a second thread only spins, and cores that
# were bound are lost to the other processes of a test run.
_ENVIRONMENT_OF_TINY = {
    "cpu": {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
    "cuda": {},
}

_DEFAULTS = {
    # Nothing is compiled for an engine that runs a few hundred steps, and blocks as small as
    # the CPU back end allows cross more boundaries.
    "cpu": {
        "enforce_eager": True,
        "block_size": 32,
        "max_num_seqs": 32,
        "kv_cache_memory_bytes": 256 * MIB,
    },
    "cuda": {"max_num_seqs": 256},
}
_TINY_DEFAULTS = {
    "cpu": {"dtype": "float32", "max_model_len": 1024, "kv_cache_memory_bytes": 64 * MIB},
    # Several tiny engines fit one GPU beside whatever else runs there.
    "cuda": {
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "kv_cache_memory_bytes": 256 * MIB,
        "gpu_memory_utilization": 0.2,
    },
}


@dataclass(frozen=True)
class Started:
    """A live vLLM object and the facts that were settled on the way to it."""

    llm: Any
    device: Device
    vllm: Installed
    engine_args: dict[str, Any]


def start(config: EngineConfig, *, speculation: bool = True) -> Started:
    """Start the engine of ``config``, or with ``speculation=False`` its target alone.

    ``EngineError`` of one line where that is not possible.
    """
    found = require_supported()
    device = choose(config.device)
    args = engine_args(config, device)
    if not speculation:
        del args["speculative_config"]
    tiny = is_tiny(config)
    asynchronous = device.name == "cpu" and args.get("async_scheduling") is True
    with _environment(args, device, tiny), quiet(), _global_random_state():
        if device.name == "cpu":
            cpu_runtime.arm()  # for good: kernels are made lazily
            cpu_runtime.require_armed()
            cpu_runtime.register()
            if tiny:
                one_thread()
        try:
            from vllm import LLM, envs

            envs.disable_envs_cache()  # an engine started before froze what it had read
            with _async_scheduling_on_cpu() if asynchronous else contextlib.nullcontext():
                llm = LLM(**args)
        except Exception as error:
            traceback.print_exc()  # the engine's own words, in the captured output
            raise EngineError(f"the engine did not start: {_first_cause(error)}") from None
    return Started(llm, device, found, args)


def engine_args(config: EngineConfig, device: Device) -> dict[str, Any]:
    """The arguments for ``vllm.LLM``: defaults, then the caller's, then what the plugin needs."""
    given = dict(config.args)
    drafter = config.drafter or Drafter("eagle")
    more = given.pop("speculative_config", None) or {}
    if not isinstance(more, Mapping):
        raise EngineError(f"speculative_config={more!r} in the engine arguments must be a dict")
    speculative = drafter.to_vllm() | dict(more)
    refuse_unsupported(given, speculative)
    tiny = is_tiny(config)
    model = given.pop("model", config.model)
    require_path("the target model", model)
    require_path("the draft model", speculative.get("model"))
    if tiny:
        from pytest_synthaccept.models import tiny_target

        model = str(tiny_target())
        if "model" not in speculative:
            speculative["model"] = _tiny_drafter(speculative["method"])
            overrides = given.get("hf_overrides") or {}
            if speculative["method"] == "mtp" and isinstance(overrides, Mapping):
                # An MTP module is part of its target's checkpoint: vLLM asks that for its size.
                given["hf_overrides"] = {"num_nextn_predict_layers": 1, **overrides}
    defaults = _DEFAULTS[device.name] | (_TINY_DEFAULTS[device.name] if tiny else {})
    return {
        **defaults,
        **given,
        "model": model,
        "speculative_config": speculative,
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": False,
        "use_tqdm_on_load": False,
    }


def is_tiny(config: EngineConfig) -> bool:
    """Whether the target is the plugin's own."""
    return config.model is None and "model" not in config.args


def one_thread() -> None:
    """Let torch compute in one thread in this process, where its library is loaded already."""
    import torch

    torch.set_num_threads(1)


def _tiny_drafter(method: str) -> str:
    from pytest_synthaccept.models import tiny_drafter

    return str(tiny_drafter(method))


@contextlib.contextmanager
def _environment(args: dict[str, Any], device: Device, tiny: bool) -> Iterator[None]:
    """vLLM reads these while it starts; afterwards the process has its own environment back."""
    wanted = _ENVIRONMENT | {every_process.OWNER: str(os.getpid())}
    if tiny:
        wanted |= _ENVIRONMENT_OF_TINY[device.name]
    if device.name == "cpu" and (ranks := args.get("tensor_parallel_size", 1)) > 1:
        wanted |= {"VLLM_CPU_OMP_THREADS_BIND": split_cores(ranks)}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def split_cores(ranks: int) -> str:
    """The usable cores, dealt out to ``ranks`` workers, as VLLM_CPU_OMP_THREADS_BIND spells it."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < ranks:
        raise EngineError(
            f"tensor_parallel_size={ranks} on the CPU needs {ranks} cores, {len(cores)} usable here"
        )
    each = len(cores) // ranks
    return "|".join(",".join(map(str, cores[i * each : (i + 1) * each])) for i in range(ranks))


@contextlib.contextmanager
def _async_scheduling_on_cpu() -> Iterator[None]:
    """Keep what was asked for: vLLM switches async scheduling off on the CPU, where it runs too."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    def keeping(cls: Any, vllm_config: Any) -> None:
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(keeping)
    try:
        yield
    finally:
        CpuPlatform.check_and_update_config = classmethod(original)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A project's ``-W error`` is about its own code, not about vLLM's or the interpreter's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _global_random_state() -> Iterator[None]:
    """An engine in this process seeds Python, NumPy and torch; a test must not notice."""
    python = random.getstate()
    numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    torch = sys.modules["torch"].get_rng_state() if "torch" in sys.modules else None
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            sys.modules["numpy"].random.set_state(numpy)
        if torch is not None:
            sys.modules["torch"].set_rng_state(torch)


def _first_cause(error: BaseException) -> str:
    """The innermost error in one line: vLLM wraps the reason several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A validation error names the field in its second line and the reason in its third.
    text = "; ".join(lines[:3] if "validation error" in lines[0] else lines[:1]) if lines else ""
    return f"{type(error).__name__}: {text}"[:400]
