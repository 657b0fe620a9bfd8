"""Live engines by configuration: tests share one, a change of rate is one RPC."""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_synthaccept.engine.config import EngineConfig
from pytest_synthaccept.engine.engine import SpecEngine
from pytest_synthaccept.engine.versions import require_supported


class EnginePool:
    """Starts an engine at its first use and keeps it until ``close``.

    ``progress`` is told what is being started and how long it took: a start takes seconds.
    """

    def __init__(self, progress: Callable[[str], None] | None = None) -> None:
        self._engines: dict[str, SpecEngine] = {}
        self._progress = progress or (lambda message: None)
        self.starts = 0

    def get(self, config: EngineConfig) -> SpecEngine:
        """The live engine of this configuration; one whose step died is replaced."""
        key = config.key
        if key in self._engines and not self._engines[key].alive:
            why = self._engines[key].failure or "a test closed it"
            self._progress(f"discarding an engine that died: {why}")
            self._engines.pop(key).close()
        if key not in self._engines:
            require_supported()
            self._progress(f"starting engine: {_name(config)} ...")
            began = time.perf_counter()
            self._engines[key] = SpecEngine.from_config(config)
            self.starts += 1
            info = self._engines[key].info
            seconds = time.perf_counter() - began
            self._progress(
                f"engine ready in {seconds:.1f} s: {info['vllm']}, Model Runner V2, "
                f"{info['method']} K={info['num_speculative_tokens']}, {info['device']}"
            )
        return self._engines[key]

    def close(self) -> None:
        """Shut all engines down, the last started first."""
        while self._engines:
            _, engine = self._engines.popitem()
            engine.close()


def _name(config: EngineConfig) -> str:
    target = config.model or config.args.get("model") or "tiny target"
    method = config.drafter.method if config.drafter else "eagle"
    args = ", ".join(f"{k}={v}" for k, v in config.args.items() if k != "model")
    return f"{target} + {method}" + (f" ({args})" if args else "")
