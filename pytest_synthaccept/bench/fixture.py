"""``SpecBenchmark``, the object of the ``spec_benchmark`` fixture: pytest-benchmark's and ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_synthaccept.bench import identity
from pytest_synthaccept.bench.bootstrap import bootstrap, undisturbed
from pytest_synthaccept.bench.curve import Curve
from pytest_synthaccept.bench.gate import Entry, entry_of
from pytest_synthaccept.bench.meter import Meter
from pytest_synthaccept.bench.sweep import RATES, ROUNDS, Sweep, check_rounds, meter_for
from pytest_synthaccept.bench.workload import TOKENS, Workload, realised
from pytest_synthaccept.errors import BenchmarkError

if TYPE_CHECKING:
    from pytest_synthaccept.engine.engine import SpecEngine
    from pytest_synthaccept.run import SpecRun


class SpecBenchmark:
    """Times an engine under the test's forced acceptance, by pytest-benchmark's own fixture.

    Use it once a test: call it, or ``sweep``. ``engine`` is the engine that it runs.
    """

    def __init__(
        self,
        engine: SpecEngine,
        benchmark: Any,
        meter: Meter,
        *,
        not_measured: str = "",
        keep: Callable[[Entry, Curve | None], None] = lambda entry, curve: None,
        compared: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.engine = engine
        self.benchmark = benchmark
        self._meter = meter_for(engine, meter)
        self._not_measured = not_measured
        self._keep = keep
        self._compared = compared  # extra_info of the benchmarks that this one is compared with

    @property
    def extra_info(self) -> dict[str, Any]:
        """As pytest-benchmark's: goes into its JSON."""
        info: dict[str, Any] = self.benchmark.extra_info
        return info

    def __call__(
        self,
        prompts: Sequence[Sequence[int] | str] | None = None,
        *,
        requests: int | None = None,
        tokens: int = TOKENS,
        sampling_params: Any = None,
    ) -> SpecRun:
        """Time runs of ``tokens`` committed tokens per request; returns the last of them.

        ``prompts``, or ``requests`` (default 1) short random prompts. The time is that of the
        engine's steps alone, prefill included. All of pytest-benchmark's options apply.
        """
        __tracebackhide__ = True
        workload = Workload.of(self.engine, prompts, requests, tokens, sampling_params)
        if self.engine.plan is None:
            from pytest_synthaccept.engine.engine import NO_PLAN

            raise BenchmarkError(f"spec_benchmark: {NO_PLAN}")
        plan = self.engine.plan.describe()
        self._require_comparable(plan)
        seconds: list[float] = []
        last = workload.run(self.engine, self._meter, seconds, None)  # a warm-up

        def one_run() -> SpecRun:
            nonlocal last
            last = workload.run(self.engine, self._meter, seconds, last)
            return last

        self.benchmark(one_run)
        assert last.work is not None
        rate, length = realised(last)
        steps = last.work.engine_steps
        self._describe(workload, plan)
        self.extra_info.update(
            requested=last.acceptance.requested,
            realised_rate=rate,
            realised_length=length,
            steps=steps,
            work=asdict(last.work),
        )
        step_seconds = None
        if stats := self.benchmark.stats:
            times = list(stats.stats.data)
            step_seconds = bootstrap(
                len(times), lambda rounds: undisturbed([times[i] for i in rounds]) / steps
            )
            self.extra_info.update(
                tokens_per_second=workload.total / (step_seconds.value * steps),
                step_seconds=step_seconds.value,
            )
        self._keep(
            Entry(
                same=identity.same(self.engine, workload, plan),
                clock={"device": self.extra_info["device"]},
                work={"run": last.work},
                step_seconds=step_seconds,
            ),
            None,
        )
        return last

    def sweep(
        self,
        rates: Sequence[float] = RATES,
        *,
        prompts: Sequence[Sequence[int] | str] | None = None,
        requests: int | None = None,
        tokens: int = TOKENS,
        sampling_params: Any = None,
        rounds: int = ROUNDS,
        law: str = "geometric",
        seed: int = 0,
    ) -> Curve:
        """Speed as a function of acceptance: each round runs all ``rates`` and the baseline once.

        The baseline is an engine of the same target and arguments without speculation. A round
        of pytest-benchmark's table is all of that together; the curve is in ``extra_info``.
        """
        __tracebackhide__ = True
        check_rounds(rounds)
        workload = Workload.of(self.engine, prompts, requests, tokens, sampling_params)
        asked: dict[str, Any] = {"law": law, "seed": seed, "cost": self.engine.cost}
        sweep = Sweep(self.engine, rates, workload, self._meter, **asked)
        plan = f"sweep of {', '.join(map(repr, sweep.rates))} ({law}, seed {seed})"
        self._require_comparable(plan)
        sweep.warm_up()
        self.benchmark.pedantic(sweep.round, rounds=rounds)
        self._describe(workload, plan)
        sweep.about = dict(self.extra_info)
        curve = sweep.curve(self._not_measured)
        measured = not self._not_measured
        self.extra_info.update(curve=curve.to_dict() if measured else None)
        same = identity.same(self.engine, workload, plan)
        entry = entry_of(curve, same=same, clock={"device": self.extra_info["device"]})
        self._keep(entry, curve if measured else None)
        return curve

    def _describe(self, workload: Workload, plan: str) -> None:
        self.extra_info.update(
            plan=plan,
            plan_version=identity.PLAN_VERSION,
            cost=self.engine.cost,
            tokens=workload.total,
            requests=len(workload.prompts),
            device=identity.device_name(),
            versions=identity.versions(self.engine),
        )

    def _require_comparable(self, plan: str) -> None:
        """Before anything is timed: pytest-benchmark would put both into one table."""
        __tracebackhide__ = True
        for info in self._compared:
            then = info.get("plan", plan)
            if then != plan:
                raise BenchmarkError(
                    f"--benchmark-compare: this test measured another plan then: {then!r}, "
                    f"now {plan!r}; compare with a run of the same plan, or rename the test"
                )
