"""What is in the checkpoints, without an engine."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.models import tiny_drafter, tiny_target
from pytest_synthaccept.models.weights import tensor

ROOT = Path(__file__).parents[2]
METHODS = ("eagle", "eagle3", "draft_model", "mtp")
MAKERS = {"target": tiny_target, **{m: functools.partial(tiny_drafter, m) for m in METHODS}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return {name: make(cache) for name, make in MAKERS.items()}


def load(folder: Path):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_importing_and_finding_a_copy_imports_nothing_heavy(folders):
    code = (
        "import sys, pathlib; from pytest_synthaccept.models import tiny_target, tiny_drafter;"
        "root = pathlib.Path(sys.argv[1]); tiny_target(root); tiny_drafter('eagle', root);"
        "print([m for m in ('numpy', 'torch', 'safetensors', 'tokenizers') if m in sys.modules])"
    )
    root = folders["target"].parents[1]
    out = subprocess.run([sys.executable, "-c", code, root], cwd=ROOT, capture_output=True)
    assert out.stdout == b"[]\n", out.stderr


@pytest.mark.parametrize("name", MAKERS)
def test_same_bytes_every_time(folders, tmp_path, name):
    start = time.perf_counter()
    again = MAKERS[name](tmp_path)
    assert time.perf_counter() - start < 3
    assert again.name == folders[name].name
    files = sorted(path.name for path in again.iterdir())
    assert files == sorted(path.name for path in folders[name].iterdir())
    for file in files:
        assert (again / file).read_bytes() == (folders[name] / file).read_bytes(), file


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("target", "cdad3c9e21cda4f6"),
        ("eagle", "6efc6abc65a5f7af"),
        ("eagle3", "47ad682a5bfa0103"),
        ("draft_model", "38144fec586669b0"),
        ("mtp", "b37527f6f804ce9a"),
    ],
)
def test_weights_are_these_on_every_machine(folders, name, digest):
    # Not of the file: its header belongs to safetensors. If a change of the recipe is meant,
    # put the new value here.
    import torch

    content = hashlib.sha256()
    for key, value in sorted(load(folders[name]).items()):
        content.update(key.encode() + value.view(torch.int16).numpy().tobytes())
    assert content.hexdigest()[:16] == digest


@pytest.mark.parametrize("name", MAKERS)
def test_another_seed_gives_other_weights(folders, tmp_path, name):
    other = MAKERS[name](tmp_path, seed=1)
    assert other.name != folders[name].name
    ours, theirs = load(folders[name]), load(other)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        fixed = "norm." in key or "mtp_linear_proj" in key
        assert value.equal(theirs[key]) == fixed, key


def test_tensors_have_the_scale_that_is_asked_for():
    values = tensor(0, "a", (400, 500), 0.25)
    assert values.shape == (400, 500)
    assert values.dtype == "float32"
    # Within four standard errors of what a sum of eight uniform numbers has.
    assert values.mean() == pytest.approx(0, abs=0.0022)
    assert values.std() == pytest.approx(0.25, rel=0.0063)
    assert (abs(values) < 0.25).mean() == pytest.approx(0.6764, abs=0.0042)
    assert (abs(values) > 0.5).mean() == pytest.approx(0.0440, abs=0.0019)


def test_every_tensor_has_a_stream_of_its_own():
    import numpy as np

    first = tensor(0, "a", (10_000,), 1.0)
    for other in (tensor(0, "b", (10_000,), 1.0), tensor(1, "a", (10_000,), 1.0)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.05
    assert (tensor(0, "a", (5_000,), 1.0) == first[:5_000]).all()


# What a drafter's configuration says otherwise than its target's, and which of the tensors that
# the target has too it brings itself.
DIFFERS = {
    "eagle": ({"num_hidden_layers": 1}, set()),
    "eagle3": (
        {
            "num_hidden_layers": 1,
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": 512,
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        },
        {"lm_head.weight"},
    ),
    "draft_model": ({"num_hidden_layers": 1}, {"lm_head.weight", "model.embed_tokens.weight"}),
    "mtp": (
        {
            "architectures": ["Ernie4_5_MoeForCausalLM"],
            "model_type": "ernie4_5_moe",
            "num_nextn_predict_layers": 1,
        },
        set(),
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_drafters_fit_the_target(folders, method):
    target, drafter = (
        json.loads((folders[name] / "config.json").read_bytes()) for name in ("target", method)
    )
    differs, own = DIFFERS[method]
    assert drafter == target | differs
    assert {k for k in load(folders[method]) if "lm_head" in k or "embed_tokens" in k} == own


@pytest.mark.parametrize("method", METHODS)
def test_no_drafter_has_weights_of_the_target(folders, method):
    target = load(folders["target"])
    for name, weights in load(folders[method]).items():
        if "norm" not in name and name in target:
            assert not weights.equal(target[name]), name


@pytest.mark.parametrize(
    ("method", "name", "shape"),
    [
        ("eagle", "fc.weight", (64, 2 * 64)),
        ("eagle3", "fc.weight", (64, 3 * 64)),
        ("mtp", "model.mtp_linear_proj.0.weight", (64, 2 * 64)),
    ],
)
def test_drafters_take_hidden_states_of_the_target(folders, method, name, shape):
    assert load(folders[method])[name].shape == shape


def test_a_sum_adds_up_pieces_of_its_input():
    import numpy as np

    x = tensor(0, "x", (6,), 1.0)
    assert (tensor(0, "a", (2, 6), "sum") @ x == x.reshape(3, 2).sum(axis=0)).all()
    assert set(np.unique(tensor(0, "a", (2, 6), "sum"))) == {0, 1}


def test_generation_config_sets_nothing_but_the_special_ids(folders):
    content = json.loads((folders["target"] / "generation_config.json").read_bytes())
    assert content == {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def test_unknown_drafter():
    with pytest.raises(EngineError) as caught:
        tiny_drafter("eagel")
    assert str(caught.value) == (
        "there is no tiny drafter for the method 'eagel'; available: eagle, eagle3, "
        "draft_model, mtp; "
        "for another one give Drafter('eagel', model=PATH)"
    )


@pytest.mark.parametrize("seed", [-1, True, 1.0, "0", None])
@pytest.mark.parametrize("name", MAKERS)
def test_seed_must_be_a_number(tmp_path, name, seed):
    with pytest.raises(EngineError, match=r"seed=.* must be an integer >= 0"):
        MAKERS[name](tmp_path, seed=seed)
    assert not list(tmp_path.iterdir())
