"""The target alone: what it says greedily, without speculation. Lossless runs are built on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytest_synthaccept.engine import seam
from pytest_synthaccept.engine.config import EngineConfig
from pytest_synthaccept.engine.start import quiet, start
from pytest_synthaccept.errors import EngineError


class Truth(NamedTuple):
    """A request's greedy tokens, and for each the logprob margin over the runner-up."""

    tokens: list[int]
    margins: list[float]


Ask = Callable[[list[Any], list[Any]], list[Any]]  # prompts, parameters -> outputs of vLLM


class Baseline:
    """An engine with the same arguments but no drafter, started at the first need.

    It runs past the limit of each request, with ``ignore_eos`` and without stops: drafts are
    rewritten with true tokens beyond the end too. Answers are kept per prompt and parameters;
    all engines of one target and its arguments share it, see ``shared``.

    Where a second engine does not start, for want of memory mostly, the engine under test
    answers, with nothing accepted. ``source`` says which it was.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._llm: Any = None
        self._known: dict[tuple[tuple[int, ...], str], Truth] = {}
        self._refusal: EngineError | None = None  # why no second engine starts here
        self.users = 0

    @property
    def source(self) -> str:
        """Who answers, and why it is not an engine of its own."""
        if self._refusal is None:
            return "an engine without drafter"
        return f"the engine itself, with nothing accepted ({self._why})"

    @property
    def _why(self) -> str:
        return f"an engine without drafter did not start: {self._refusal}"

    def truths(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[Any],
        lengths: Sequence[int],
        *,
        ask_itself: Ask | None,
    ) -> list[Truth]:
        """The target's next ``lengths[i]`` tokens after ``prompts[i]``, under ``params[i]``.

        ``ask_itself`` has the engine under test answer; None: it has unfinished requests.
        """
        leads = [min(int(p.min_tokens), n) for p, n in zip(params, lengths, strict=True)]
        if not any(leads):
            asked = [_unstoppable(p, n) for p, n in zip(params, lengths, strict=True)]
            return self._known_or_asked(prompts, asked, ask_itself)
        # Where min_tokens masks stop tokens, the first tokens come with the mask, the rest without.
        first = [_masked(p, n) if n else None for p, n in zip(params, leads, strict=True)]
        begun = self._known_or_asked(
            [prompt for prompt, p in zip(prompts, first, strict=True) if p],
            [p for p in first if p],
            ask_itself,
        )
        heads = [begun.pop(0) if p else Truth([], []) for p in first]
        rest = [_unstoppable(p, n - k) for p, n, k in zip(params, lengths, leads, strict=True)]
        longer = [prompt + head.tokens for prompt, head in zip(prompts, heads, strict=True)]
        tails = self._known_or_asked(longer, rest, ask_itself)
        return [
            Truth(head.tokens + tail.tokens, head.margins + tail.margins)
            for head, tail in zip(heads, tails, strict=True)
        ]

    def _known_or_asked(
        self, prompts: Sequence[list[int]], asked: Sequence[Any], ask_itself: Ask | None
    ) -> list[Truth]:
        keys = [(tuple(prompt), repr(p)) for prompt, p in zip(prompts, asked, strict=True)]
        missing = {key: i for i, key in enumerate(keys) if key not in self._known}
        if missing:
            work = [(prompts[i], asked[i]) for i in missing.values()]
            self._run(list(missing), work, ask_itself)
        return [self._known[key] for key in keys]

    def _run(
        self, keys: list[Any], work: list[tuple[list[int], Any]], ask_itself: Ask | None
    ) -> None:
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in work]
        params = [params for _, params in work]
        if self._llm is None and self._refusal is None:
            self._start()
        with quiet():
            outputs = self._ask(prompts, params, ask_itself)
        for key, output in zip(keys, outputs, strict=True):
            (completion,) = output.outputs
            margins = [_margin(position) for position in completion.logprobs]
            self._known[key] = Truth(list(completion.token_ids), margins)

    def _start(self) -> None:
        try:
            self._llm = start(self._config, speculation=False).llm
        except EngineError as error:
            self._refusal = error

    def _ask(self, prompts: list[Any], params: list[Any], ask_itself: Ask | None) -> list[Any]:
        if self._llm is None:
            if ask_itself is None:
                raise EngineError(
                    "a lossless run asks the engine itself for the target's tokens, as "
                    f"{self._why}; it cannot do so with requests "
                    "unfinished: give it all prompts before the first step"
                )
            return ask_itself(prompts, params)
        try:
            outputs: list[Any] = self._llm.generate(prompts, params, use_tqdm=False)
        except Exception:
            self.close(others_alive=True)  # the next use starts another
            raise
        return outputs

    def release(self, *, others_alive: bool) -> None:
        """One user less; with the last one the engine goes, the answers stay."""
        self.users -= 1
        if not self.users:
            self.close(others_alive=others_alive)

    def close(self, *, others_alive: bool) -> None:
        """Shut it down, if it was ever started."""
        if self._llm is not None:
            seam.shutdown(self._llm, others_alive=others_alive)
            self._llm = None


def _masked(params: Any, length: int) -> Any:
    """``length`` tokens, all of them under the mask of ``min_tokens``."""
    if params.presence_penalty or params.frequency_penalty:
        raise EngineError(
            f"min_tokens={params.min_tokens} with presence_penalty={params.presence_penalty} and "
            f"frequency_penalty={params.frequency_penalty} in a lossless run: the target's answer "
            "is not known; leave out min_tokens or the penalties, or give lossless=False"
        )
    params = _bare(params, length)
    params.min_tokens = length
    return params


def _unstoppable(params: Any, length: int) -> Any:
    params = _bare(params, length)
    params.ignore_eos = True
    params.stop_token_ids = []
    params.min_tokens = 0
    return params


def _bare(params: Any, length: int) -> Any:
    from vllm.sampling_params import RequestOutputKind

    params = params.clone()
    params.n = 1
    params.max_tokens = length
    params.stop = []
    params.detokenize = False
    params.logprobs = 2
    params.output_kind = RequestOutputKind.FINAL_ONLY
    return params


_shared: dict[str, Baseline] = {}


def shared(config: EngineConfig) -> Baseline:
    """The baseline of all engines of this target and these arguments, whatever drafts for them.

    Its scheduling is not asynchronous where the engine's is: one bug less that both could have.
    """
    args = {k: v for k, v in config.args.items() if k != "speculative_config"}
    if args.get("async_scheduling"):
        del args["async_scheduling"]
    alone = EngineConfig(config.model, None, config.device, args)
    baseline = _shared.setdefault(alone.key, Baseline(alone))
    baseline.users += 1
    return baseline


def stop_tokens(params: Any, ends: set[int]) -> tuple[int, ...]:
    """The tokens that end a request under ``params``, in order; ``ends``: those of its engine."""
    stops = set(params.stop_token_ids or ())
    return tuple(sorted(stops if params.ignore_eos else stops | ends))


def cut(tokens: list[int], stops: Sequence[int], limit: int) -> list[int]:
    """What is left of the target's tokens under the request's own limit and stop tokens."""
    tokens = tokens[:limit]
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:end]


def _margin(logprobs: dict[int, Any]) -> float:
    """How far the chosen token is ahead of the next."""
    best, second = sorted((entry.logprob for entry in logprobs.values()), reverse=True)[:2]
    return float(best - second)
