"""What the sampler keeps on the device: slots, lanes, plan versions and the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from pytest_synthaccept.acceptance.sequence import KEY_STRIDE, MASK32, RANDOM_SALT, U32, mix32
from pytest_synthaccept.errors import AcceptanceError
from pytest_synthaccept.run.ledger import COLUMNS as LEDGER_COLUMNS
from pytest_synthaccept.sampler.kernels import TOKEN_SALT

EXACT, RANDOM, SCRIPT = 0, 1, 2  # how a plan decides


def pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor from which a copy to `device` makes nobody wait."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


class Plan(Protocol):
    """What the sampler reads of an acceptance plan."""

    @property
    def thresholds(self) -> Sequence[int]:
        """K ints in 0..2**32: round(p_i * 2**32), unconditional."""

    @property
    def sampling(self) -> str:
        """A name in `acceptance.sequence.U32`."""

    @property
    def seed(self) -> int:
        """The plan's seed, 0 <= seed < 2**32."""

    @property
    def script(self) -> Sequence[tuple[int, Sequence[int]]]:
        """Pairs (request key, or -1 for every request; accepted counts); empty without one."""


class SamplerState:
    """Device-side state of one worker's sampler.

    Nothing here waits for the device, or makes it wait for the host, except `drain`: scalars
    travel as kernel arguments and buffers grow by copies on the device. All of it must be
    called on the stream that `rejection_sample` runs on.

    Args:
        num_slots: the engine's persistent request slots.
        num_speculative_tokens: K, >= 1.
        prefill_len: [num_slots] int, tokens of each slot's (re)prefill; the engine's live
            buffer, or a function that returns it where the engine swaps buffers.
        device: of every buffer.
        ledger_chunk_rows: rows of one ledger chunk; more chunks are added as needed.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        num_speculative_tokens: int,
        prefill_len: torch.Tensor | Callable[[], torch.Tensor],
        device: torch.device | str,
        ledger_chunk_rows: int = 8192,
    ) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self.device = torch.device(device)
        self._prefill_len = prefill_len
        self._chunk_rows = ledger_chunk_rows
        cuda = self.device.type == "cuda"
        # Of the GPU; 0 where the kernel runs in Triton's interpreter.
        self.processors = (
            torch.cuda.get_device_properties(self.device).multi_processor_count if cuda else 0
        )

        # [num_slots, 2]: lane, and the plan version under which the slot's drafts were made
        self.slots = self._full(num_slots, 2)
        self.slot_lane, self.slot_version = self.slots.unbind(1)
        self.slot_lane.fill_(-1)
        # [capacity, 3]: key * KEY_STRIDE, sample * KEY_STRIDE, step counter
        self.lanes = self._full(256, 3)
        # [capacity, K + 5]: thresholds, mode, decision seed, token seed (the parts of the
        # hashes that depend on the plan alone), start and number of the script's entries.
        # Version 0 accepts nothing.
        self.plans = self._full(8, num_speculative_tokens + 5)
        # [capacity]: per script its entries (key * KEY_STRIDE or -1, offset, length), and the
        # accepted counts that they point at
        self.scripts = self._full(64)
        self.most_entries = 0  # of any script
        self._num_lanes = 0
        self._num_versions = 1
        self._script_end = 0

        # Ledger chunks [rows, len(LEDGER_COLUMNS) + K] and how many rows of each are taken.
        self._chunks: list[torch.Tensor] = []
        self._taken: list[int] = []
        # Scratch between the programs of a call, [num_reqs * num_blocks], and how many programs
        # of a row are done, [num_reqs]; grow-only.
        self._block_max = torch.empty(0, dtype=torch.float32, device=self.device)
        self._block_stat = torch.empty(0, dtype=torch.int32, device=self.device)
        self._done = torch.zeros(0, dtype=torch.int32, device=self.device)

    @property
    def prefill_len(self) -> torch.Tensor:
        """The engine's current prefill lengths, [num_slots] int."""
        source = self._prefill_len
        return source if isinstance(source, torch.Tensor) else source()

    @property
    def version(self) -> int:
        """The plan version that the next proposals are made under."""
        return self._num_versions - 1

    def begin(self, plan: Plan) -> None:
        """Start a run: forget lanes, slots, versions and ledger; version 0 is `plan`.

        Raises:
            AcceptanceError: `plan` is for another K, or its sampling is unknown.
        """
        self._check(plan)
        self.slot_lane.fill_(-1)
        self.slot_version.zero_()
        self.lanes.zero_()
        self._num_lanes = 0
        self._num_versions = 0
        self._script_end = 0
        self._forget_ledger()
        self.set_plan(plan)

    def set_plan(self, plan: Plan) -> int:
        """Append a plan version and return its index; `mark_proposed` puts it to use.

        Raises:
            AcceptanceError: `plan` is for another K, or its sampling is unknown.
        """
        self._check(plan)
        version = self._num_versions
        self.plans = _grown(self.plans, version + 1)
        seed = mix32(plan.seed)
        mode = SCRIPT if plan.script else RANDOM if plan.sampling == "random" else EXACT
        decision_seed = mix32(seed ^ RANDOM_SALT) if mode == RANDOM else seed
        entries = self._append_script(plan.script)
        row = (*plan.thresholds, mode, decision_seed, mix32(seed ^ TOKEN_SALT), *entries)
        for column, value in enumerate(row):
            self.plans[version, column].fill_(value)
        self._num_versions += 1
        return version

    def _append_script(self, script: Sequence[tuple[int, Sequence[int]]]) -> tuple[int, int]:
        """Put a script at the end of the buffer: where its entries start, and how many."""
        start = self._script_end
        offset = start + 3 * len(script)
        entries: list[int] = []
        values: list[int] = []
        for key, counts in script:
            entries += [-1 if key < 0 else key * KEY_STRIDE & MASK32, offset, len(counts)]
            values += counts
            offset += len(counts)
        if script:
            self.scripts = _grown(self.scripts, offset)
            row = pinned(torch.tensor(entries + values, dtype=torch.int64), self.device)
            self.scripts[start:offset].copy_(row, non_blocking=True)
            self.most_entries = max(self.most_entries, len(script))
        self._script_end = offset
        return start, len(script)

    def open_lane(self, key: int, sample: int) -> int:
        """Open a lane for one sample of a request key, its step counter at 0; return its index."""
        lane = self._num_lanes
        self.lanes = _grown(self.lanes, lane + 1)
        for column, value in enumerate((key, sample)):
            self.lanes[lane, column].fill_(value * KEY_STRIDE & MASK32)
        self._num_lanes += 1
        return lane

    def assign(self, slot: int, lane: int) -> None:
        """Let `slot` hold `lane`'s request; -1 means nobody's. The lane's counter goes on."""
        if not -1 <= lane < self._num_lanes:
            raise IndexError(f"lane {lane} is not open; open lanes: {self._num_lanes}")
        self.slot_lane[slot].fill_(lane)
        self.slot_version[slot].fill_(self.version)

    def mark_proposed(self, idx_mapping: torch.Tensor) -> None:
        """Note that the next drafts of these slots ([num_reqs] int) are made under `version`."""
        if self.version == 0:
            return  # `assign` has said so
        self.slot_version.index_fill_(0, idx_mapping.long(), self.version)

    def drain(self) -> list[list[int]]:
        """Return the ledger's rows in call order and empty it; rows of lane -1 are left out.

        The only place that waits for the device.
        """
        taken = [c[:n] for c, n in zip(self._chunks, self._taken, strict=True)]
        rows: list[list[int]] = torch.cat(taken).tolist() if taken else []
        self._forget_ledger()
        return [row for row in rows if row[0] >= 0]

    def ledger_rows(self, num_reqs: int) -> tuple[torch.Tensor, int]:
        """Take `num_reqs` rows of the ledger: (chunk, index of the first row)."""
        if not self._chunks or self._taken[-1] + num_reqs > len(self._chunks[-1]):
            rows = max(self._chunk_rows, num_reqs)
            columns = len(LEDGER_COLUMNS) + self.num_speculative_tokens
            size = (rows, columns)
            self._chunks.append(torch.empty(size, dtype=torch.int64, device=self.device))
            self._taken.append(0)
        first = self._taken[-1]
        self._taken[-1] += num_reqs
        return self._chunks[-1], first

    def scratch(
        self, num_reqs: int, num_blocks: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Block maxima (float32), block statistics (int32), num_reqs * num_blocks of each or more,
        and counters (int32), num_reqs or more, that are 0 between calls."""
        size = num_reqs * num_blocks
        if self._block_max.numel() < size:
            self._block_max = self._block_max.new_empty(size)
            self._block_stat = self._block_stat.new_empty(size)
        if self._done.numel() < num_reqs:
            self._done = self._done.new_zeros(num_reqs)
        return self._block_max, self._block_stat, self._done

    def _forget_ledger(self) -> None:
        self._chunks = self._chunks[-1:]
        self._taken = [0] * len(self._chunks)

    def _full(self, *size: int, fill: int = 0) -> torch.Tensor:
        return torch.full(size, fill, dtype=torch.int64, device=self.device)

    def _check(self, plan: Plan) -> None:
        k = self.num_speculative_tokens
        if len(plan.thresholds) != k:
            raise AcceptanceError(
                f"plan with {len(plan.thresholds)} positions: the engine drafts {k} tokens; "
                f"make the plan for num_speculative_tokens={k}"
            )
        if plan.sampling not in U32:
            raise AcceptanceError(f"sampling={plan.sampling!r}: allowed are {', '.join(U32)}")


def _grown(buffer: torch.Tensor, rows: int) -> torch.Tensor:
    """`buffer` if it has `rows` rows, else one twice as long with the same content, then zeros."""
    if rows <= len(buffer):
        return buffer
    longer = buffer.new_zeros(max(rows, 2 * len(buffer)), *buffer.shape[1:])
    longer[: len(buffer)].copy_(buffer)
    return longer
