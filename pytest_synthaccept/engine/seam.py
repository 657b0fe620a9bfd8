"""The one file that knows how vLLM's worker is built: where the forced path is let in.

In Model Runner V2 (``vllm/v1/worker/gpu``):

* ``spec_decode.rejection_sampler.rejection_sample``: the verdict on a batch's drafts, which is
  `verdict_seam`'s;
* ``speculator.propose``: called once per engine step, after the verdict;
* ``req_states.add_request``: a request gets a state slot, also when it resumes;
* ``execute_model`` and the models' forward passes: what a step was given, and what it cost;
* block tables and ``do_kv_cache_update``: slots that poison may fill.

Everything around them (penalties, grammar, logprobs, bookkeeping) stays vLLM's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pytest_synthaccept.engine import verdict_seam
from pytest_synthaccept.engine.core_seam import core_of
from pytest_synthaccept.errors import EngineError


class Hooks:
    """What the seam calls; see ``worker.Recorder``. ``active`` is read before each call."""

    active: bool = False

    def verify(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """In place of ``rejection_sample``, with its arguments and its result."""
        raise NotImplementedError

    def proposed(self, input_batch: Any, draft_tokens: Any) -> None:
        """After ``propose``, before its [num_reqs, K] drafts are stored: they may be rewritten."""
        raise NotImplementedError

    def request_added(self, request_id: str, slot: int) -> None:
        """A request, new or resumed, holds ``slot`` from here on."""
        raise NotImplementedError

    def scheduled(self, scheduler_output: Any) -> None:
        """Before the worker acts on the scheduler's decision."""
        raise NotImplementedError

    def forwarded(self, model: str) -> None:
        """A forward pass of the ``target`` or the ``drafter`` begins."""
        raise NotImplementedError

    def drafted(self, logits: Any) -> None:
        """The drafter's logits, [num_reqs or more, V], of the next draft token of each request."""
        raise NotImplementedError

    def drafting(self) -> AbstractContextManager[None]:
        """Around ``propose``."""
        raise NotImplementedError


def describe(worker: Any) -> dict[str, Any]:
    """What this rank runs: model runner, drafter, whether it verifies."""
    runner = worker.model_runner
    v2 = any(base.__module__ == "vllm.v1.worker.gpu.model_runner" for base in type(runner).__mro__)
    speculator = getattr(runner, "speculator", None)
    return {
        "model_runner": "v2" if v2 else "v1",
        "speculator": type(speculator).__name__ if speculator is not None else None,
        "verifies": v2 and getattr(runner, "rejection_sampler", None) is not None,
        "num_slots": int(runner.max_num_reqs),
        "vocab_size": int(runner.vocab_size),
        "max_model_len": int(runner.max_model_len),
        "num_speculative_tokens": int(getattr(runner, "num_speculative_steps", 0)),
    }


def replace_what_cannot_be_interpreted() -> str:
    """Use vLLM's own PyTorch code for top-k and top-p, whose kernel Triton's interpreter refuses.

    Returns what masks them now, for ``SpecEngine.info``.
    """
    from vllm.v1.sample.ops import topk_topp_sampler as module

    if os.environ.get("TRITON_INTERPRET") != "1":
        return "triton"

    def in_pytorch(logits: Any, k: Any, p: Any) -> Any:
        return module.apply_top_k_top_p_pytorch(logits, k, p, allow_cpu_sync=True)

    module.apply_top_k_top_p_triton = in_pytorch
    return "pytorch"


def prefill_len(worker: Any) -> Any:
    """[max_num_reqs] int32: tokens of each slot's (re)prefill. vLLM swaps buffers: ask anew."""
    return worker.model_runner.req_states.prefill_len.gpu


def total_len(worker: Any) -> Any:
    """[max_num_reqs] int32: committed tokens of each slot; after a verdict, with that step's."""
    return worker.model_runner.req_states.total_len.gpu


# --- the KV cache, for poison ---


def num_computed_tokens(worker: Any) -> Any:
    """[max_num_reqs] int32: tokens of each slot whose KV entries are in place after the step."""
    return worker.model_runner.req_states.num_computed_tokens.gpu


def kv_layers(worker: Any) -> list[tuple[Any, int]]:
    """Attention layers with a KV cache that their back end writes by slot, and their group."""
    runner = worker.model_runner
    layers = runner.vllm_config.compilation_config.static_forward_context
    return [
        (layers[name], group)
        for group, spec in enumerate(runner.kv_cache_config.kv_cache_groups)
        for name in spec.layer_names
        if hasattr(getattr(layers.get(name), "impl", None), "do_kv_cache_update")
    ]


