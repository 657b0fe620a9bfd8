"""``SpecRun``: everything one ``generate`` left behind, and its checks."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_synthaccept.acceptance.plan import AcceptancePlan
from pytest_synthaccept.run.records import (
    Acceptance,
    CoreEvent,
    CoreRequest,
    CoreRow,
    KvCache,
    Request,
    ScheduledRow,
    SchedulerStats,
    SchedulerStep,
    Step,
    Work,
)

# Fields of a run that are JSON as they are.
_PLAIN = (
    "lossless",
    "padded_rows",
    "padded_drafts",
    "info",
    "checked",
    "check_seconds",
    "reference_seconds",
    "timed",
    "draft_seconds",
)

# (the request's order in the run, position) -> the drafter's own tokens there
Proposals = dict[tuple[int, int], tuple[int, ...]]


@dataclass
class SpecRun:
    """The result of one run of an engine.

    ``requests`` has one entry per (prompt, sample), in the order of the prompts. ``steps`` has
    one row per verification step, in the order they were verified; ``discarded`` the rows
    after a request's last committed token (async scheduling has a step in flight when a
    request ends). ``plans[step.plan_version]`` is the plan a row was made under.
    """

    lossless: bool = False
    plans: list[AcceptancePlan] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    discarded: list[Step] = field(default_factory=list)
    scheduler: list[SchedulerStep] = field(default_factory=list)
    core: list[CoreEvent] = field(default_factory=list)  # empty: the core is another process
    kv_cache: KvCache = field(default_factory=KvCache)
    scheduler_stats: SchedulerStats = field(default_factory=SchedulerStats)
    padded_rows: int = 0  # rows whose drafts were all placeholders
    padded_drafts: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    checked: dict[str, str] = field(default_factory=dict)
    check_seconds: float = 0.0  # spent in checks, without the runs that they compare with
    reference_seconds: float = 0.0  # spent in those, which are kept for other runs
    work: Work | None = None  # None while it is open
    timed: bool = False  # a benchmark's: nobody watched the engine core
    draft_seconds: float = 0.0  # spent in the drafter, on the device's clock
    _reference: Proposals | None = field(default=None, repr=False, compare=False)

    @property
    def outputs(self) -> list[list[int]]:
        """Output token ids per (prompt, sample)."""
        return [request.output for request in self.requests]

    @property
    def unwatched(self) -> str:
        """Why ``core`` is empty."""
        return "the run was timed" if self.timed else "the engine core is another process"

    @property
    def texts(self) -> list[str]:
        """Decoded outputs; empty strings where the model has no tokenizer."""
        return [request.text for request in self.requests]

    @property
    def acceptance(self) -> Acceptance:
        """Realised acceptance over ``steps``, beside what was requested."""
        return Acceptance.of(self.steps, "; then ".join(plan.requested for plan in self.plans))

    def check(self, *names: str) -> None:
        """Run the named checks, or all that apply, in their fixed order.

        Raises ``AssertionError`` with the evidence at the first that fails, ``ValueError`` for
        an unknown name. ``checked`` records what passed and what was skipped and why.
        """
        __tracebackhide__ = True
        from pytest_synthaccept import checks  # the one step back: a convenience for tests

        checks.run_checks(self, *names)

    def reference_proposals(self) -> Proposals | None:
        """What the drafter proposes at every committed prefix, by a run that visited them all.

        None where there is no engine to make that run with, as for a run read from a file.
        """
        return self._reference

    def summary(self) -> dict[str, Any]:
        """The line of the terminal table, as builtins; rates are None where nothing was drafted."""
        acceptance = self.acceptance
        return {
            "requested": acceptance.requested,
            "rate": _none_if_nan(acceptance.rate),
            "length": _none_if_nan(acceptance.length),
            "per_position": list(acceptance.per_position),
            "steps": acceptance.steps,
            "drafted": acceptance.drafted,
            "accepted": acceptance.accepted,
            "check_seconds": self.check_seconds,
            "reference_seconds": self.reference_seconds,
        }

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON-ready builtins."""
        out = {f: getattr(self, f) for f in _PLAIN}
        for name in ("plans", "requests", "steps", "discarded", "scheduler", "core"):
            out[name] = [asdict(row) for row in getattr(self, name)]
        out["kv_cache"] = {
            name: getattr(self.kv_cache, name)
            for name in ("pool_before", "pool_after", "num_blocks", "block_sizes")
        }
        work = None if self.work is None else asdict(self.work)
        return out | {"scheduler_stats": asdict(self.scheduler_stats), "work": work}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SpecRun:
        """Back from ``to_dict``, also after a trip through JSON."""

        def tuples(row: dict[str, Any], *names: str) -> dict[str, Any]:
            return {name: _tuple(row[name]) for name in names}

        def core_event(row: dict[str, Any]) -> CoreEvent:
            lists = ("blocks", "refs", "hashed")
            rows = tuple(CoreRow(**given) for given in row["rows"])
            requests = tuple(CoreRequest(**r | tuples(r, *lists)) for r in row["requests"])
            return CoreEvent(**row | {"rows": rows, "requests": requests})

        def steps(rows: list[dict[str, Any]]) -> list[Step]:
            lists = ("proposed", "verified", "made", "margins")
            return [Step(**row | tuples(row, *lists)) for row in rows]

        def scheduler_step(row: dict[str, Any]) -> SchedulerStep:
            rows = tuple(ScheduledRow(**scheduled) for scheduled in row["rows"])
            return SchedulerStep(**row | tuples(row, "preempted", "finished") | {"rows": rows})

        scheduler = [scheduler_step(row) for row in data["scheduler"]]
        return cls(
            core=[core_event(row) for row in data["core"]],
            kv_cache=KvCache(
                blocks=[step.blocks for step in scheduler],
                **data["kv_cache"] | tuples(data["kv_cache"], "block_sizes"),
            ),
            plans=[AcceptancePlan(**p | tuples(p, "rates", "script")) for p in data["plans"]],
            requests=[Request(**r | tuples(r, "stop_token_ids")) for r in data["requests"]],
            steps=steps(data["steps"]),
            discarded=steps(data["discarded"]),
            scheduler=scheduler,
            scheduler_stats=SchedulerStats(**data["scheduler_stats"]),
            work=None if data["work"] is None else Work(**data["work"]),
            **{name: data[name] for name in _PLAIN},
        )


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def _tuple(value: Any) -> Any:
    """Lists, as JSON has them, back to tuples, at every depth."""
    return tuple(map(_tuple, value)) if isinstance(value, list | tuple) else value
