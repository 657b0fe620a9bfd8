"""Where there is no GPU the kernels run in Triton's interpreter, chosen before triton's import."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 vocabulary entries, so that a small vocabulary spans several."""
    from pytest_synthaccept.sampler import launch

    monkeypatch.setattr(launch, "BLOCK", 16)
    monkeypatch.setattr(launch, "INTERPRETED_BLOCK", 16)
    launch.tiling.cache_clear()
    yield
    launch.tiling.cache_clear()
