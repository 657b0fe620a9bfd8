"""Speed as a function of acceptance, of a real engine of a common size.

A Llama of 8 billion parameters and an EAGLE head of its width, with random weights: a forced
acceptance rate needs no trained ones, and a step costs what it costs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu.timing import ROUNDS
from pytest_synthaccept import Drafter, SpecEngine
from pytest_synthaccept.bench.sweep import sweep
from pytest_synthaccept.models import checkpoints

K = 3
RATES = [0.0, 0.2, 0.4, 0.5, 0.6, 0.8, 1.0]
REQUESTS, TOKENS = [1, 8, 64], 96
ABOUT = ("vllm", "device", "method", "num_speculative_tokens", "dtype", "cudagraph_mode")
SIZES: dict[str, dict[str, int]] = {
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
        "num_hidden_layers": 32,
    },
    "tiny": {"num_hidden_layers": 2},  # to try this file where there is no GPU
}


def engine(size: str, folder: Path) -> SpecEngine:
    """The engine; its models are configurations alone, their weights vLLM's dummies."""
    shape = SIZES[size]
    parts = {"target": checkpoints.TARGET_CONFIG | shape}
    parts["eagle"] = checkpoints.EAGLE_CONFIG | shape | {"num_hidden_layers": 1}
    for name, config in parts.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    args = {} if size == "tiny" else {"gpu_memory_utilization": 0.4}
    return SpecEngine(
        str(folder / "target"),
        Drafter("eagle", str(folder / "eagle"), num_speculative_tokens=K),
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=max(REQUESTS),
        enable_prefix_caching=False,
        **args,
    )


def measure(size: str = "8B") -> dict[str, Any]:
    """``engine``: what ran. ``curves``: a ``Curve.to_dict()`` by the number of requests."""
    with tempfile.TemporaryDirectory() as folder, engine(size, Path(folder)) as live:
        curves = {}
        for requests in REQUESTS:
            found = sweep(live, RATES, requests=requests, tokens=TOKENS, rounds=ROUNDS)
            print(f"{requests} requests\n{found}", flush=True)
            curves[str(requests)] = found.to_dict()
        about = {name: live.info[name] for name in ABOUT}
        return {"engine": {"size": size, **about}, "curves": curves}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.speed_curve")
    parser.add_argument("--size", choices=sorted(SIZES), default="8B")
    print(json.dumps(measure(parser.parse_args().size)["engine"]))
