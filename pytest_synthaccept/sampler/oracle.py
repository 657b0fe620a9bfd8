"""Lossless runs: drafts are rewritten so that the engine's own verification follows the plan.

The target's greedy tokens are known beforehand. Before a verification step the planned number
of drafts are replaced by them, and the next draft by something else; the engine's real greedy
rejection sampler then accepts just that many, and the output is the target's own.

Everything here is plain tensor arithmetic on the device. Nothing waits for it.
"""

from __future__ import annotations

import torch

from pytest_synthaccept.acceptance.sequence import BLOCK_SALT, MASK32, STEP_STRIDE
from pytest_synthaccept.run.ledger import COLUMNS, DRAFTLESS, PADDED, VERIFICATION
from pytest_synthaccept.sampler.state import EXACT, SCRIPT, SamplerState, pinned

STEP = 2  # column of SamplerState.lanes


def decide(state: SamplerState, lane: torch.Tensor, version: torch.Tensor) -> torch.Tensor:
    """[n] planned accepted length of each lane's next verification step; [n] lanes, versions.

    The same arithmetic as the kernel's, bit for bit, in int64 masked to 32 bits.
    """
    k = state.num_speculative_tokens
    key, step = state.lanes[lane, 0], state.lanes[lane, STEP]
    plan = state.plans[version]
    thresholds, mode, seed = plan[:, :k], plan[:, k], plan[:, k + 1]
    bits = _mix(seed + BLOCK_SALT + (step >> 3) * STEP_STRIDE)
    inside = step & 7
    j = inside
    for _ in range(3):
        j = (j * (2 * bits + 1) + (bits >> 2)) & 7
        j = j ^ (j >> 1)
        bits = bits >> 5
    exact = ((step - inside + j) * STEP_STRIDE + key + seed) & MASK32
    independent = _mix(_mix(seed + key) + step * STEP_STRIDE)
    u = torch.where(mode == EXACT, exact, independent)
    drawn = (u[:, None] < thresholds).sum(1)
    if not state.most_entries:
        return drawn
    return torch.where(mode == SCRIPT, _scripted(state, plan[:, k + 3 :], key, step), drawn)


def _scripted(
    state: SamplerState, entries: torch.Tensor, key: torch.Tensor, step: torch.Tensor
) -> torch.Tensor:
    """[n] counts by script; ``entries`` [n, 2] are start and number of a script's entries."""
    start, number = entries[:, :1], entries[:, 1:]
    i = torch.arange(state.most_entries, device=state.device)
    at = torch.where(i < number, start + 3 * i, 0)
    of = state.scripts[at]
    fits = (i < number) & ((of == -1) | (of == key[:, None]))
    chosen = at.gather(1, fits.long().argmax(1, keepdim=True)).squeeze(1)
    offset, length = state.scripts[chosen + 1], state.scripts[chosen + 2]
    found = fits.any(1)
    count = state.scripts[torch.where(found, offset + step % length.clamp(min=1), 0)]
    return torch.where(found, count, 0)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """``sequence.mix32``, elementwise."""
    x = x & MASK32
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & MASK32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & MASK32
    return x ^ (x >> 16)


