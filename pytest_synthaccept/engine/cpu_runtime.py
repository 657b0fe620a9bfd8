"""vLLM's Model Runner V2 on a CPU: its Triton kernels run in Triton's interpreter.

vLLM's CPU build selects Model Runner V2 only where Triton has a backend named "cpu". The
interpreter compiles nothing, so an entry that merely exists is enough; it must be there
before ``vllm.triton_utils`` is imported, in the engine core and in every worker.
"""

from __future__ import annotations

import contextlib
import os
import sys

from pytest_synthaccept.errors import EngineError

ENABLED = "SYNTHACCEPT_CPU_RUNTIME"


def arm() -> None:
    """Have every vLLM of this process, and of those it starts, run on the CPU runtime.

    Environment only, so it costs nothing. It must come before the first import of vllm, which
    decides for good whether there is a Triton: even ``from vllm import SamplingParams`` does.
    """
    os.environ.update({ENABLED: "1", "TRITON_INTERPRET": "1"})


def require_armed() -> None:
    """``EngineError`` if vllm was imported too early in this process."""
    triton_utils = sys.modules.get("vllm.triton_utils")
    if triton_utils is not None and not triton_utils.HAS_TRITON:
        raise EngineError(
            "vllm was imported before the CPU runtime was set up, and has settled on working "
            "without Triton; load the plugin with -p, or import SpecEngine, before that import"
        )


def register() -> None:
    """Give Triton a "cpu" backend, if this process belongs to one of our CPU engines.

    A real triton-cpu is left alone.
    """
    if os.environ.get(ENABLED) != "1":
        return
    from triton.backends import Backend, backends

    class InterpreterDriver:
        @staticmethod
        def is_active() -> bool:
            return True

        def get_current_target(self) -> None:
            # torch's inductor asks, and takes a RuntimeError for "no Triton here".
            raise RuntimeError("Triton's interpreter compiles for no target")

    backends.setdefault("cpu", Backend(compiler=None, driver=InterpreterDriver))
    _skip_overflow_checks()


def _skip_overflow_checks() -> None:
    """The interpreter checks every integer operation for overflow, which a GPU does not.

    Steps are a fifth faster without. Where Triton keeps the switch elsewhere, they are not.
    """
    from triton.runtime.interpreter import interpreter_builder

    with contextlib.suppress(AttributeError):
        object.__setattr__(interpreter_builder.options, "sanitize_overflow", False)
