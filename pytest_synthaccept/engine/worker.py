"""What runs inside each vLLM worker: the extension class and the recorder behind it.

Everything a method takes or returns is builtins: it may cross a process boundary.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from pytest_synthaccept.engine import seam, verdict_seam
from pytest_synthaccept.engine.device_clock import DeviceClock
from pytest_synthaccept.engine.request_ids import RequestId, foreign_id, parse_id
from pytest_synthaccept.engine.step_log import NotedStep

# Who decides what is accepted: our sampler; our decision in the midst of the engine's own
# verification; the engine, on drafts rewritten by the plan; or nobody, as nothing is, and each
# step gives the target's own next token.
MODES = SYNTHETIC, FAITHFUL, LOSSLESS, TRUTH = "synthetic", "faithful", "lossless", "truth"
SYNTHETIC_MODES = {"lean": SYNTHETIC, "faithful": FAITHFUL}  # by the marker's cost

EXTENSION = "pytest_synthaccept.engine.worker.WorkerExtension"


class PlanRow(NamedTuple):
    """A plan as the device needs it: thresholds in 0..2**32, one per position, or a script."""

    thresholds: list[int]
    sampling: str
    seed: int
    script: list[tuple[int, list[int]]] | tuple[()] = ()  # pairs as in AcceptancePlan


class Recorder(seam.Hooks):
    """Answers the seam on one rank: decides by the device state, logs what was scheduled."""

    def __init__(self, worker: Any, facts: dict[str, Any]) -> None:
        from pytest_synthaccept.engine.poison import Poison
        from pytest_synthaccept.sampler import Oracle, SamplerState, rejection_sample

        self._worker = worker
        self._counts_forwards = seam.forwards_are_calls(worker)
        self._rejection_sample = rejection_sample
        self.state = SamplerState(
            num_slots=facts["num_slots"],
            num_speculative_tokens=facts["num_speculative_tokens"],
            prefill_len=lambda: seam.prefill_len(worker),
            device=worker.device,
        )
        self.oracle = Oracle(
            self.state,
            num_slots=facts["num_slots"],
            max_model_len=facts["max_model_len"],
            vocab_size=facts["vocab_size"],
        )
        self.poison = Poison(worker, facts["num_speculative_tokens"])
        self.active = False
        self.mode = SYNTHETIC
        self.draft_clock = DeviceClock(cuda=str(worker.device).startswith("cuda"))
        self._timed = False
        self._forget()

    def begin(self, plan: PlanRow, mode: str, poison: float, timed: bool) -> None:
        """Start a run: requests that come from here on start at step 0. See ``MODES``."""
        self._timed = timed
        self.poison.value = poison
        self._forget()
        self.state.begin(plan)
        self.mode = mode
        self.active = True

    def expect(self, order: int, tokens: list[int]) -> None:
        """What the target says for the run's ``order``-th request: prompt, then output."""
        self._expected[order] = tokens

    def drain(self) -> dict[str, Any]:
        """The run so far. The only place that waits for the device."""
        margins = iter(_rows([m for m in self._margins if m is not None]))
        return {
            "lanes": self.lanes,
            "ledger": self.state.drain(),
            "scheduler": [step.records(self._lane_of) for step in self._steps],
            "proposed": _rows(self._proposed),
            "made": _rows(self._made),
            "margins": [None if m is None else next(margins) for m in self._margins],
            "work": {
                "target_forwards": self._calls["target"],
                "drafter_forwards": self._calls["drafter"],
                "graph_replays": seam.graph_replays() - self._replays,
            },
        }

    def _forget(self) -> None:
        self.lanes: list[RequestId] = []
        self._steps: list[NotedStep] = []
        self._lane_of: dict[str, int] = {}
        self._foreign: dict[str, int] = {}
        self._allocated: tuple[Any, Any, Any] = ((), (), ())
        self._preempted: list[int] = []
        self._finished: list[int] = []
        self._forwards = {"target": 0, "drafter": 0}
        self._calls = {"target": 0, "drafter": 0}
        self._replays = seam.graph_replays()
        self.draft_clock.reset()
        self._expected: dict[int, list[int]] = {}
        # Per engine step the [num_reqs, K] drafts, as proposed and as stored.
        self._proposed: list[Any] = []
        self._made: list[Any] = []
        # The drafter's margins, [num_reqs, K] or None per engine step, and those under way.
        self._margins: list[Any] = []
        self._leads: list[Any] = []

    # --- the seam's side ---

    def verify(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Decide by the plan; in a lossless run let the engine decide and take note."""
        if self.mode == SYNTHETIC:
            return self._rejection_sample(self.state, *args, **kwargs)
        if self.mode == FAITHFUL:
            return self._overridden(*args, **kwargs)
        if self.mode == TRUTH:
            return verdict_seam.rejection_sample(*verdict_seam.nothing_accepted(args), **kwargs)
        verdict = verdict_seam.rejection_sample(*args, **kwargs)
        _, _, draft_sampled, cu_num_logits, pos, idx_mapping, *_ = args
        self.oracle.record(draft_sampled, cu_num_logits, pos, idx_mapping, *verdict)
        return verdict

    def _overridden(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        from pytest_synthaccept.sampler import note_tokens, override

        _, _, draft_sampled, cu_num_logits, pos, idx_mapping, _, _, temperature, *_ = args
        ledger = self.state.ledger_rows(cu_num_logits.shape[0] - 1)
        batch = (draft_sampled, cu_num_logits, pos, idx_mapping, temperature)
        sampled, num_sampled = verdict_seam.overridden(
            lambda verdict: override(self.state, ledger, verdict, *batch), *args, **kwargs
        )
        note_tokens(self.state, ledger, sampled, num_sampled)
        return sampled, num_sampled

    def request_added(self, request_id: str, slot: int) -> None:
        """Give the slot the request's lane: a new one, or after a resume its old one."""
        lane = self._lane_of.get(request_id)
        if lane is None:
            request = parse_id(request_id) or foreign_id(request_id, self._foreign)
            lane = self.state.open_lane(request.key, request.sample)
            self._lane_of[request_id] = lane
            self.lanes.append(request)
            if self.mode == LOSSLESS and request.order in self._expected:
                self.oracle.expect(lane, self._expected[request.order])
        self.state.assign(slot, lane)

    def scheduled(self, scheduler_output: Any) -> None:
        """Note what the scheduler decided; ``proposed`` completes the step."""
        self._forwards = {"target": 0, "drafter": 0}
        lanes = self._lane_of
        preempted = scheduler_output.preempted_req_ids or ()
        self._preempted = sorted(lanes[r] for r in preempted if r in lanes)
        self._finished = sorted(lanes[r] for r in scheduler_output.finished_req_ids if r in lanes)
        cached, new = scheduler_output.scheduled_cached_reqs, scheduler_output.scheduled_new_reqs
        self._allocated = (new, cached.req_ids, cached.new_block_ids)
        if self.poison.value:
            for request in new:
                self.poison.new_blocks(request.block_ids, computed=request.num_computed_tokens)
            for groups in cached.new_block_ids:
                self.poison.new_blocks(groups or (), computed=0)

    def forwarded(self, model: str) -> None:
        """Count it, for the engine step under way and for the run."""
        self._forwards[model] += 1
        self._calls[model] += 1

    def drafted(self, logits: Any) -> None:
        """Note by how much each row's best token leads, for the drafts under way."""
        if self.mode == LOSSLESS:
            best = logits.float().topk(2).values
            self._leads.append((best[:, 0] - best[:, 1]) / logits.abs().amax(1).float())

    def drafting(self) -> AbstractContextManager[None]:
        """Time it, in a run that asks for it."""
        return self.draft_clock.section() if self._timed else nullcontext()

    def proposed(self, input_batch: Any, draft_tokens: Any) -> None:
        """Note the plan version of the new drafts, and log the step. Reads host arrays only."""
        self.state.mark_proposed(input_batch.idx_mapping)
        self._proposed.append(draft_tokens.clone())
        self._margins.append(self._margins_of(*draft_tokens.shape))
        if self.mode == LOSSLESS:
            total_len = seam.total_len(self._worker)
            self.oracle.rewrite(draft_tokens, input_batch.idx_mapping, total_len)
            self._made.append(draft_tokens.clone())
        else:
            self._made.append(self._proposed[-1])
        if self.poison.value:
            self.poison.past_the_end(input_batch.idx_mapping, input_batch.idx_mapping_np)
        drafts = input_batch.num_draft_tokens_per_req
        self._steps.append(
            NotedStep(
                list(input_batch.req_ids),
                input_batch.num_scheduled_tokens.copy(),
                None if drafts is None else drafts.copy(),
                input_batch.num_computed_tokens_np.copy(),
                input_batch.prefill_len_np.copy(),
                self._allocated,
                self._preempted,
                self._finished,
                self._forwards if self._counts_forwards else {},
            )
        )

    def _margins_of(self, num_reqs: int, k: int) -> Any:
        """[num_reqs, K] float32 of the drafts just made; None where not each was seen."""
        import torch

        leads, self._leads = self._leads, []
        if len(leads) != k or any(len(lead) < num_reqs for lead in leads):
            return None
        return torch.stack([lead[:num_reqs] for lead in leads], dim=1)


class Counter(seam.Hooks):
    """What one rank of an engine without speculation did."""

    active = True

    def __init__(self) -> None:
        self.steps = self.forwards = 0

    def scheduled(self, scheduler_output: Any) -> None:
        """A step, if anything is scheduled in it."""
        self.steps += scheduler_output.total_num_scheduled_tokens > 0

    def forwarded(self, model: str) -> None:
        """There is no other model than the target."""
        self.forwards += 1


def _rows(tensors: list[Any]) -> list[list[list[Any]]]:
    """The tensors as lists, by one copy from the device."""
    import torch

    if not tensors:
        return []
    flat = torch.cat(tensors).tolist()
    ends = list(itertools.accumulate(len(tensor) for tensor in tensors))
    return [flat[end - len(t) : end] for end, t in zip(ends, tensors, strict=True)]


class WorkerExtension:
    """Mixed into vLLM's worker by ``worker_extension_cls``; called by ``collective_rpc``.

    Ranks that do not verify drafts (all but the last pipeline stage) answer None.
    """

    def synthaccept_install(self) -> dict[str, Any]:
        """Put the forced path in, idle, and say what this rank runs."""
        facts = seam.describe(self)
        if facts["verifies"]:
            recorder = Recorder(self, facts)
            seam.install(self, recorder)
            self._synthaccept = recorder
            facts["top_k_top_p"] = seam.replace_what_cannot_be_interpreted()
        return facts

    def synthaccept_begin(
        self, plan: list[Any], mode: str = SYNTHETIC, poison: float = 0.0, timed: bool = False
    ) -> None:
        """Start a run under ``plan`` (a ``PlanRow``), in one of ``MODES``."""
        if recorder := getattr(self, "_synthaccept", None):
            recorder.begin(PlanRow(*plan), mode, poison, timed)

    def synthaccept_expect(self, expected: list[tuple[int, list[int]]]) -> None:
        """For requests to come, in a lossless run: their order in it, and the target's tokens."""
        if recorder := getattr(self, "_synthaccept", None):
            for order, tokens in expected:
                recorder.expect(order, tokens)

    def synthaccept_set_plan(self, plan: list[Any]) -> int | None:
        """From the next proposal on; returns the plan's version in this run."""
        recorder = getattr(self, "_synthaccept", None)
        return None if recorder is None else recorder.state.set_plan(PlanRow(*plan))

    def synthaccept_drain(self) -> dict[str, Any] | None:
        """The run's records from one rank, and from the others their digest, to be compared."""
        recorder = getattr(self, "_synthaccept", None)
        if recorder is None:
            return None
        records = recorder.drain()
        digest = hashlib.sha256(json.dumps(records).encode()).hexdigest()
        read = self.is_driver_worker  # type: ignore[attr-defined]
        # A time is no record: ranks have each their own.
        seconds = recorder.draft_clock.seconds()
        return {"digest": digest, "records": records if read else None, "draft_seconds": seconds}

    def synthaccept_count(self) -> None:
        """Count what this rank does from now on: of an engine without speculation."""
        self._synthaccept_counter = counter = Counter()
        seam.install_counting(self, counter)

    def synthaccept_counts(self) -> list[int]:
        """Since ``synthaccept_count``: engine steps, calls of the target, graphs replayed."""
        counter: Counter = self._synthaccept_counter
        return [counter.steps, counter.forwards, seam.graph_replays()]