def kv_block_size(worker: Any, group: int) -> int:
    """Tokens of a block in the block table of a KV cache group."""
    return int(worker.model_runner.block_tables.block_sizes[group])


def block_table(worker: Any, group: int) -> Any:
    """[max_num_reqs, max_num_blocks] int32: the block ids of each slot."""
    return worker.model_runner.block_tables.block_tables[group].gpu


def num_blocks(worker: Any, group: int, slots: Any) -> Any:
    """[n] int64 on the host: how many entries of the block table are the request's, per slot."""
    import torch

    counts = worker.model_runner.block_tables.num_blocks.np[group, slots]
    return torch.from_numpy(counts.astype("int64"))


def fill_kv_slots(layer: Any, slots: Any, value: float) -> None:
    """Write ``value`` as keys and values into the slots ([n] int64, negative: none) of a layer."""
    cache = layer.kv_cache[0] if isinstance(layer.kv_cache, list | tuple) else layer.kv_cache
    shape = (len(slots), layer.num_kv_heads, layer.head_size)
    filled = slots.new_full(shape, value, dtype=layer.kv_cache_torch_dtype)
    layer.impl.do_kv_cache_update(layer, filled, filled, cache, slots)


def install(worker: Any, hooks: Hooks) -> None:
    """Let ``hooks`` into this worker's model runner. Call once per worker."""
    runner = worker.model_runner
    _require(runner, "req_states", "speculator", "rejection_sampler", "execute_model")
    verdict_seam.wrap(runner.rejection_sampler, hooks)
    _wrap_propose(runner.speculator, hooks)
    _show_draft_logits(_draft_model(runner), hooks)
    _after(runner.req_states, "add_request", hooks, _add_request_hook(runner.req_states, hooks))
    count_forwards(runner, hooks)
    _count_replays(str(worker.device))
    execute_model = runner.execute_model

    def scheduled_first(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if hooks.active and not kwargs.get("dummy_run", False):
            hooks.scheduled(scheduler_output)
        return execute_model(scheduler_output, *args, **kwargs)

    runner.execute_model = scheduled_first


def install_counting(worker: Any, hooks: Hooks) -> None:
    """For an engine without speculation: ``hooks`` hear of its steps and forward passes alone."""
    runner = worker.model_runner
    count_forwards(runner, hooks)
    _count_replays(str(worker.device))
    execute_model = runner.execute_model

    def scheduled_first(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("dummy_run", False):
            hooks.scheduled(scheduler_output)
        return execute_model(scheduler_output, *args, **kwargs)

    runner.execute_model = scheduled_first


_replays = 0


def graph_replays() -> int:
    """CUDA graphs replayed in this process since the first engine of ours in it."""
    return _replays


def _count_replays(device: str) -> None:
    import torch

    graph = torch.cuda.CUDAGraph
    if not device.startswith("cuda") or hasattr(graph, "_synthaccept_original"):
        return
    graph._synthaccept_original = graph.replay  # type: ignore[attr-defined]

    def replay(self: Any) -> None:
        global _replays
        _replays += 1
        graph._synthaccept_original(self)  # type: ignore[attr-defined]

    graph.replay = replay  # type: ignore[method-assign]


def count_forwards(runner: Any, hooks: Hooks) -> None:
    """Tell ``hooks`` of each call of the target and of the drafter."""
    for name, model in (("target", runner.model), ("drafter", _draft_model(runner))):
        if model is not None:

            def before(*args: Any, name: str = name) -> None:
                if hooks.active:
                    hooks.forwarded(name)

            model.register_forward_pre_hook(before)


def _draft_model(runner: Any) -> Any:
    """The drafter's module; None for a drafter without a model."""
    model = getattr(getattr(runner, "speculator", None), "model", None)
    return model if hasattr(model, "register_forward_pre_hook") else None


def forwards_are_calls(worker: Any) -> bool:
    """Whether each forward pass calls the model; a CUDA graph replays it instead."""
    mode = worker.model_runner.vllm_config.compilation_config.cudagraph_mode
    return getattr(mode, "name", str(mode)) == "NONE" or str(worker.device) == "cpu"


def _require(obj: Any, *names: str) -> None:
    missing = [name for name in names if getattr(obj, name, None) is None]
    if missing:
        raise EngineError(
            f"the model runner {type(obj).__qualname__} has no {', '.join(missing)}: "
            "this vLLM does not verify drafts where the plugin expects it"
        )


def _after(obj: Any, name: str, hooks: Hooks, then: Callable[..., None]) -> None:
    """Call ``then`` with result and arguments after ``obj.name``, while the hooks are active."""
    original = getattr(obj, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if hooks.active:
            then(result, *args, **kwargs)
        return result

    setattr(obj, name, wrapped)


def _wrap_propose(speculator: Any, hooks: Hooks) -> None:
    original = speculator.propose

    def propose(input_batch: Any, *args: Any, dummy_run: bool = False, **kwargs: Any) -> Any:
        if dummy_run or not hooks.active:
            return original(input_batch, *args, dummy_run=dummy_run, **kwargs)
        with hooks.drafting():
            draft_tokens = original(input_batch, *args, dummy_run=dummy_run, **kwargs)
        hooks.proposed(input_batch, draft_tokens)
        return draft_tokens

    speculator.propose = propose


def _show_draft_logits(model: Any, hooks: Hooks) -> None:
    """Where each draft is a call of the model: not under CUDA graphs, nor with local argmax."""
    original = getattr(model, "compute_logits", None)
    if original is None:
        return

    def compute_logits(*args: Any, **kwargs: Any) -> Any:
        logits = original(*args, **kwargs)
        if hooks.active and logits is not None:
            hooks.drafted(logits)
        return logits

    model.compute_logits = compute_logits


def _add_request_hook(req_states: Any, hooks: Hooks) -> Callable[..., None]:
    def then(result: None, req_id: str, *args: Any, **kwargs: Any) -> None:
        hooks.request_added(req_id, req_states.req_id_to_index[req_id])

    return then


# --- the parent's side: vllm.LLM and what hangs on it ---


def add_request(
    llm: Any, request_id: str, tokens: list[int], params: Any, *, cache_salt: str | None = None
) -> str | None:
    """Queue a request under an id of our own; ``LLM.generate`` would number it.

    A ``cache_salt`` keeps its prefix cache apart from that of requests with another.

    Returns the first line of vLLM's objection, if it has one.
    """
    from vllm.exceptions import VLLMValidationError  # a ValueError in 0.26, not in 0.32

    prompt: dict[str, Any] = {"prompt_token_ids": tokens}
    if cache_salt is not None:
        prompt["cache_salt"] = cache_salt
    try:
        llm.llm_engine.add_request(request_id, prompt, params)
    except (ValueError, VLLMValidationError) as error:
        return str(error).splitlines()[0]
    return None


def abort_all(llm: Any) -> None:
    """Abort every request that is still unfinished."""
    engine = llm.llm_engine
    if engine.has_unfinished_requests():
        engine.abort_request(list(engine.output_processor.request_states), internal=True)


def record_stats(llm: Any, into: Any) -> None:
    """Sum this engine's speculative-decoding statistics ``into`` a ``SchedulerStats``.

    Taken where the engine reports them; the metrics registry is shared by all engines of the
    process and forgets the older one.
    """
    manager = llm.llm_engine.logger_manager
    record = getattr(manager, "_synthaccept_record", manager.record)
    manager._synthaccept_record = record

    def recording(*args: Any, **kwargs: Any) -> Any:
        stats = kwargs.get("scheduler_stats", args[0] if args else None)
        if stats is not None and stats.spec_decoding_stats is not None:
            _add_stats(into, stats.spec_decoding_stats)
        return record(*args, **kwargs)

    manager.record = recording


def _add_stats(into: Any, stats: Any) -> None:
    into.num_drafts += stats.num_drafts
    into.num_draft_tokens += stats.num_draft_tokens
    into.num_accepted_tokens += stats.num_accepted_tokens
    per_pos = stats.num_accepted_tokens_per_pos
    total = into.num_accepted_tokens_per_pos
    total.extend([0] * (len(per_pos) - len(total)))
    for i, count in enumerate(per_pos):
        total[i] += count


def tokenizer(llm: Any) -> Any:
    """The engine's tokenizer; None under ``skip_tokenizer_init``."""
    return None if llm.model_config.skip_tokenizer_init else llm.get_tokenizer()


def end_tokens(llm: Any) -> set[int]:
    """What ends any request without ``ignore_eos``: the tokenizer's end of sequence, and the
    generation config's."""
    ends = llm.model_config.try_get_generation_config().get("eos_token_id")
    found = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    if (own := tokenizer(llm)) is not None and own.eos_token_id is not None:
        found.add(own.eos_token_id)
    return found


def shutdown(llm: Any, *, others_alive: bool) -> None:
    """End an engine. The distributed state of this process goes with the last engine in it."""
    if core_of(llm) is not None and others_alive:
        from vllm.v1.engine import core

        cleanup = core.cleanup_dist_env_and_memory
        core.cleanup_dist_env_and_memory = lambda *args, **kwargs: None
        try:
            llm.llm_engine.engine_core.shutdown()
        finally:
            core.cleanup_dist_env_and_memory = cleanup
    else:
        llm.llm_engine.engine_core.shutdown()
