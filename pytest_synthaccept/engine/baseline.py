"""The target alone: what it says greedily, without speculation. Lossless runs are built on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytest_synthaccept.engine import seam
from pytest_synthaccept.engine.config import EngineConfig
from pytest_synthaccept.engine.start import quiet, start
from pytest_synthaccept.errors import EngineError

OWN_ENGINE = "an engine without drafter"
ITSELF = "the engine itself, with nothing accepted"


class Truth(NamedTuple):
    """A request's greedy tokens, and for each the logprob margin over the runner-up."""

    tokens: list[int]
    margins: list[float]


class Baseline:
    """An engine with the same arguments but no drafter, started at the first need.

    It runs past the limit of each request, with ``ignore_eos`` and without stops: drafts are
    rewritten with true tokens beyond the end too. Answers are kept per prompt and parameters.

    Where a second engine does not start, for want of memory mostly, ``ask_itself`` answers: the
    engine under test, with nothing accepted. ``source`` says which it was, ``disturbed`` that
    the engine under test was asked since.
    """

    def __init__(
        self, config: EngineConfig, ask_itself: Callable[[list[Any], list[Any]], list[Any]]
    ) -> None:
        self._config = config
        self._ask_itself = ask_itself
        self._llm: Any = None
        self.source = OWN_ENGINE
        self.disturbed = False
        self._known: dict[tuple[tuple[int, ...], str], Truth] = {}

    def truths(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[Any],
        lengths: Sequence[int],
        *,
        busy: bool = False,
    ) -> list[Truth]:
        """The target's next ``lengths[i]`` tokens after ``prompts[i]``, under ``params[i]``.

        ``busy``: the engine under test has unfinished requests and cannot be asked itself.
        """
        asked = [_unstoppable(p, n) for p, n in zip(params, lengths, strict=True)]
        keys = [(tuple(prompt), repr(p)) for prompt, p in zip(prompts, asked, strict=True)]
        missing = {key: i for i, key in enumerate(keys) if key not in self._known}
        if missing:
            self._run(list(missing), [(prompts[i], asked[i]) for i in missing.values()], busy)
        return [self._known[key] for key in keys]

    def _run(self, keys: list[Any], work: list[tuple[list[int], Any]], busy: bool) -> None:
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in work]
        params = [params for _, params in work]
        if self._llm is None and self.source == OWN_ENGINE:
            self._start()
        with quiet():
            outputs = self._ask(prompts, params, busy)
        for key, output in zip(keys, outputs, strict=True):
            (completion,) = output.outputs
            margins = [_margin(position) for position in completion.logprobs]
            self._known[key] = Truth(list(completion.token_ids), margins)

    def _start(self) -> None:
        try:
            self._llm = start(self._config, speculation=False).llm
        except EngineError as error:
            self.source = f"{ITSELF} (an engine without drafter did not start: {error})"

    def _ask(self, prompts: list[Any], params: list[Any], busy: bool) -> list[Any]:
        if self._llm is None:
            if busy:
                raise EngineError(
                    "a lossless run asks the engine itself for the target's tokens, as "
                    f"{self.source.partition('(')[2].rstrip(')')}; it cannot do so with requests "
                    "unfinished: give it all prompts before the first step"
                )
            self.disturbed = True
            return self._ask_itself(prompts, params)
        try:
            outputs: list[Any] = self._llm.generate(prompts, params, use_tqdm=False)
        except Exception:
            self.close(others_alive=True)  # the next use starts another
            raise
        return outputs

    def close(self, *, others_alive: bool) -> None:
        """Shut it down, if it was ever started."""
        if self._llm is not None:
            seam.shutdown(self._llm, others_alive=others_alive)
            self._llm = None


def _unstoppable(params: Any, length: int) -> Any:
    from vllm.sampling_params import RequestOutputKind

    params = params.clone()
    params.n = 1
    params.max_tokens = length
    params.ignore_eos = True
    params.stop = []
    params.stop_token_ids = []
    params.detokenize = False
    params.logprobs = 2
    params.output_kind = RequestOutputKind.FINAL_ONLY
    return params


def stop_tokens(params: Any, eos_token_id: int | None) -> tuple[int, ...]:
    """The tokens that end a request under ``params``, in order."""
    stops = set(params.stop_token_ids or ())
    if eos_token_id is not None and not params.ignore_eos:
        stops.add(eos_token_id)
    return tuple(sorted(stops))


def cut(tokens: list[int], stops: Sequence[int], limit: int) -> list[int]:
    """What is left of the target's tokens under the request's own limit and stop tokens."""
    tokens = tokens[:limit]
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:end]


def _margin(logprobs: dict[int, Any]) -> float:
    """How far the chosen token is ahead of the next."""
    best, second = sorted((entry.logprob for entry in logprobs.values()), reverse=True)[:2]
    return float(best - second)
