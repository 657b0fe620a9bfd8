"""The tiny models in a real engine: varied output that feels a fault of either KV cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_synthaccept.models import tiny_drafter, tiny_target

ROOT = Path(__file__).parents[2]
SPOILED_AT = 4  # the step before which the probe empties a block


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def probe(cache):
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("engine_probe.py"), cache],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_model_runner_v2_with_eagle(probe):
    assert probe["runner"].startswith(("vllm.v1.worker.cpu.", "vllm.v1.worker.gpu."))
    assert probe["speculator"] == "EagleSpeculator"
    assert probe["kv_caches"] == 3  # two layers of the target, then the drafter's


def test_greedy_output_is_varied(probe):
    outputs = probe["simple"]
    assert [len(tokens) for tokens in outputs] == [48, 48]
    plain, after_one_token_repeated = (len(set(tokens)) for tokens in outputs)
    assert plain >= 24
    assert after_one_token_repeated >= 16
    assert len({tuple(tokens) for tokens in outputs}) == 2


def test_drafts_are_varied(probe):
    drafts = probe["clean"]["drafts"]
    assert len({token for row in drafts for token in row}) >= len(drafts) * 3 / 2
    assert len({tuple(row) for row in drafts}) == len(drafts)


def test_target_feels_its_kv_cache(probe):
    clean, spoiled = probe["clean"]["tokens"], probe["target_layer_spoiled"]["tokens"]
    assert spoiled[:SPOILED_AT] == clean[:SPOILED_AT]
    assert spoiled[SPOILED_AT] != clean[SPOILED_AT]  # at once, not some time later


def test_drafter_feels_its_kv_cache_and_cannot_change_the_output(probe):
    clean, spoiled = probe["clean"], probe["drafter_layer_spoiled"]
    assert spoiled["tokens"] == clean["tokens"]
    assert spoiled["drafts"][:SPOILED_AT] == clean["drafts"][:SPOILED_AT]
    assert spoiled["drafts"][SPOILED_AT] != clean["drafts"][SPOILED_AT]


def test_text_prompt_and_text_output(probe):
    assert len(probe["text_prompt"]) == len("Grüße".encode())
    assert probe["text"]


def checkpoint_names(parameters: list[str]) -> set[str]:
    """The names in a file that fill these parameters: vLLM fuses some projections."""
    fused = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    names = set()
    for name in parameters:
        parts = next((part for part in fused if part in name), None)
        names |= {name.replace(parts, one) for one in fused[parts]} if parts else {name}
    return names


def names_in(folder: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        return set(file.keys())


def test_files_fill_every_parameter(probe, cache):
    # vLLM refuses a tensor it does not know, but leaves a drafter's missing ones as they are.
    assert checkpoint_names(probe["target_parameters"]) == names_in(tiny_target(cache))
    shared = {"model.embed_tokens.weight", "lm_head.weight"}
    assert checkpoint_names(probe["drafter_parameters"]) - shared == {
        f"model.{name}" for name in names_in(tiny_drafter("eagle", cache))
    }
    assert probe["embedding_shared"]
    assert probe["lm_head_shared"]
