"""The one file that knows vLLM's engine core: scheduler and KV cache manager, as they are.

Reached only where the core lives in this process. ``watch`` notes what they hold right after
each call of the scheduler; judging is left to the checks.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from pytest_synthaccept.engine.request_ids import RequestId, foreign_id, parse_id
from pytest_synthaccept.run import CoreEvent, CoreRequest, CoreRow, KvCache

_ONE_TOKEN_A_FORWARD = ("eagle", "eagle3", "draft_model", "mtp")  # drafters that chain K passes
_STATES = {"WAITING": "waiting", "RUNNING": "running", "PREEMPTED": "preempted"}


def core_of(llm: Any) -> Any:
    """The ``EngineCore`` object, or None where it lives in a process of its own."""
    return getattr(llm.llm_engine.engine_core, "engine_core", None)


def core_place(llm: Any) -> str:
    """Where the engine core, and with it the scheduler, lives."""
    return "separate process" if core_of(llm) is None else "in process"


def step_in_flight(llm: Any) -> bool:
    """Whether an engine step is queued whose outcome nobody has read yet."""
    core = core_of(llm)
    return core is not None and bool(core.batch_queue)


def free_blocks(llm: Any) -> int | None:
    """Free blocks of the KV block pool; None where the engine core lives in another process."""
    core = core_of(llm)
    if core is None:
        return None
    return int(core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def describe_pool(llm: Any, into: KvCache) -> None:
    """Size of the block pool and of its blocks."""
    core = core_of(llm)
    if core is None:
        return
    manager = core.scheduler.kv_cache_manager
    into.num_blocks = len(manager.block_pool.blocks) - 1
    into.block_sizes = tuple(int(m.block_size) for m in manager.coordinator.single_type_managers)


def limits(llm: Any) -> dict[str, Any]:
    """What the scheduler must keep to, and what a step costs."""
    config = llm.llm_engine.vllm_config
    scheduler, speculative = config.scheduler_config, config.speculative_config
    core = core_of(llm)
    managers = [] if core is None else core.scheduler.kv_cache_manager.coordinator
    managers = getattr(managers, "single_type_managers", ())
    k = int(speculative.num_speculative_tokens)
    return {
        "max_num_batched_tokens": int(scheduler.max_num_batched_tokens),
        "max_num_seqs": int(scheduler.max_num_seqs),
        "long_prefill_token_threshold": int(scheduler.long_prefill_token_threshold),
        "draft_slots": int(getattr(speculative, "max_num_new_slots_for_drafting", 0)),
        "drafter_forwards": k if speculative.method in _ONE_TOKEN_A_FORWARD else None,
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "plain_kv_cache": [type(m).__name__ for m in managers] == ["FullAttentionManager"],
    }


class CoreLog:
    """The calls of one engine's scheduler since the last ``begin``."""

    def __init__(self, scheduler: Any) -> None:
        self.events: list[CoreEvent] = []
        self._scheduler = scheduler
        self._flying: deque[tuple[int, tuple[CoreRow, ...]]] = deque()
        self._run = 0
        self._steps = 0
        self._foreign: dict[str, int] = {}
        self._last: dict[str, CoreRequest] = {}
        self._names: dict[str, RequestId] = {}
        self._objects: dict[str, Any] = {}
        self._paused = True

    def begin(self, run: int, *, paused: bool = False) -> list[CoreEvent]:
        """Start anew for a run's number; a step still in flight is not the new run's.

        ``paused``: note nothing in this run, as it takes time.
        """
        self._paused = paused
        flying = len(self._flying)
        self._run = run
        self.events = []
        self._steps = 0
        self._foreign, self._last, self._names, self._objects = {}, {}, {}, {}
        self._flying = deque([(-1, ())] * flying)
        return self.events

    def rest(self) -> None:
        """Note nothing until a run begins: it takes time."""
        self._paused = True

    def scheduled(self, output: Any) -> None:
        """After ``schedule``. The scheduler has counted the step as computed already."""
        if self._paused:
            self._flying.append((-1, ()))
            return
        requests = self._scheduler.requests
        drafts = output.scheduled_spec_decode_tokens
        rows = []
        for request_id, tokens in output.num_scheduled_tokens.items():
            name = self._name(request_id)
            computed = int(requests[request_id].num_computed_tokens) - tokens
            count = len(drafts.get(request_id, ()))
            rows.append(CoreRow(name.order, name.sample, int(tokens), count, computed))
        step = self._steps if rows else -1
        self._flying.append((step, tuple(rows)))
        self._note("schedule", step, tuple(rows))
        self._steps += bool(rows)

    @property
    def last_step(self) -> int:
        """The number of the last step that had anything scheduled; -1 before the first."""
        return self._steps - 1

    @property
    def idle(self) -> bool:
        """Nothing was scheduled in the last call, and nothing is in flight."""
        last = self.events[-1] if self.events else None
        return last is not None and not last.rows and not any(rows for _, rows in self._flying)

    def updated(self) -> None:
        """After ``update_from_output``, which takes the steps in in order."""
        step, rows = self._flying.popleft() if self._flying else (-1, ())
        if not self._paused:
            self._note("update", step, rows)

    def _note(self, kind: str, step: int, rows: tuple[CoreRow, ...]) -> None:
        scheduler = self._scheduler
        now = {}
        for request_id, request in scheduler.requests.items():
            if not request.is_finished():
                self._objects[request_id] = request
                state = _STATES.get(request.status.name, "waiting")
                now[request_id] = self._request(request_id, state, self._blocks(request_id))
        # Nothing is allocated in an update: the blocks of what it finished are as it left them.
        finished = [
            self._request(request_id, "finished", last.blocks)
            for request_id, last in self._last.items()
            if kind == "update" and request_id not in now
        ]
        self._last = now
        self.events.append(
            CoreEvent(
                kind=kind,
                step=step,
                rows=rows,
                requests=(*now.values(), *finished),
                free_blocks=int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks()),
            )
        )

    def _blocks(self, request_id: str) -> tuple[tuple[int, ...], ...]:
        """The request's block ids, the same object as long as they are the same."""
        manager = self._scheduler.kv_cache_manager
        null = manager.block_pool.null_block.block_id
        groups = manager.get_block_ids(request_id)
        blocks = tuple(tuple(int(b) for b in group if b != null) for group in groups)
        last = self._last.get(request_id)
        return last.blocks if last is not None and last.blocks == blocks else blocks

    def _request(
        self, request_id: str, state: str, blocks: tuple[tuple[int, ...], ...]
    ) -> CoreRequest:
        pool = self._scheduler.kv_cache_manager.block_pool.blocks
        request, name = self._objects[request_id], self._name(request_id)
        return CoreRequest(
            request=name.key,
            index=name.order,
            sample=name.sample,
            state=state,
            committed=int(request.num_tokens),
            computed=int(request.num_computed_tokens),
            placeholders=int(getattr(request, "num_output_placeholders", 0)),
            blocks=blocks,
            refs=tuple(tuple(int(pool[b].ref_cnt) for b in group) for group in blocks),
            hashed=tuple(
                max(
                    (i for i, b in enumerate(group, 1) if pool[b].block_hash is not None), default=0
                )
                for group in blocks
            ),
        )

    def _name(self, request_id: str) -> RequestId:
        if request_id not in self._names:
            name = parse_id(request_id)
            if name is None or name.run != self._run:
                name = foreign_id(request_id, self._foreign)
            self._names[request_id] = name
        return self._names[request_id]


def watch(llm: Any) -> CoreLog | None:
    """Log the scheduler's calls from now on; None where it lives in another process."""
    core = core_of(llm)
    if core is None:
        return None
    scheduler = core.scheduler
    log, cls = CoreLog(scheduler), type(scheduler)

    # Looked up at each call: whoever changes the class later is heard.
    def scheduling(*args: Any, **kwargs: Any) -> Any:
        output = cls.schedule(scheduler, *args, **kwargs)
        log.scheduled(output)
        return output

    def updating(*args: Any, **kwargs: Any) -> Any:
        outputs = cls.update_from_output(scheduler, *args, **kwargs)
        log.updated()
        return outputs

    scheduler.schedule, scheduler.update_from_output = scheduling, updating
    return log
