"""``--synthaccept-doctor``: can an engine run here, and if not, why. One ``name: value`` a line."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

import pytest

from pytest_synthaccept import options
from pytest_synthaccept.errors import EngineError


class Finding(NamedTuple):
    """One line; ``usable`` False where no engine can run for it."""

    name: str
    value: str
    usable: bool = True


def main(config: pytest.Config) -> int:
    """Print the findings; 0 when an engine can run, else 1."""
    options.configure(config)
    findings = list(examine(options.settings(config)))
    bad = [finding.name for finding in findings if not finding.usable]
    result = f"not usable, see {', '.join(bad)}" if bad else "usable"
    for finding in (*findings, Finding("result", result)):
        print(f"{finding.name}: {finding.value}")
    return int(bool(bad))


def examine(settings: options.Settings) -> Iterator[Finding]:
    """Look at the environment; starts no engine."""
    yield Finding("python", platform.python_version())
    for dist in ("pytest", "torch", "triton"):
        version = _version(dist)
        yield Finding(dist, version or "not installed", usable=version is not None)
    yield _vllm()
    yield from _device(settings.device)
    yield _cache()


def _version(dist: str) -> str | None:
    try:
        return metadata.version(dist)
    except metadata.PackageNotFoundError:
        return None


def _vllm() -> Finding:
    from pytest_synthaccept.engine.versions import require_supported

    try:
        dist, version = require_supported()
    except EngineError as error:
        return Finding("vllm", str(error), usable=False)
    return Finding("vllm", f"{dist} {version} (supported)")


def _device(requested: str) -> Iterator[Finding]:
    from pytest_synthaccept.engine.device import choose

    try:
        name, why = choose(requested)
    except (EngineError, ImportError) as error:
        yield Finding("device", str(error), usable=False)
        return
    yield Finding("device", f"{name} ({why})")
    yield _runner(name)


def _runner(device: str) -> Finding:
    from pytest_synthaccept.engine.config import refuse_unsupported

    try:
        refuse_unsupported({}, {})  # what the environment alone rules out
    except EngineError as error:
        return Finding("runner", str(error), usable=False)
    kernels = "compiled" if device == "cuda" else "in Triton's interpreter"
    return Finding("runner", f"Model Runner V2, Triton kernels {kernels}")


def _cache() -> Finding:
    from pytest_synthaccept.models import cache_root

    try:
        folder = cache_root()
    except EngineError as error:
        return Finding("cache", str(error), usable=False)
    # The folder is made when a model is written: what counts is the nearest that exists.
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):  # permissions alone do not tell
            return Finding("cache", f"{folder} (writable)")
    except OSError:
        return Finding("cache", f"{folder} (not writable)", usable=False)
