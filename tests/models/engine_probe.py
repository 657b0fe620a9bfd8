"""Runs the tiny target and its EAGLE drafter in a real vLLM engine on CPU; prints JSON.

A process of its own, with vLLM alone: what the checkpoints are good for must not depend on the
rest of this package. usage: python engine_probe.py CACHE_DIR
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ |= {
    "TRITON_INTERPRET": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    # One thread, free to move: there is nothing to share out, and threads bound to busy cores
    # wait for each other.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

from triton.backends import Backend, backends


class _CpuDriver:
    @staticmethod
    def is_active() -> bool:
        return True


backends.setdefault("cpu", Backend(compiler=None, driver=_CpuDriver))

from vllm import LLM, SamplingParams  # noqa: E402

from pytest_synthaccept.models import tiny_drafter, tiny_target  # noqa: E402

BLOCK = 32
SPOILED_AT = 4
SIMPLE = [[1, 5, 7, 9], [7] * 8]
LONG = [3 + (37 * i) % 256 for i in range(BLOCK + 8)]

cache = Path(sys.argv[1])
llm = LLM(
    model=str(tiny_target(cache)),
    speculative_config={
        "method": "eagle",
        "model": str(tiny_drafter("eagle", cache)),
        "num_speculative_tokens": 3,
    },
    enforce_eager=True,
    dtype="float32",
    max_model_len=256,
    block_size=BLOCK,
    max_num_seqs=4,
    enable_prefix_caching=False,
)
engine = llm.llm_engine
core = engine.engine_core.engine_core
runner = core.model_executor.driver_worker.worker.model_runner
drafts: list[list[int]] = []
_propose = runner.speculator.propose


def _recording_propose(*args, **kwargs):
    proposed = _propose(*args, **kwargs)
    drafts.append(proposed[0].tolist())
    return proposed


runner.speculator.propose = _recording_propose


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)


def spoiled(name: str, layers: slice) -> dict[str, list]:
    """Tokens and drafts of LONG when ``layers`` lose its first KV block after a few steps."""
    drafts.clear()
    internal = engine.add_request(name, {"prompt_token_ids": LONG}, greedy(8))
    tokens: list[int] = []
    for step in range(100):
        if step == SPOILED_AT:
            (blocks,) = core.scheduler.kv_cache_manager.get_block_ids(internal)
            for kv_cache in runner.kv_caches[layers]:
                kv_cache[blocks[0]] = 0
        for output in engine.step():
            tokens = list(output.outputs[0].token_ids)
        if not engine.has_unfinished_requests():
            return {"tokens": tokens, "drafts": list(drafts)}
    raise AssertionError("the request does not end")


def parameters(module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


drafter = runner.speculator.model
outputs = llm.generate(
    [{"prompt_token_ids": prompt} for prompt in SIMPLE], greedy(48), use_tqdm=False
)
text = llm.generate(["Grüße"], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)[0]
print(
    json.dumps(
        {
            "runner": type(runner).__module__,
            "speculator": type(runner.speculator).__name__,
            "simple": [list(output.outputs[0].token_ids) for output in outputs],
            "text_prompt": text.prompt_token_ids,
            "text": text.outputs[0].text,
            "clean": spoiled("a", slice(0, 0)),
            "target_layer_spoiled": spoiled("b", slice(0, 1)),
            "drafter_layer_spoiled": spoiled("c", slice(2, 3)),
            "kv_caches": len(runner.kv_caches),
            "target_parameters": parameters(runner.model),
            "drafter_parameters": parameters(drafter),
            "embedding_shared": drafter.model.embed_tokens is runner.model.model.embed_tokens,
            "lm_head_shared": drafter.lm_head is runner.model.lm_head,
        }
    )
)
