"""The clock of sections, and the count of graph replays; CUDA's part of both by stand-ins."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from pytest_synthaccept.engine import seam
from pytest_synthaccept.engine.device_clock import DeviceClock


def test_sections_add_up_until_reset():
    clock = DeviceClock(cuda=False)
    for _ in range(2):
        with clock.section():
            time.sleep(0.01)
        time.sleep(0.05)
    assert 0.02 <= clock.seconds() < 0.07
    assert clock.seconds() == clock.seconds()
    clock.reset()
    assert clock.seconds() == 0


@pytest.fixture
def events(monkeypatch):
    """What CUDA events would be told, in order; each is 3 ms after the one before."""
    torch = pytest.importorskip("torch")
    told = []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing
            self.at = None

        def record(self):
            self.at = 3.0 * sum(what == "record" for what in told)
            told.append("record")

        def synchronize(self):
            told.append("wait")

        def elapsed_time(self, other):
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    return told


def test_cuda_events_are_waited_for_at_the_end_alone(events):
    clock = DeviceClock(cuda=True)
    for _ in range(3):
        with clock.section():
            pass
    assert events == ["record"] * 6
    assert clock.seconds() == pytest.approx(3 * 3e-3)
    assert events[6:] == ["wait"] * 3
    assert clock.seconds() == pytest.approx(3 * 3e-3)  # none is counted twice
    assert len(events) == 9


def test_replays_are_counted_once_each(monkeypatch):
    torch = pytest.importorskip("torch")
    replayed = []
    graph = type("CUDAGraph", (), {"replay": lambda self: replayed.append(self)})
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(seam, "_replays", 0)
    seam._count_replays("cpu")
    graph().replay()
    assert seam.graph_replays() == 0
    for _ in range(2):  # two engines in one process
        seam._count_replays("cuda:0")
    graph().replay()
    graph().replay()
    assert seam.graph_replays() == 2
    assert len(replayed) == 3


def test_a_counter_counts_steps_with_anything_in_them():
    from pytest_synthaccept.engine.worker import Counter

    counter = Counter()
    for tokens in (5, 0, 1):
        counter.scheduled(SimpleNamespace(total_num_scheduled_tokens=tokens))
    counter.forwarded("target")
    assert (counter.steps, counter.forwards) == (2, 1)
