"""The device is chosen once, before Triton is imported: Triton reads its mode at import."""

from __future__ import annotations

from typing import NamedTuple

from pytest_synthaccept.engine.versions import installed
from pytest_synthaccept.errors import EngineError

CHOICES = ("auto", "cpu", "cuda")


class Device(NamedTuple):
    """The device an engine will run on, and the reason, for the header and the doctor."""

    name: str
    why: str


def choose(requested: str) -> Device:
    """``auto`` takes CUDA where a CUDA build of vLLM and a visible GPU are there, else the CPU."""
    if requested not in CHOICES:
        raise EngineError(f"device {requested!r} is not one of {', '.join(CHOICES)}")
    cuda, why = _cuda_usable()
    if requested == "auto":
        return Device("cuda" if cuda else "cpu", why)
    if requested == "cuda" and not cuda:
        raise EngineError(f"device 'cuda' was asked for, but {why}; use auto or cpu")
    if requested == "cpu" and installed().dist and not installed().cpu_build:
        raise EngineError(
            "device 'cpu' was asked for, but the installed vllm is a GPU build; "
            "install pytest-synthaccept[cpu] in an environment of its own"
        )
    return Device(requested, "asked for")


def _cuda_usable() -> tuple[bool, str]:
    if installed().cpu_build:
        return False, "the installed vLLM is the CPU build"
    import torch

    if not torch.cuda.is_available():
        return False, "no CUDA device is visible"
    return True, f"{torch.cuda.device_count()} CUDA device(s) visible"
