"""vLLM's Model Runner V2 on a CPU: its Triton kernels run in Triton's interpreter.

vLLM's CPU build selects Model Runner V2 only where Triton has a backend named "cpu". The
interpreter compiles nothing, so an entry that merely exists is enough; it must be there
before ``vllm.triton_utils`` is imported, in the engine core and in every worker. vLLM calls
the ``vllm.platform_plugins`` entry points first thing in each process: that is ``register``.
"""

from __future__ import annotations

import os

ENABLED = "SYNTHACCEPT_CPU_RUNTIME"


def environment() -> dict[str, str]:
    """What an engine on the CPU runtime, and every process it starts, needs in its environment."""
    return {ENABLED: "1", "TRITON_INTERPRET": "1"}


def register() -> None:
    """Give Triton a "cpu" backend, if this process belongs to one of our CPU engines.

    Returns None: to vLLM that means "no platform of mine here". A real triton-cpu is left alone.
    """
    if os.environ.get(ENABLED) != "1":
        return
    from triton.backends import Backend, backends

    class InterpreterDriver:
        @staticmethod
        def is_active() -> bool:
            return True

    backends.setdefault("cpu", Backend(compiler=None, driver=InterpreterDriver))
