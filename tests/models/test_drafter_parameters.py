"""Each drafter's file fills every parameter that vLLM makes for its method."""

import re

import pytest

from pytest_synthaccept.engine.config import Drafter
from pytest_synthaccept.models import tiny_drafter

# As in the file -> as vLLM names it.
RENAMED = {
    "eagle": [(r"^", "model.")],
    "eagle3": [(r"^midlayer\.", "layers.0."), (r"^(?!lm_head)", "model.")],
    "draft_model": [],
    "mtp": [(r"^model\.(mtp_\w+)\.0\.", r"model.layers.2.\1.")],
}
FUSED = [(r"\b[qkv]_proj\b", "qkv_proj"), (r"\b(gate|up)_proj\b", "gate_up_proj")]


@pytest.fixture(params=RENAMED)
def spec_drafter(request):
    return Drafter(request.param)


def test_every_parameter_is_filled(spec_engine, spec_drafter):
    from safetensors import safe_open

    method = spec_drafter.method
    core = spec_engine.llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    target, drafter = runner.model, runner.speculator.model
    shared = {
        "model.embed_tokens.weight": drafter.model.embed_tokens is target.model.embed_tokens,
        "lm_head.weight": drafter.lm_head is target.lm_head,
    }
    with safe_open(tiny_drafter(method) / "model.safetensors", framework="numpy") as file:
        names = set(file.keys())
    for pattern, name in [*RENAMED[method], *FUSED]:
        names = {re.sub(pattern, name, one) for one in names}
    # vLLM refuses a tensor it does not know, but leaves a drafter's missing ones as they are.
    wanted = {name for name, _ in drafter.named_parameters() if not shared.get(name)}
    assert names == wanted
