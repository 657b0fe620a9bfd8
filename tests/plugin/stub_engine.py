"""The conftest of the inner projects: an engine that keeps the contract and runs nothing."""

import pytest

from pytest_synthaccept import fixtures
from pytest_synthaccept.errors import AcceptanceError, EngineError, Inconclusive

NO_PLAN = "no acceptance plan: mark the test"


class StubRun:
    def __init__(self, plan, broken):
        self.plan, self.broken = plan, broken
        self.checked = {}

    def check(self, *names):
        for name in names or ("acceptance", "accounting"):
            if self.broken == "near-tie":
                self.checked[name] = "inconclusive: a near-tie"
                raise Inconclusive(f"{name}: request 0: a near-tie")
            if name == self.broken:
                raise AssertionError(f"{name}: request 0, step 3: planned 2, accepted 1")
            self.checked[name] = "passed" if name == "acceptance" else "skipped: no statistics"

    def summary(self):
        if self.broken == "summary":
            raise RuntimeError("half-made")
        return {
            "requested": self.plan.requested,
            "rate": self.plan.rate,
            "length": self.plan.length,
            "per_position": list(self.plan.rates),
            "steps": 64,
            "drafted": 192,
            "accepted": 96,
            "check_seconds": 0.0,
            "reference_seconds": 3.0 if self.plan.rate == 0.25 else 0.0,
        }


class StubEngine:
    has_open_run = False

    def __init__(self, config):
        self.config, self.plan, self.runs, self.begun = config, None, [], 0

    def begin_test(self, request, *, where, poison=None):
        self.poison = poison
        self.begun += 1
        self.where, self.runs = where, []
        k = self.config.drafter.num_speculative_tokens
        self.plan = None if request is None else request.plan(k, where=where)

    def generate(self, broken=None):
        if self.plan is None:
            raise AcceptanceError(NO_PLAN)
        self.runs.append(StubRun(self.plan, broken))
        return self.runs[-1]


class StubPool:
    def __init__(self):
        self.engines, self.closed = {}, 0

    def get(self, config):
        if config.args.get("max_model_len") == 0:
            raise EngineError("the engine did not start: max_model_len=0")
        return self.engines.setdefault(config.key, StubEngine(config))

    def close(self):
        self.closed += 1


def pytest_configure(config):
    config.stash[fixtures.POOL] = StubPool()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    pool = config.stash[fixtures.POOL]
    if not hasattr(config, "workerinput"):
        print(f"\nstub pool: {len(pool.engines)} engines, closed {pool.closed} times")
