"""The layout of a ledger row, for the device that writes it and the host that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# What a row was. Exactly one of the first three is set.
VERIFICATION = 1  # at least one real draft
PADDED = 2  # placeholder drafts only
DRAFTLESS = 4
NO_ALTERNATIVE = 8  # the rejected draft was emitted: nothing else had a finite logit

# A row: these columns, then the row's K draft ids as given (-1 where there is none).
COLUMNS = (
    "lane",  # one (request, sample) of the run
    "step",  # of the lane's counter, before this row
    "position",  # committed tokens before the step, prompt included
    "scheduled",  # drafts in the row, placeholders included
    "drafted",  # real drafts
    "planned",  # decide(key, step), unclipped; 0 when not a verification step
    "accepted",
    "version",  # of the plan, under which the drafts were made
    "flags",
    "token",  # the target's own token of this row
)


class LedgerRow(NamedTuple):
    """One row; ``drafts`` are the K draft columns, -1 where the row had none."""

    lane: int
    step: int
    position: int
    scheduled: int
    drafted: int
    planned: int
    accepted: int
    version: int
    flags: int
    token: int
    drafts: tuple[int, ...]

    @classmethod
    def of(cls, row: Sequence[int]) -> LedgerRow:
        """From a drained row: the columns, then the K drafts."""
        width = len(COLUMNS)
        return cls(**dict(zip(COLUMNS, row, strict=False)), drafts=tuple(row[width:]))
