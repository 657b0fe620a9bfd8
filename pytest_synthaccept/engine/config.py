"""What an engine is made from. Pure: two equal configurations share one pooled engine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_synthaccept.errors import EngineError

DEFAULT_SPECULATIVE_TOKENS = 3

_ENVIRONMENT_OF_AN_ENGINE = (
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_CPU_KVCACHE_SPACE",
)


@dataclass(frozen=True, init=False)
class Drafter:
    """How draft tokens are made: vLLM's ``speculative_config`` under the field's names.

    ``model=None`` with a method that needs a head takes the tiny checkpoint of that method.
    """

    method: str
    model: str | None
    num_speculative_tokens: int
    speculative_config: Mapping[str, Any]

    def __init__(
        self,
        method: str,
        model: str | os.PathLike[str] | None = None,
        num_speculative_tokens: int = DEFAULT_SPECULATIVE_TOKENS,
        **speculative_config: Any,
    ) -> None:
        k = num_speculative_tokens
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise EngineError(f"num_speculative_tokens={k!r} of Drafter must be an integer >= 1")
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "model", None if model is None else os.fspath(model))
        object.__setattr__(self, "num_speculative_tokens", k)
        object.__setattr__(self, "speculative_config", dict(speculative_config))

    def to_vllm(self) -> dict[str, Any]:
        """The dict vLLM takes as ``speculative_config``."""
        out = {"method": self.method, "num_speculative_tokens": self.num_speculative_tokens}
        if self.model is not None:
            out["model"] = self.model
        return out | dict(self.speculative_config)


@dataclass(frozen=True)
class EngineConfig:
    """Model, drafter, device and vLLM engine arguments. ``model=None`` is the tiny target."""

    model: str | None = None
    drafter: Drafter | None = None
    device: str = "auto"
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for configurations that one live engine can serve.

        So are the environment variables by which a user shapes an engine; vLLM itself writes
        others while it starts.
        """
        drafter = self.drafter.to_vllm() if self.drafter else None
        env = {name: os.environ.get(name) for name in _ENVIRONMENT_OF_AN_ENGINE}
        return json.dumps(
            [self.model, drafter, self.device, dict(self.args), env], sort_keys=True, default=repr
        )


# Engine arguments under which the forced path would not run, or not alone.
# (name, values that are harmless, why the others are refused)
_REFUSED_ARGS = (
    ("worker_extension_cls", (None, ""), "the plugin reaches the workers through it"),
    ("watermark_config", (None,), "watermarked sampling draws its own tokens"),
    ("enable_batch_sharded_sampling", (None, False), "each rank would verify a part of the batch"),
    ("disable_log_stats", (None, False), "the accounting check reads the scheduler statistics"),
)
_REFUSED_SPECULATIVE = (
    ("rejection_sample_method", (None, "standard"), "the plugin replaces the standard method"),
    ("synthetic_acceptance_rates", (None,), "the plugin forces the rates itself"),
    ("synthetic_acceptance_length", (None,), "the plugin forces the length itself"),
    ("enable_adaptive_verification", (None, False), "it changes how many drafts are verified"),
    ("num_speculative_tokens_per_batch_size", (None,), "it changes K while the plan stands"),
)


def refuse_unsupported(args: Mapping[str, Any], speculative: Mapping[str, Any]) -> None:
    """Raise an ``EngineError`` that names the first argument the forced path cannot live with."""
    for where, given, rules in (
        ("engine arguments", args, _REFUSED_ARGS),
        ("speculative_config", speculative, _REFUSED_SPECULATIVE),
    ):
        for name, harmless, why in rules:
            if given.get(name) not in harmless:
                allowed = " or ".join(repr(v) for v in harmless if v is not None) or "unset"
                raise EngineError(
                    f"{name}={given[name]!r} in the {where} is not supported: {why}; "
                    f"leave it {allowed}"
                )
    runner = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
    if runner is not None and runner.strip().lower() in ("0", "false", ""):
        raise EngineError(
            f"VLLM_USE_V2_MODEL_RUNNER={runner} selects the V1 model runner; "
            "the forced path lives in Model Runner V2: unset it or set it to 1"
        )


def require_path(what: str, model: str | None) -> None:
    """An ``EngineError`` if ``model`` is spelt like a path and nothing is there.

    ``org/name`` may be a repository on a hub and is left to vLLM.
    """
    if model is None:
        return
    path = Path(model).expanduser()
    spelt_as_path = path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1
    if spelt_as_path and not (path / "config.json").is_file():
        state = "has no config.json" if path.is_dir() else "does not exist"
        raise EngineError(f"{what} {model!r} {state}; give a model folder or a hub name")
