"""The engine without speculation, as benchmarks compare with, and the loop that they time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from pytest_synthaccept.engine import core_seam, seam
from pytest_synthaccept.engine.config import EngineConfig
from pytest_synthaccept.engine.start import quiet, start
from pytest_synthaccept.errors import EngineError
from pytest_synthaccept.run import Work

SPARE_STEPS = 1000


def drive(llm: Any, tokens: int, section: AbstractContextManager[None]) -> list[Any]:
    """Step the engine inside ``section`` until nothing is unfinished: its answers, in order.

    EngineError where it takes more steps than the ``tokens`` it has to compute, by far.
    """
    engine = llm.llm_engine
    most = SPARE_STEPS + tokens
    answers: list[Any] = []
    with section:
        for _ in range(most):
            if not engine.has_unfinished_requests():
                break
            answers += engine.step()
    if engine.has_unfinished_requests():
        raise EngineError(f"requests are unfinished after {most} engine steps: it is stuck")
    while core_seam.step_in_flight(llm):  # of async scheduling, whose outcome nobody needs
        answers += engine.step()
    return answers


class PlainEngine:
    """The target of a configuration alone. Close it before the ``SpecEngine`` that it is for."""

    def __init__(self, config: EngineConfig) -> None:
        try:
            self.llm = start(config, speculation=False).llm
        except EngineError as error:
            raise EngineError(
                f"no room for an engine without speculation to compare with: {error}; give each "
                "its share of the memory, by gpu_memory_utilization or kv_cache_memory_bytes"
            ) from None
        self._runs = 0
        self.llm.collective_rpc("synthaccept_count")

    def timed_run(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[Any],
        section: AbstractContextManager[None],
    ) -> tuple[list[list[int]], Work]:
        """Run the prompts to the end, inside ``section``: their outputs, and the work of it."""
        self._runs += 1
        before = self._counts()
        places = {}
        with quiet():
            for i, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
                request_id = f"synthaccept-plain-{self._runs}-{i}"
                if refusal := seam.add_request(self.llm, request_id, prompt, one):
                    raise EngineError(f"vLLM refuses prompt {i}: {refusal}")
                places[request_id] = i
            tokens = sum(len(p) + one.max_tokens for p, one in zip(prompts, params, strict=True))
            answers = drive(self.llm, tokens, section)
        outputs: list[list[int]] = [[] for _ in prompts]
        for answer in answers:
            outputs[places[answer.request_id]] = list(answer.outputs[0].token_ids)
        steps, forwards, replays = (
            now - then for now, then in zip(self._counts(), before, strict=True)
        )
        return outputs, Work(steps, forwards, 0, replays)

    def _counts(self) -> list[int]:
        counts: list[list[int]] = self.llm.collective_rpc("synthaccept_counts")
        return counts[0]

    def close(self) -> None:
        """Shut it down."""
        with quiet():
            seam.shutdown(self.llm, others_alive=True)
