"""Checks: each takes a finished run and raises ``AssertionError`` with the evidence.

They run in the order of ``CHECKS``, causes before symptoms, so that the first message names
the cause.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pytest_synthaccept.checks.acceptance import check_acceptance
from pytest_synthaccept.checks.accounting import check_accounting
from pytest_synthaccept.checks.drafter import check_drafter
from pytest_synthaccept.checks.kv_cache import check_kv_cache
from pytest_synthaccept.checks.outputs import check_outputs
from pytest_synthaccept.checks.scheduler import check_counters, check_scheduler
from pytest_synthaccept.errors import INCONCLUSIVE, Inconclusive
from pytest_synthaccept.run import SpecRun

# A check returns None when it passed, or the reason why it could not judge this run.
CHECKS: dict[str, Callable[[SpecRun], str | None]] = {
    "outputs": check_outputs,
    "acceptance": check_acceptance,
    "accounting": check_accounting,
    "scheduler": check_scheduler,
    "kv_cache": check_kv_cache,
    "drafter": check_drafter,
}

# Without names, these are not run where they do not apply.
LOSSLESS_ONLY = ("outputs", "drafter")


def run_checks(run: SpecRun, *names: str) -> None:
    """Run the named checks, or all, in the fixed order; record the outcome in ``run.checked``."""
    __tracebackhide__ = True
    for name in names:
        if name not in CHECKS:
            raise ValueError(unknown_check(name))
    for name, check in CHECKS.items():
        wanted = name in names if names else run.lossless or name not in LOSSLESS_ONLY
        if not wanted or run.checked.get(name, INCONCLUSIVE).partition(":")[0] != INCONCLUSIVE:
            continue
        began, reference = time.perf_counter(), run.reference_seconds
        try:
            reason = check(run)
        except Inconclusive as outcome:
            run.checked[name] = f"{INCONCLUSIVE}: {outcome}"
            raise
        finally:
            elsewhere = run.reference_seconds - reference
            run.check_seconds += time.perf_counter() - began - elsewhere
        run.checked[name] = "passed" if reason is None else f"skipped: {reason}"


def check_core(run: SpecRun) -> None:
    """Judge what the engine core held, as far as the run has come: it may not come further."""
    __tracebackhide__ = True
    check_counters(run)
    check_kv_cache(run)


def unknown_check(name: str) -> str:
    """The message for a name that is no check."""
    return f"{name!r} is not a check; available: {', '.join(CHECKS)}"
