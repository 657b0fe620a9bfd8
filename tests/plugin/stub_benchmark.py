"""After stub_engine.py in the conftest: engines whose every run takes a time by a formula.

A run takes STEP_SECONDS an engine step, baseline 10 ms; ``SLOW`` multiplies the former and
``EXTRA`` adds target forwards to each step. All are read from the environment.
"""
# ruff: noqa: F821

import os
import types

from pytest_synthaccept.bench import identity, workload
from pytest_synthaccept.engine import device_clock
from pytest_synthaccept.run import Work

BASE, STEP = 0.010, 0.023
INFO = {
    "vocab_size": 100,
    "engine_core": "in process",
    "ranks": 1,
    "device": "cpu",
    "method": "eagle",
    "cudagraph_mode": "NONE",
    "vllm": "vllm 0.0",
    "torch": "0.0",
}


class StubClock:
    """Whoever runs in a section says how long it took."""

    now = 0.0

    def __init__(self, *, cuda):
        assert not cuda

    def seconds(self):
        return StubClock.now

    def section(self):
        import contextlib

        return contextlib.nullcontext()


def timed_run(self, engine, meter, seconds, last):
    extra, slow = int(os.environ.get("EXTRA", 0)), float(os.environ.get("SLOW", 1))
    steps = round(self.total / engine.plan.length)
    with meter.section(seconds):
        StubClock.now += steps * STEP * slow
    run = StubRun(engine.plan, None)
    run.work = Work(steps, steps * (1 + extra), 3 * steps, 0)
    run.draft_seconds = steps * 0.009
    plan = engine.plan
    run.acceptance = types.SimpleNamespace(
        rate=plan.rate, length=plan.length, requested=plan.requested
    )
    engine.runs = [other for other in engine.runs if other is not last] + [run]
    return run


def timed_plain_run(self, engine, meter, seconds):
    with meter.section(seconds):
        StubClock.now += self.total * BASE
    return Work(self.total, self.total, 0, 0)


def set_acceptance(self, rate, **keywords):
    from pytest_synthaccept.acceptance.plan import AcceptancePlan
    from pytest_synthaccept.acceptance.request import AcceptanceRequest

    if isinstance(rate, AcceptancePlan):
        self.plan = rate
    else:
        self.plan = AcceptanceRequest.parse((rate,), keywords, where="").plan(3, where="")


StubEngine.info = INFO
StubEngine.lossless, StubEngine.cost = False, "lean"
StubEngine.num_speculative_tokens = 3
StubEngine.set_acceptance = set_acceptance
workload.Workload.run = timed_run
workload.Workload.run_plain = timed_plain_run
device_clock.DeviceClock = StubClock
identity.device_name = lambda: os.environ.get("STUB_GPU", "Stub GPU")
