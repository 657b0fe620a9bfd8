"""``acceptance``: every verification step accepted exactly what the plan decides."""

from __future__ import annotations

from collections import defaultdict

from pytest_synthaccept.checks.evidence import diverged_at, fail, named, stray_drafts
from pytest_synthaccept.run import SpecRun, Step


def check_acceptance(run: SpecRun) -> str | None:
    """Each row equals min(decide(key, step), drafts in the row); no step number is missing.

    Exact for ``sampling="random"`` too: the draws are reproducible. There is no tolerance, so
    the totals are for reading, not for asserting.
    """
    __tracebackhide__ = True
    rows = sorted([*run.steps, *run.discarded], key=lambda s: (s.index, s.sample, s.step))
    if not rows:
        return "no verification step in this run"
    diverged = diverged_at(run)
    expected_step: dict[tuple[int, int], int] = defaultdict(int)
    for row in rows:
        owner = (row.index, row.sample)
        if row.step != expected_step[owner]:
            _fail(row, f"expected step {expected_step[owner]} next, the ledger has {row.step}")
        expected_step[owner] += 1
        if row.position > diverged.get(owner, row.position):
            continue
        plan = run.plans[row.plan_version]
        decided = plan.decide(row.request, row.step)
        if row.planned != decided:
            _fail(row, f"the plan ({plan.describe()}) decides {decided}, the sampler {row.planned}")
        expected = min(decided, row.drafted)
        if row.accepted != expected:
            _fail(
                row,
                f"expected {expected} accepted drafts "
                f"(plan {decided}, drafts in the row {row.drafted}), seen {row.accepted}"
                + (f"; it {stray}" if (stray := stray_drafts(row)) else ""),
            )
    return None


def _fail(row: Step, what: str) -> None:
    __tracebackhide__ = True
    fail("acceptance", f"{named(row)}, step {row.step}, position {row.position}: {what}")
