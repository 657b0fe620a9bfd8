"""The recipes: a Llama target and the drafters that fit it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.models.cache import Files, stored
from pytest_synthaccept.models.tokenizer import tokenizer_files
from pytest_synthaccept.models.weights import Layout, Spread, safetensors

FORMAT = 2
"""Raise it when the same recipe shall give other files."""

HIDDEN, MLP, HEADS, KV_HEADS, VOCAB = 64, 128, 8, 2, 512
# Every attention back end takes 64; the CPU one refuses 16, FlashInfer refuses 32.
HEAD_DIM = 64

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
TARGET_CONFIG = {**_LLAMA, "num_hidden_layers": 2}
EAGLE_CONFIG = {**_LLAMA, "num_hidden_layers": 1}
EAGLE3_CONFIG = {
    **EAGLE_CONFIG,
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": VOCAB,
    # Before, between and after the target's two layers; the default three would coincide.
    "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
}
DRAFT_MODEL_CONFIG = {**_LLAMA, "num_hidden_layers": 1}
# Of vLLM's MTP modules, the one whose decoder layer is Llama's.
MTP_CONFIG = {
    **TARGET_CONFIG,  # its layer is the one after the target's
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "model_type": "ernie4_5_moe",
    "num_nextn_predict_layers": 1,
}


def _projection(out: int, fan_in: int, gain: float = 1.0) -> tuple[tuple[int, int], float]:
    return (out, fan_in), gain / math.sqrt(fan_in)


def _decoder_layer(prefix: str, attention_input: int = HIDDEN) -> Layout:
    # At unit scale a token's own embedding would outweigh all that it attends to. Values at four
    # times that scale make a single wrong entry in the KV cache change what the model says
    # (tests/models/test_sensitivity.py); an MLP at twice keeps it out of short loops, even on a
    # prompt that repeats one token. A larger one drowns what attention adds.
    return {
        f"{prefix}.self_attn.q_proj.weight": _projection(HEADS * HEAD_DIM, attention_input, 2.0),
        f"{prefix}.self_attn.k_proj.weight": _projection(KV_HEADS * HEAD_DIM, attention_input, 2.0),
        f"{prefix}.self_attn.v_proj.weight": _projection(KV_HEADS * HEAD_DIM, attention_input, 4.0),
        f"{prefix}.self_attn.o_proj.weight": _projection(HIDDEN, HEADS * HEAD_DIM, 4.0),
        f"{prefix}.mlp.gate_proj.weight": _projection(MLP, HIDDEN, 2.0),
        f"{prefix}.mlp.up_proj.weight": _projection(MLP, HIDDEN, 2.0),
        f"{prefix}.mlp.down_proj.weight": _projection(HIDDEN, MLP, 2.0),
        f"{prefix}.post_attention_layernorm.weight": ((HIDDEN,), None),
    }


def _llama_layout(layers: int) -> Layout:
    layout: dict[str, tuple[tuple[int, ...], Spread]] = {
        "model.embed_tokens.weight": ((VOCAB, HIDDEN), 1.0),
        "model.norm.weight": ((HIDDEN,), None),
        "lm_head.weight": _projection(VOCAB, HIDDEN),
    }
    for i in range(layers):
        layout[f"model.layers.{i}.input_layernorm.weight"] = ((HIDDEN,), None)
        layout |= _decoder_layer(f"model.layers.{i}")
    return layout


def _eagle_layout() -> Layout:
    # EAGLE's head: [embedding, target's hidden state] -> fc -> one decoder layer without its
    # first norm. Embeddings and lm_head are the target's.
    return {"fc.weight": _projection(HIDDEN, 2 * HIDDEN), **_decoder_layer("layers.0")}


def _eagle3_layout() -> Layout:
    # Three hidden states of the target -> fc; then one decoder layer whose attention takes it
    # beside the embedding, which is the target's. The head is its own. The hidden states are
    # large, and go past the attention: at full scale they would outweigh it.
    return {
        "fc.weight": _projection(HIDDEN, 3 * HIDDEN, 0.25),
        "midlayer.hidden_norm.weight": ((HIDDEN,), None),
        "midlayer.input_layernorm.weight": ((HIDDEN,), None),
        **_decoder_layer("midlayer", 2 * HIDDEN),
        "norm.weight": ((HIDDEN,), None),
        "lm_head.weight": _projection(VOCAB, HIDDEN),
    }


def _mtp_layout() -> Layout:
    # [embedding, target's hidden state], each normed -> projection -> one decoder layer.
    # Embeddings and lm_head are the target's. The projection is the one layer here that vLLM
    # leaves to PyTorch, which rounds by the number of rows: random weights let a draft depend, at
    # near-ties, on what else is in the batch.
    return {
        "model.mtp_emb_norm.0.weight": ((HIDDEN,), None),
        "model.mtp_hidden_norm.0.weight": ((HIDDEN,), None),
        "model.mtp_linear_proj.0.weight": ((HIDDEN, 2 * HIDDEN), "sum"),
        "model.mtp_block.0.input_layernorm.weight": ((HIDDEN,), None),
        **_decoder_layer("model.mtp_block.0"),
    }


# Configuration, layout, stream. Where names are the target's too, one stream would make the weights
# the target's too: a draft model that is its target's first layer fills an equal KV cache, and
# reading the wrong one of the two would not show.
DRAFTERS: dict[str, tuple[dict[str, Any], Callable[[], Layout], str]] = {
    "eagle": (EAGLE_CONFIG, _eagle_layout, ""),
    "eagle3": (EAGLE3_CONFIG, _eagle3_layout, "eagle3/"),
    "draft_model": (DRAFT_MODEL_CONFIG, lambda: _llama_layout(1), "draft_model/"),
    "mtp": (MTP_CONFIG, _mtp_layout, ""),
}


def tiny_target(cache_dir: Path | None = None, *, seed: int = 0) -> Path:
    """The folder of the tiny Llama target, usable as vLLM's ``model=``; written when not there.

    2 layers, hidden size 64, 512 token ids, 4096 positions, about 0.2 million parameters in
    bfloat16, with a byte tokenizer. Its greedy output is varied and depends on the whole
    context. ``seed`` (>= 0) gives other weights. ``cache_dir`` stands in for ``cache_root()``.

    Raises EngineError when the folder cannot be written.
    """
    layout = _llama_layout(TARGET_CONFIG["num_hidden_layers"])
    return _checkpoint("llama-target", TARGET_CONFIG, layout, seed, cache_dir, text=True)


def tiny_drafter(method: str = "eagle", cache_dir: Path | None = None, *, seed: int = 0) -> Path:
    """The folder of a drafter for ``tiny_target``, usable as ``speculative_config["model"]``.

    Its drafts are arbitrary (it is not trained), but they depend on its own KV cache and, but for
    ``draft_model``, on the target's hidden states. ``method`` is vLLM's name: a key of
    ``DRAFTERS``; ``seed`` and ``cache_dir`` as for ``tiny_target``.

    Raises EngineError for a method without a tiny drafter and when the folder cannot be written.
    """
    if method not in DRAFTERS:
        raise EngineError(
            f"there is no tiny drafter for the method {method!r}; available: "
            f"{', '.join(DRAFTERS)}; for another one give Drafter({method!r}, model=PATH)"
        )
    config, layout, stream = DRAFTERS[method]
    name = f"{method}-drafter"
    return _checkpoint(name, config, layout(), seed, cache_dir, text=False, stream=stream)


def _checkpoint(
    name: str,
    config: dict[str, Any],
    layout: Layout,
    seed: int,
    cache_dir: Path | None,
    *,
    text: bool,
    stream: str = "",
) -> Path:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise EngineError(f"seed={seed!r} of the tiny {name} must be an integer >= 0")
    recipe = {"format": FORMAT, "seed": seed, "config": config, "weights": layout}
    if stream:
        recipe["stream"] = stream

    def build() -> Files:
        generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        files = {
            "config.json": json.dumps(config, indent=2).encode(),
            "generation_config.json": json.dumps(generation, indent=2).encode(),
            "model.safetensors": safetensors(seed, layout, stream),
        }
        if text:
            files |= tokenizer_files(VOCAB, config["max_position_embeddings"])
        return files

    return stored(name, recipe, build, cache_dir)
