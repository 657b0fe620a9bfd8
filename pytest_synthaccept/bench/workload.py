"""What a benchmark runs: a fixed number of tokens, on an engine with or without speculation."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_synthaccept.errors import BenchmarkError
from pytest_synthaccept.run import Work

if TYPE_CHECKING:
    from pytest_synthaccept.bench.meter import Meter
    from pytest_synthaccept.engine.engine import SpecEngine
    from pytest_synthaccept.run import SpecRun

# What a step costs, where a benchmark does not say: what it costs without the plugin.
COST = "faithful"

PROMPT_TOKENS = 8
TOKENS = 32  # committed per request, unless given


@dataclass(frozen=True)
class Workload:
    """``tokens`` output tokens after each of ``prompts``; prefill is part of the time."""

    prompts: Sequence[Sequence[int] | str]
    tokens: int
    sampling_params: Any = None

    @classmethod
    def of(
        cls,
        engine: SpecEngine,
        prompts: Sequence[Sequence[int] | str] | None,
        requests: int | None,
        tokens: int,
        sampling_params: Any,
    ) -> Workload:
        """Checked. Without ``prompts``: ``requests`` random ones of ``PROMPT_TOKENS`` tokens."""
        __tracebackhide__ = True
        for name, value in (("requests", requests), ("tokens", tokens)):
            if value is not None and not (type(value) is int and value >= 1):
                raise BenchmarkError(f"spec_benchmark: {name}={value!r} must be an integer >= 1")
        if prompts is not None and requests is not None:
            raise BenchmarkError(
                "spec_benchmark: got prompts and requests; give one: requests makes random prompts"
            )
        if getattr(sampling_params, "n", 1) != 1:
            raise BenchmarkError(
                f"spec_benchmark: sampling_params have n={sampling_params.n}; "
                "give n=1 and more requests"
            )
        if prompts is None:
            draw, size = random.Random(0), engine.info["vocab_size"]
            prompts = [
                [draw.randrange(size) for _ in range(PROMPT_TOKENS)] for _ in range(requests or 1)
            ]
        return cls(prompts, tokens, sampling_params)

    @property
    def total(self) -> int:
        """Committed tokens of a run."""
        return self.tokens * len(self.prompts)

    def run(
        self, engine: SpecEngine, meter: Meter, seconds: list[float], last: SpecRun | None
    ) -> SpecRun:
        """One run under the engine's plan, timed. It takes the place of ``last`` in its runs."""
        __tracebackhide__ = True
        with engine.run(timed=True) as run:
            run.add_all(
                [
                    run.prepare(i, prompt, i, self.tokens, self.sampling_params)
                    for i, prompt in enumerate(self.prompts)
                ]
            )
            run.rush(meter.section(seconds))
        # The records of all rounds would add up, and they are alike.
        engine.runs = [other for other in engine.runs if other is not last]
        self._require_all([request.output for request in run.requests])
        return run

    def run_plain(self, engine: SpecEngine, meter: Meter, seconds: list[float]) -> Work:
        """One run without speculation, timed."""
        __tracebackhide__ = True
        from pytest_synthaccept.engine.live_run import LiveRun

        plain = engine.without_speculation()
        scratch = LiveRun(engine, 0)  # never entered: it only checks and tokenises
        prepared = [
            scratch.prepare(i, prompt, i, self.tokens, self.sampling_params)
            for i, prompt in enumerate(self.prompts)
        ]
        outputs, work = plain.timed_run(
            [one.tokens for one in prepared],
            [one.params for one in prepared],
            meter.section(seconds),
        )
        self._require_all(outputs)
        return work

    def _require_all(self, outputs: Sequence[Sequence[int]]) -> None:
        __tracebackhide__ = True
        for i, output in enumerate(outputs):
            if len(output) != self.tokens:
                raise BenchmarkError(
                    f"spec_benchmark: request {i} ended after {len(output)} of {self.tokens} "
                    "tokens; give it ignore_eos=True, no stops and room in max_model_len"
                )


def realised(run: SpecRun) -> tuple[float | None, float]:
    """Acceptance rate (None: nothing was drafted) and tokens per verification step of a run."""
    rate, length = run.acceptance.rate, run.acceptance.length
    return (None, 1.0) if math.isnan(rate) else (rate, length)
