"""What a run produced, as plain data: outputs, verification steps, scheduler decisions."""

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
from pytest_synthaccept.run.spec_run import Proposals, SpecRun

__all__ = [
    "Acceptance",
    "CoreEvent",
    "CoreRequest",
    "CoreRow",
    "KvCache",
    "Proposals",
    "Request",
    "ScheduledRow",
    "SchedulerStats",
    "SchedulerStep",
    "SpecRun",
    "Step",
    "Work",
]
