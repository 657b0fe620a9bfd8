from __future__ import annotations

import time

import pytest

from pytest_synthaccept.bench.meter import TICK, Meter


@pytest.fixture
def meter():
    meter = Meter()
    meter.use(cuda=False)
    return meter


def test_it_runs_in_sections_alone(meter):
    seconds = []
    start = meter.engine_seconds()
    with meter.section(seconds):
        time.sleep(0.02)
    time.sleep(0.2)
    with meter.section(seconds):
        time.sleep(0.01)
    took = meter.engine_seconds() - start
    assert took == pytest.approx(sum(seconds), abs=2 * TICK)
    assert 0.03 <= took < 0.15
    assert seconds[0] > seconds[1]


def test_it_moves_at_rest_or_its_precision_could_not_be_found(meter):
    readings = [meter.engine_seconds() for _ in range(3)]
    assert readings[0] < readings[1] < readings[2] < 1e-6


def test_a_section_that_raises_counts_for_nothing(meter):
    seconds = []
    with pytest.raises(OSError, match="broken"), meter.section(seconds):
        raise OSError("broken")
    assert seconds == []
    assert meter.engine_seconds() < 1e-6
