"""``SpecEngine``: one live vLLM engine under a forced acceptance rate."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_synthaccept.acceptance.plan import AcceptancePlan
from pytest_synthaccept.acceptance.request import AcceptanceRequest
from pytest_synthaccept.checks.outputs import NEAR_TIE
from pytest_synthaccept.engine import baseline, core_seam, cpu_runtime, seam
from pytest_synthaccept.engine.baseline import Truth
from pytest_synthaccept.engine.config import Drafter, EngineConfig
from pytest_synthaccept.engine.live_run import LiveRun, Prepared, plan_row
from pytest_synthaccept.engine.plain import PlainEngine
from pytest_synthaccept.engine.start import is_tiny, quiet, start
from pytest_synthaccept.engine.versions import installed
from pytest_synthaccept.engine.worker import SYNTHETIC_MODES, TRUTH
from pytest_synthaccept.errors import AcceptanceError, EngineError
from pytest_synthaccept.run import Proposals, SpecRun

DRAWS = (1, 2, 4, 8, 16)  # of a prompt, until one has no near-tie

NO_PLAN = (
    "no acceptance plan: mark the test with @pytest.mark.acceptance_rate(0.5), call "
    "set_acceptance(0.5) before generate(), or run pytest with --acceptance-rate=0.5"
)


class SpecEngine:
    """A vLLM engine whose verification steps accept what a plan says.

    ``SpecEngine()`` starts the tiny target with its tiny EAGLE drafter on the device at hand.
    Other models: ``SpecEngine(model, Drafter("eagle", path), **vllm_engine_args)``.
    Close it, or use it in a ``with`` block.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        drafter: Drafter | None = None,
        *,
        device: str = "auto",
        **vllm_engine_args: Any,
    ) -> None:
        self.config = EngineConfig(
            model=None if model is None else str(model),
            drafter=drafter,
            device=device,
            args=vllm_engine_args,
        )
        started = start(self.config)
        self.llm = started.llm
        self.info: dict[str, Any] = {}
        self.runs: list[SpecRun] = []
        self.plan: AcceptancePlan | None = None
        self.lossless = False
        self.cost = "lean"
        self.poison = is_tiny(self.config)  # fill KV cache slots that nobody may read
        self.baseline = baseline.shared(self.config)
        self.asked_itself = False  # in place of a baseline engine, since a run last began
        self.end_tokens: set[int] = set()  # of any request that does not ignore them
        self._visited = _visited_by.setdefault(self.config.key, {})
        self._open: LiveRun | None = None
        self._plain: PlainEngine | None = None
        self._run_number = 0
        self._closed = False
        self.core_log: core_seam.CoreLog | None = None
        self.failure: str | None = None  # why a step of this engine died; the pool discards it
        try:
            self.info = _describe(started, self._install())
            self.core_log = core_seam.watch(self.llm)
            self.end_tokens = seam.end_tokens(self.llm)
        except BaseException:
            self.close()
            raise
        _live.append(self)

    @classmethod
    def from_config(cls, config: EngineConfig) -> SpecEngine:
        """The engine of a configuration; see ``EnginePool``."""
        args = dict(config.args)
        model = args.pop("model", config.model)
        for name, instead in (("drafter", "spec_drafter"), ("device", "--synthaccept-device")):
            if name in args:
                raise EngineError(f"{name!r} is not a vLLM engine argument; use {instead}")
        return cls(model, config.drafter, device=config.device, **args)

    @property
    def num_speculative_tokens(self) -> int:
        """K: draft tokens per proposal."""
        return int(self.info["num_speculative_tokens"])

    # --- plans ---

    def begin_test(
        self, request: AcceptanceRequest | None, *, where: str, poison: bool | None = None
    ) -> None:
        """Take up a test's plan, or none, and forget the runs of the last test."""
        self.poison = is_tiny(self.config) if poison is None else poison
        self._finish_open_run()
        seam.abort_all(self.llm)  # what a test gave to .llm and left behind
        self.runs = []
        self.plan = None
        self.lossless, self.cost = False, "lean"
        if request is not None:
            self.lossless, self.cost = request.lossless, request.cost
            self._take(request.plan(self.num_speculative_tokens, where=where))

    def set_acceptance(
        self, rate_or_plan: float | AcceptancePlan | None = None, /, **marker_keywords: Any
    ) -> None:
        """Change the plan: a rate, an ``AcceptancePlan``, or the marker's keywords.

        One RPC to the workers. While a run is open it takes effect at the next proposal; drafts
        already made keep the plan they were made under.
        """
        __tracebackhide__ = True
        k = self.num_speculative_tokens
        if isinstance(rate_or_plan, AcceptancePlan):
            if marker_keywords:
                raise AcceptanceError(
                    "set_acceptance: an AcceptancePlan is complete; "
                    f"drop {', '.join(sorted(marker_keywords))}"
                )
            if rate_or_plan.num_speculative_tokens != k:
                raise AcceptanceError(
                    f"set_acceptance: the plan is for "
                    f"{rate_or_plan.num_speculative_tokens} draft tokens, the engine drafts {k}"
                )
            self._take(rate_or_plan)
            return
        args = () if rate_or_plan is None else (rate_or_plan,)
        request = AcceptanceRequest.parse(args, marker_keywords, where="set_acceptance")
        plan = request.plan(k, where="set_acceptance")
        for name in ("lossless", "cost"):
            if name not in marker_keywords:
                continue
            if self._open is not None and getattr(request, name) != getattr(self._open, name):
                raise AcceptanceError(
                    f"set_acceptance: {name} cannot change while a run is open; "
                    "leave its with block first"
                )
            setattr(self, name, getattr(request, name))
        self._take(plan)

    def _take(self, plan: AcceptancePlan) -> None:
        self.plan = plan
        if self._open is not None:
            self._open.change_plan(plan)
        else:  # for requests given to .llm directly
            self.call_workers("synthaccept_begin", plan_row(plan), SYNTHETIC_MODES[self.cost])

    # --- work ---

    def generate(
        self,
        prompts: Sequence[Sequence[int] | str],
        *,
        max_tokens: int | Sequence[int] | None = None,
        sampling_params: Any = None,
        keys: Sequence[int] | None = None,
        lossless: bool | None = None,
    ) -> SpecRun:
        """Run ``prompts`` to the end under the plan.

        ``prompts`` are token-id lists, or strings where the model has a tokenizer.
        ``max_tokens`` and ``sampling_params`` are one value or one per prompt; without
        ``sampling_params`` decoding is greedy, ignores the end-of-sequence token and is not
        detokenised. ``keys`` are the request keys, integers in 0..2**32-1, by default the
        prompt's index: equal key, seed and plan give equal decisions.
        """
        __tracebackhide__ = True
        prompts = _prompt_list(prompts)
        per_prompt = [
            _one_per_prompt("max_tokens", max_tokens, len(prompts)),
            _one_per_prompt("sampling_params", sampling_params, len(prompts)),
            _one_per_prompt("keys", range(len(prompts)) if keys is None else keys, len(prompts)),
        ]
        with self.run(lossless=lossless) as run:
            asked = enumerate(zip(prompts, *per_prompt, strict=True))
            run.add_all(
                [run.prepare(i, prompt, key, n, params) for i, (prompt, n, params, key) in asked]
            )
        return run

    def run(self, *, lossless: bool | None = None, timed: bool = False) -> LiveRun:
        """A run to be filled step by step: ``with engine.run() as run: run.add(...); run.step()``.

        Leaving the block runs what is unfinished to its end; an exception aborts it. ``timed``:
        nothing is watched or poisoned on the way that the engine would not do by itself.
        """
        __tracebackhide__ = True
        if lossless is not None and not isinstance(lossless, bool):
            raise EngineError(f"lossless={lossless!r} must be True, False or left out")
        lossless = self.lossless if lossless is None else lossless
        if not self.alive:
            raise EngineError(f"this engine is {self.failure or 'closed'}; start another")
        if self.plan is None:
            raise AcceptanceError(NO_PLAN)
        if self._open is not None:
            raise EngineError("a run of this engine is open already; leave its with block first")
        self._run_number += 1
        return LiveRun(self, self._run_number, lossless=lossless, cost=self.cost, timed=timed)

    def without_speculation(self) -> PlainEngine:
        """An engine of the same target and arguments that drafts nothing, live as long as this."""
        if self._plain is None:
            self._plain = PlainEngine(self.config)
        return self._plain

    def truths(self, prepared: Sequence[Prepared], *, busy: bool = False) -> list[Truth]:
        """What the target alone says, past the end of each request, where drafts reach.

        ``busy``: the engine has unfinished requests, and cannot be asked itself.
        """
        beyond = 2 * (self.num_speculative_tokens + 1)
        truths = self.baseline.truths(
            [one.tokens for one in prepared],
            [one.params for one in prepared],
            [min(one.limit + beyond, one.room) for one in prepared],
            ask_itself=None if busy else self._say_without_drafts,
        )
        self.info["baseline"] = self.baseline.source
        return truths

    def _say_without_drafts(self, prompts: list[Any], params: list[Any]) -> list[Any]:
        """Let this engine answer with nothing accepted, and no draft excluded."""
        nothing = AcceptancePlan((0.0,) * self.num_speculative_tokens)
        self.call_workers("synthaccept_begin", plan_row(nothing), TRUTH)
        self.asked_itself = True
        outputs: list[Any] = self.llm.generate(prompts, params, use_tqdm=False)
        return outputs

    def strong_prompts(
        self, lengths: Sequence[int], *, max_tokens: int, seed: int = 0
    ) -> list[list[int]]:
        """Prompts of these lengths whose greedy outputs are as far from near-ties as can be had.

        Random token ids by ``seed``, replaced until the target's logprob margin at each of the
        ``max_tokens`` output tokens is ``checks.outputs.NEAR_TIE`` or more: another batch shape
        does not tip them. Of ``sum(DRAWS)`` draws without such a prompt it is the one with the
        widest smallest margin: bfloat16 has few without a near-tie.
        """
        __tracebackhide__ = True
        vocab_size, floor = self.info["vocab_size"], NEAR_TIE.get(self.info["dtype"], 0.0)
        scratch = LiveRun(self, 0)
        best: dict[int, tuple[float, list[int]]] = {}
        number = 0
        for draws in DRAWS:
            weak = [i for i in range(len(lengths)) if i not in best or best[i][0] < floor]
            drawn = [
                (i, _random_prompt(lengths[i], vocab_size, seed, i, number + n))
                for i in weak
                for n in range(draws)
            ]
            number += draws
            prepared = [scratch.prepare(0, prompt, None, max_tokens, None) for _, prompt in drawn]
            truths = self.truths(prepared)
            for (i, prompt), truth in zip(drawn, truths, strict=True):
                margin = min(truth.margins[:max_tokens])
                if i not in best or margin > best[i][0]:
                    best[i] = margin, prompt
        return [best[i][1] for i in range(len(lengths))]

    def target_outputs(
        self, prompts: Sequence[Sequence[int] | str], *, max_tokens: int
    ) -> list[list[int]]:
        """What the target alone says greedily after each prompt, ``max_tokens`` tokens at most."""
        __tracebackhide__ = True
        scratch = LiveRun(self, 0)
        prepared = [
            scratch.prepare(i, prompt, None, max_tokens, None)
            for i, prompt in enumerate(_prompt_list(prompts))
        ]
        truths = self.truths(prepared)
        return [t.tokens[: one.limit] for one, t in zip(prepared, truths, strict=True)]

    def reference_proposals(self, prepared: Sequence[Prepared]) -> Proposals:
        """Run the requests losslessly with nothing accepted: every prefix of them is visited.

        Kept per prompt and parameters: the runs of a suite over the same prompts share it.
        """
        __tracebackhide__ = True
        k = self.num_speculative_tokens
        names = [(tuple(one.tokens), repr(one.params)) for one in prepared]
        missing = {n: one for n, one in zip(names, prepared, strict=True) if n not in self._visited}
        if missing:
            self._run_number += 1
            nothing = AcceptancePlan((0.0,) * k, requested="rate=0.0")
            with LiveRun(
                self, self._run_number, plan=nothing, lossless=True, reference=True
            ) as run:
                run.add_all(
                    [one._replace(order=i, key=i) for i, one in enumerate(missing.values())]
                )
            self.runs.remove(run)
            for i, name in enumerate(missing):
                steps = [step for step in run.steps if step.index == i and step.sample == 0]
                self._visited[name] = {step.position: step.proposed for step in steps}
            if self.plan is not None:
                self._take(self.plan)
        return {
            (one.order, position): proposed
            for name, one in zip(names, prepared, strict=True)
            for position, proposed in self._visited[name].items()
        }

    @property
    def alive(self) -> bool:
        """Whether it can still run requests: not closed, and no step of it died."""
        return not self._closed and self.failure is None

    @property
    def has_open_run(self) -> bool:
        """Whether a run was entered and not left."""
        return self._open is not None

    def opened(self, run: LiveRun) -> None:
        """``run`` is being entered: it takes the plan changes from here on."""
        __tracebackhide__ = True
        if self._open is not None:
            raise EngineError("a run of this engine is open already; leave its with block first")
        self._open = run

    def finished(self, run: LiveRun) -> None:
        """``run`` was left: its records are complete."""
        self.dropped(run)
        self.runs.append(run)

    def dropped(self, run: LiveRun) -> None:
        """``run`` was abandoned."""
        self._open = None
        if self.core_log is not None:
            self.core_log.rest()

    def _finish_open_run(self) -> None:
        if self._open is not None:  # a test left it open, by an exception or without `with`
            self._open.abandon()

    # --- workers ---

    def call_workers(self, method: str, *args: Any) -> list[Any]:
        """One ``collective_rpc``: the answers of all ranks."""
        try:
            answers: list[Any] = self.llm.collective_rpc(method, args=args)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            raise
        return answers

    def _install(self) -> dict[str, Any]:
        ranks = self.call_workers("synthaccept_install")
        for facts in ranks:
            if facts["model_runner"] != "v2":
                raise EngineError(
                    "vLLM chose the V1 model runner; the forced path lives in Model Runner V2. "
                    "vLLM's log says which feature of this configuration it does not support"
                )
        verifying = [facts for facts in ranks if facts["verifies"]]
        if not verifying:
            raise EngineError(
                "no worker verifies draft tokens: this speculative method does not use the "
                "rejection sampler of Model Runner V2"
            )
        return {**verifying[0], "ranks": len(ranks)}

    # --- the end ---

    def close(self) -> None:
        """Shut the engine down. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self in _live:
            _live.remove(self)
        with quiet():
            if self._plain is not None:
                self._plain.close()
            self.baseline.release(others_alive=True)
            seam.shutdown(self.llm, others_alive=bool(_live))
        del self.llm

    def __enter__(self) -> SpecEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_live: list[SpecEngine] = []

# By configuration, prompt and parameters: the drafter's tokens at each position. Engines of one
# configuration propose alike, also one that replaces another.
_Visited = dict[tuple[tuple[int, ...], str], dict[int, tuple[int, ...]]]
_visited_by: dict[str, _Visited] = {}

# A script that imports SpecEngine may import vllm next: the runtime must be set up before.
if installed().cpu_build:
    cpu_runtime.arm()


def _random_prompt(length: int, vocab_size: int, *seeds: int) -> list[int]:
    draw = random.Random(repr(seeds))
    return [draw.randrange(vocab_size) for _ in range(length)]


def _prompt_list(prompts: Any) -> list[Any]:
    __tracebackhide__ = True
    if not isinstance(prompts, str) and not isinstance(prompts, Sequence):
        raise EngineError(f"generate: prompts={prompts!r} must be a list of prompts")
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        raise EngineError(
            f"generate: prompts={prompts!r} is one prompt; pass a list of prompts, "
            "each a list of token ids or a string"
        )
    if not prompts:
        raise EngineError("generate: prompts is empty; pass at least one prompt")
    return list(prompts)


def _one_per_prompt(name: str, value: Any, count: int) -> list[Any]:
    __tracebackhide__ = True
    if name == "keys" and not isinstance(value, Sequence):
        raise EngineError(f"generate: keys={value!r} must be a list, one integer per prompt")
    if value is None or isinstance(value, Mapping) or not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise EngineError(f"generate: {len(value)} {name} for {count} prompts; give one each")
    return list(value)


def _describe(started: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Versions, runner, device, method, K, async scheduling, CUDA graph mode: builtins only."""
    import torch

    config = started.llm.llm_engine.vllm_config
    return (
        {
            "vllm": f"{started.vllm.dist} {started.vllm.version}",
            "torch": torch.__version__,
            "device": started.device.name,
            "device_why": started.device.why,
            "engine_core": core_seam.core_place(started.llm),
            "model": str(config.model_config.model),
            "method": config.speculative_config.method,
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "cudagraph_mode": str(
                getattr(config.compilation_config.cudagraph_mode, "name", "NONE")
            ),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "max_model_len": int(config.model_config.max_model_len),
            "block_size": int(config.cache_config.block_size),
        }
        | core_seam.limits(started.llm)
        | facts
    )
