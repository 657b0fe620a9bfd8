"""The patterns that need a step in flight, under asynchronous scheduling."""

import pytest

from pytest_synthaccept import spec_patterns


@pytest.fixture
def spec_engine_args():
    return {"async_scheduling": True}


@spec_patterns(
    "preempt", "gap", "finish-in-the-middle", "to-max-model-len", "max-model-len-after-resume"
)
def test_pattern(spec_pattern):
    assert spec_pattern.play()
    assert spec_pattern.occurred