class Oracle:
    """What a lossless run keeps on the device beside ``SamplerState``.

    Args:
        state: of the same worker; its lanes, plans and ledger are used.
        num_slots: the engine's persistent request slots.
        max_model_len: positions per request.
        vocab_size: of the target; a wrong draft stays below it.
    """

    def __init__(
        self, state: SamplerState, *, num_slots: int, max_model_len: int, vocab_size: int
    ) -> None:
        self.state = state
        self.vocab_size = vocab_size
        k, device = state.num_speculative_tokens, state.device
        # [capacity, max_model_len + K]: the target's token at each position, -1 beyond
        self.truth = torch.full((64, max_model_len + k), -1, dtype=torch.int64, device=device)
        # [num_slots]: what the drafts now in the slot were rewritten to get accepted
        self.planned = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def expect(self, lane: int, tokens: list[int]) -> None:
        """Tell what the target says for ``lane``'s request: its tokens from position 0 on."""
        while lane >= len(self.truth):
            self.truth = torch.cat([self.truth, torch.full_like(self.truth, -1)])
        host = torch.tensor(tokens[: self.truth.shape[1]], dtype=torch.int64)
        row = pinned(host, self.state.device)
        self.truth[lane].fill_(-1)
        self.truth[lane, : len(row)].copy_(row, non_blocking=True)

    def rewrite(
        self, draft_tokens: torch.Tensor, idx_mapping: torch.Tensor, total_len: torch.Tensor
    ) -> None:
        """Rewrite fresh drafts in place and fix what is planned for them.

        Args:
            draft_tokens: [num_reqs, K] int, the drafter's proposals.
            idx_mapping: [num_reqs] int, slot of each row.
            total_len: [num_slots] int, committed tokens, this step's included.
        """
        k = self.state.num_speculative_tokens
        slot = idx_mapping.long()
        lane = self.state.slot_lane[slot]
        known = lane.clamp(min=0)
        planned = decide(self.state, known, self.state.slot_version[slot])
        i = torch.arange(k, device=self.state.device)
        position = total_len[slot].long()[:, None] + i
        true = self.truth[known[:, None], position.clamp(max=self.truth.shape[1] - 1)]
        natural = draft_tokens.long()
        wrong = torch.where(natural == true, (true + 1) % self.vocab_size, natural)
        rewritten = torch.where(i < planned[:, None], true, natural)
        rewritten = torch.where(i == planned[:, None], wrong, rewritten)
        ours = (lane >= 0)[:, None] & (true >= 0)
        self.planned[slot] = planned
        draft_tokens.copy_(torch.where(ours, rewritten, natural))

    def record(
        self,
        draft_sampled: torch.Tensor,
        cu_num_logits: torch.Tensor,
        pos: torch.Tensor,
        idx_mapping: torch.Tensor,
        sampled: torch.Tensor,
        num_sampled: torch.Tensor,
    ) -> None:
        """Write the ledger rows of a verification that the engine itself decided.

        The arguments are those of ``rejection_sample`` and its results; rows and step counters
        as ``launch.rejection_sample`` leaves them.
        """
        state, k = self.state, self.state.num_speculative_tokens
        num_reqs = len(cu_num_logits) - 1
        if not num_reqs:
            return
        start = cu_num_logits[:-1].long()
        scheduled = cu_num_logits[1:].long() - start - 1
        slot = idx_mapping.long()
        lane = state.slot_lane[slot]
        known = lane.clamp(min=0)
        step = state.lanes[known, STEP]
        first = pos[start].long()
        i = torch.arange(k, device=state.device)
        in_row = i < scheduled[:, None]
        ids = draft_sampled[(start[:, None] + 1 + i).clamp(max=len(draft_sampled) - 1)]
        real = in_row & (ids >= 0) & (first >= state.prefill_len[slot])[:, None]
        drafted = real.long().cumprod(1).sum(1)
        verification = drafted > 0
        accepted = num_sampled.long() - 1
        no_step = torch.where(scheduled > 0, PADDED, DRAFTLESS)
        columns = {
            "lane": lane,
            "step": step,
            "position": first + 1,
            "scheduled": scheduled,
            "drafted": drafted,
            "planned": torch.where(verification, self.planned[slot], 0),
            "accepted": accepted,
            "version": state.slot_version[slot],
            "flags": torch.where(verification, VERIFICATION, no_step),
            "token": sampled[torch.arange(num_reqs, device=state.device), accepted.clamp(min=0)],
        }
        chunk, row = state.ledger_rows(num_reqs)
        rows = torch.stack([columns[name] for name in COLUMNS], dim=1)
        chunk[row : row + num_reqs] = torch.cat([rows, torch.where(in_row, ids.long(), -1)], dim=1)
        state.lanes[:, STEP].index_add_(0, known, (verification & (lane >= 0)).long())
