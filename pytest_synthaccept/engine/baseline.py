"""The target alone: what it says greedily, without speculation. Lossless runs are built on it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_synthaccept.engine import seam
from pytest_synthaccept.engine.config import EngineConfig
from pytest_synthaccept.engine.start import start


class Truth(NamedTuple):
    """A request's greedy tokens, and for each the logprob margin over the runner-up."""

    tokens: list[int]
    margins: list[float]


class Baseline:
    """An engine with the same arguments but no drafter, started at the first need.

    It runs past the limit of each request, with ``ignore_eos`` and without stops: drafts are
    rewritten with true tokens beyond the end too. Answers are kept per prompt and parameters.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._llm: Any = None
        self._known: dict[tuple[tuple[int, ...], str], Truth] = {}

    def truths(
        self, prompts: Sequence[list[int]], params: Sequence[Any], lengths: Sequence[int]
    ) -> list[Truth]:
        """The target's next ``lengths[i]`` tokens after ``prompts[i]``, under ``params[i]``."""
        asked = [_unstoppable(p, n) for p, n in zip(params, lengths, strict=True)]
        keys = [(tuple(prompt), repr(p)) for prompt, p in zip(prompts, asked, strict=True)]
        missing = {key: i for i, key in enumerate(keys) if key not in self._known}
        if missing:
            self._run(list(missing), [(prompts[i], asked[i]) for i in missing.values()])
        return [self._known[key] for key in keys]

    def _run(self, keys: list[Any], work: list[tuple[list[int], Any]]) -> None:
        if self._llm is None:
            self._llm = start(self._config, speculation=False).llm
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs = self._llm.generate(
                    [{"prompt_token_ids": prompt} for prompt, _ in work],
                    [params for _, params in work],
                    use_tqdm=False,
                )
        except Exception:
            self.close(others_alive=True)  # the next use starts another
            raise
        for key, output in zip(keys, outputs, strict=True):
            (completion,) = output.outputs
            margins = [_margin(position) for position in completion.logprobs]
            self._known[key] = Truth(list(completion.token_ids), margins)

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


def cut(tokens: list[int], params: Any, limit: int, eos_token_id: int | None) -> list[int]:
    """What is left of the target's tokens under the request's own limit and stop tokens."""
    stops = set(params.stop_token_ids or ())
    if eos_token_id is not None and not params.ignore_eos:
        stops.add(eos_token_id)
    tokens = tokens[:limit]
    end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[:end]


def _margin(logprobs: dict[int, Any]) -> float:
    """How far the chosen token is ahead of the next."""
    best, second = sorted((entry.logprob for entry in logprobs.values()), reverse=True)[:2]
    return float(best - second)
