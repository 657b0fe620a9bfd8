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

    monkeypatch.setattr(launch, "MAX_BLOCK", {"cuda": 16, "cpu": 16})
