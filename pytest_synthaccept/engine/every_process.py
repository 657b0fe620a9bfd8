"""What each vLLM process of an engine of ours does first.

vLLM calls the ``vllm.platform_plugins`` entry points in the engine core and in every worker
before it does anything else: that is ``register``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from pytest_synthaccept.engine import cpu_runtime

OWNER = "SYNTHACCEPT_OWNER"  # set while an engine starts: the process it must not outlive
PR_SET_PDEATHSIG = 1


def register() -> None:
    """Set the CPU runtime up where it is wanted, and see to it that no engine is left behind.

    Returns None: to vLLM that means "no platform of mine here".
    """
    die_with_parent()
    cpu_runtime.register()


def die_with_parent() -> None:
    """Have the kernel kill this process of an engine when its parent dies, be it by kill -9."""
    owner = os.environ.get(OWNER)
    if owner is None or owner == str(os.getpid()) or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # it died before we asked
        os._exit(1)
