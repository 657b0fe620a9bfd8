"""The layout of a ledger row, for the device that writes it and the host that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# What a row was. Exactly one of the first three is set.
VERIFICATION = 1  # at least one real draft
PADDED = 2  # placeholder drafts only
DRAFTLESS = 4
NO_ALTERNATIVE = 8  # the rejected draft was emitted: nothing else had a finite logit

COLUMNS = (
    "lane",
    "step",
    "position",
    "scheduled",
    "drafted",
    "planned",
    "accepted",
    "version",
    "flags",
    "token",
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
