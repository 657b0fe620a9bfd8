"""Bugs of the kinds that were found in real engines, each in a few words of vLLM's own source.

``kind`` names the class: A scheduler accounting, B placeholders and preemption, C stops and
limits, D KV cache and prefix cache, E drafter, G sampler and rows, H metrics, I work.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from planting import Plant

REQUEST = r"request \d+"


@dataclass(frozen=True)
class Bug:
    name: str
    kind: str
    says: str
    plant: Callable[[Plant], None]
    pattern: str
    check: str
    message: str  # after "check: "
    engine: dict[str, Any] = field(default_factory=dict)
    method: str = "eagle"
    ruins: bool = False  # the engine cannot be used afterwards


BUGS: list[Bug] = []

ASYNC = {"async_scheduling": True}


def bug(name, kind, pattern, check, message, **more):
    def add(plant):
        BUGS.append(Bug(name, kind, plant.__doc__, plant, pattern, check, message, **more))
        return plant

    return add


def modules():
    from vllm.v1.core import block_pool, kv_cache_manager, single_type_kv_cache_manager
    from vllm.v1.core.sched import async_scheduler, scheduler
    from vllm.v1.spec_decode import metrics

    return {
        "scheduler": scheduler,
        "async": async_scheduler,
        "manager": kv_cache_manager,
        "single": single_type_kv_cache_manager,
        "pool": block_pool,
        "metrics": metrics,
    }


# --- A: scheduler accounting ---


@bug(
    "no-output-for-a-scheduled-row",
    "A1",
    "alternating",
    "scheduler",
    rf"{REQUEST}, engine step \d+: 4 tokens scheduled \(3 drafts\), none committed",
    ruins=True,
)
def empty_output(plant):
    """A row comes back empty: its drafts count neither as accepted nor as rejected."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "update_from_output",
        (
            "sampled_token_ids[req_index] if sampled_token_ids else []",
            "sampled_token_ids[req_index]\n"
            "            if sampled_token_ids and request.num_output_tokens < 6 else []",
        ),
    )


@bug(
    "rejections-are-not-rolled-back",
    "A1",
    "alternating",
    "scheduler",
    rf"{REQUEST}, update of engine step \d+: num_computed_tokens is \d+, expected \d+ ",
    ruins=True,
)
def no_rollback(plant):
    """One rejected draft stays counted as computed."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "update_from_output",
        (
            "request.num_computed_tokens -= num_rejected",
            "request.num_computed_tokens -= max(0, num_rejected - 1)",
        ),
    )


@bug(
    "past-max-model-len",
    "A4",
    "to-max-model-len",
    "scheduler",
    rf"{REQUEST}, engine step \d+: \d+ computed \+ \d+ scheduled \+ 1 sampled tokens, "
    r"max_model_len is \d+",
    ruins=True,
)
def past_max_model_len(plant):
    """The cap at max_model_len leaves no room for the token that is sampled."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "schedule",
        ("- self.num_sampled_tokens_per_step,", ","),
    )


@bug(
    "drafts-on-a-prefill-chunk",
    "A5",
    "prefill-chunk",
    "scheduler",
    rf"{REQUEST}, engine step \d+: \d drafts scheduled on a prefill chunk, "
    r"\d+ of \d+ prompt tokens computed",
    ruins=True,
)
def drafts_on_a_chunk(plant):
    """Drafts proposed after a partial prefill are scheduled with the next chunk."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "update_draft_token_ids",
        ("if request.is_prefill_chunk:", "if False:"),
    )


@bug(
    "drafts-never-reach-the-scheduler",
    "A6",
    "full",
    "accounting",
    r"no draft token was verified in \d+ decode rows: the drafter proposed nothing, ",
)
def no_drafts(plant):
    """The engine core does not ask the workers for their drafts."""
    plant.source(type(plant.core), "post_step", ("and model_executed", "and not model_executed"))


@bug(
    "the-scheduler-waits-for-memory-that-nobody-frees",
    "A7",
    "preempt",
    "scheduler",
    rf"{REQUEST}, before engine step \d+: running, but passed over 3 times in a row with room ",
    ruins=True,
)
def deadlock(plant):
    """When the pool is full nobody is preempted: everyone waits for everyone."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "schedule",
        ("preempted_req = self.running[-1]\n", "break\n"),
    )


@bug(
    "drafts-clipped-without-a-reason",
    "A",
    "full",
    "scheduler",
    rf"{REQUEST}, engine step \d+: 2 of 3 drafts scheduled, though neither ",
)
def clipped(plant):
    """The scheduler hands out one draft less than was proposed."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "update_draft_token_ids",
        ("request, spec_token_ids\n", "request, spec_token_ids[:-1]\n"),
    )


@bug(
    "a-running-request-is-passed-over",
    "A",
    "partial",
    "scheduler",
    rf"{REQUEST}, before engine step \d+: running, but passed over 3 times in a row with room ",
)
def starved(plant):
    """After a while the second of the running requests is skipped until the first has ended."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "schedule",
        (
            "if defer_prefills and request.is_prefill_chunk:",
            "if req_index and request.num_output_tokens > 5 and request is self.running[1]:",
        ),
    )


# --- B: placeholders, preemption ---


@bug(
    "placeholders-survive-a-preemption",
    "B1",
    "preempt",
    "outputs",
    rf"{REQUEST}: output token \d+ is \d+, the target alone says \d+; after step \d+ ",
    engine=ASYNC,
    ruins=True,
)
def placeholders_survive(plant):
    """A preempted request keeps the placeholders of its steps in flight."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "_preempt_request",
        ("request.num_output_placeholders = 0", "pass"),
    )


@bug(
    "a-preempted-request-takes-a-late-rejection",
    "B4",
    "preempt",
    "outputs",
    rf"{REQUEST}: output token \d+ is \d+, the target alone says \d+; (after|committed by) step ",
    engine=ASYNC,
    ruins=True,
)
def stale_rejections(plant):
    """The outcome of a step in flight at a preemption is booked on the request that came back."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "_preempt_request",
        ("request.num_computed_tokens = 0", "request.num_computed_tokens = 1"),
    )


@bug(
    "the-drafter-starts-from-another-rows-token",
    "B5",
    "partial",
    "drafter",
    rf"{REQUEST}, step \d+, position \d+, after .*: proposed \[",
)
def wrong_last_token(plant):
    """The last committed token that the drafter goes on from is the neighbour's."""
    propose = plant.runner.speculator.propose

    def rolled(batch, metadata, slots, hidden, aux, sampled, rejected, last, *args, **kwargs):
        moved = last.clone()
        moved[batch.idx_mapping] = last[batch.idx_mapping.roll(1)]
        return propose(
            batch, metadata, slots, hidden, aux, sampled, rejected, moved, *args, **kwargs
        )

    plant.monkeypatch.setattr(plant.runner.speculator, "propose", rolled)


@bug(
    "placeholders-without-drafts",
    "B8",
    "gap",
    "scheduler",
    rf"{REQUEST}, schedule of engine step \d+: \d+ output placeholders, expected \d+ for the ",
    engine=ASYNC,
    ruins=True,
)
def placeholders_without_drafts(plant):
    """Placeholders are seeded as if every step had K drafts."""
    plant.source(
        modules()["async"].AsyncScheduler,
        "_update_after_schedule",
        ("len(spec_decode_tokens.get(req_id, ()))", "self.num_spec_tokens"),
    )


# --- C: stops and limits ---


@bug(
    "tokens-after-a-stop",
    "C",
    "stop-inside",
    "outputs",
    rf"{REQUEST}: output token \d+ is \d+, the target alone says missing; committed by step \d+",
)
def no_trim(plant):
    """An accepted run is kept whole though a stop token is inside."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "_update_request_with_output",
        ("del new_token_ids[num_new:]", "pass"),
    )


@bug(
    "one-token-early",
    "C",
    "full",
    "outputs",
    rf"{REQUEST}: output token 23 is missing, the target alone says \d+; committed by step \d+ ",
)
def one_early(plant):
    """The length limit is compared before the token is counted."""
    plant.source(
        modules()["scheduler"],
        "check_stop",
        (
            "request.num_output_tokens >= request.max_tokens",
            "request.num_output_tokens + 1 >= request.max_tokens",
        ),
    )


@bug(
    "one-token-late",
    "C",
    "max-tokens-inside",
    "outputs",
    rf"{REQUEST}: output token \d+ is \d+, the target alone says missing; committed by step \d+ ",
)
def one_late(plant):
    """A run that reaches over max_tokens keeps one token more."""
    plant.source(
        modules()["scheduler"],
        "check_stop",
        (
            "request.num_output_tokens >= request.max_tokens",
            "request.num_output_tokens > request.max_tokens",
        ),
    )


# --- D: KV cache, prefix cache ---


@bug(
    "the-last-tokens-block-is-published",
    "D1",
    "end-on-block",
    "kv_cache",
    rf"{REQUEST}, update of engine step \d+: the prefix cache may hand out \d+ blocks of it, "
    r"\d+ tokens; \d+ of its \d+ tokens have been written",
    ruins=True,
)
def published_last(plant):
    """On finishing, all tokens are published, the last of which was never written."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "_free_request",
        (
            "connector_delay_free_blocks, kv_xfer_params = self._connector_finished(request)",
            "connector_delay_free_blocks, kv_xfer_params = self._connector_finished(request)\n"
            "    self.kv_cache_manager.cache_blocks(request, request.num_tokens)",
        ),
    )


@bug(
    "a-block-is-freed-while-it-is-read",
    "D4",
    "block-prompts",
    "kv_cache",
    rf"{REQUEST}, schedule of engine step \d+: its block table was \[.*\] and is now \[.*\]: ",
    ruins=True,
)
def freed_early(plant):
    """A window is taken to have passed the first block, by a count that runs ahead."""
    plant.source(
        modules()["single"].SingleTypeKVCacheManager,
        "get_num_skipped_tokens",
        ("return 0", "return num_computed_tokens - 40"),
    )


@bug(
    "prefix-hits-lost",
    "D5",
    "replay",
    "pattern replay",
    r"did not occur: \d+ of \d+ tokens from the cache, or more ",
)
def hits_lost(plant):
    """The block that EAGLE gives back is given back twice."""
    plant.source(
        modules()["single"].FullAttentionManager,
        "find_longest_cache_hit",
        (
            "hit_length -= min(alignment_tokens, block_size)",
            "hit_length = max(0, hit_length - 2 * min(alignment_tokens, block_size))",
        ),
    )


@bug(
    "hashes-ahead-of-the-tokens",
    "D7",
    "cross-block",
    "kv_cache",
    rf"{REQUEST}, schedule of engine step \d+: the prefix cache may hand out \d+ blocks of it, ",
    ruins=True,
)
def hashes_ahead(plant):
    """A block is published as soon as its last slot is allocated."""
    plant.source(
        modules()["single"].SingleTypeKVCacheManager,
        "cache_blocks",
        (
            "num_full_blocks = num_tokens // self.block_size",
            "num_full_blocks = min(len(request.block_hashes), num_tokens // self.block_size + 1)\n"
            "    if len(self.req_to_blocks[request.request_id]) > num_full_blocks:\n"
            "        block = self.req_to_blocks[request.request_id][num_full_blocks]\n"
            "        block._block_hash = block._block_hash or b'ahead'",
        ),
    )


@bug(
    "rejected-tokens-stay-in-the-context",
    "D13",
    "partial",
    "outputs",
    rf"{REQUEST}: output token \d+ is \d+, the target alone says \d+; after step \d+ ",
)
def rejected_stay(plant):
    """The worker counts one rejected draft as computed: KV slots and positions shift."""
    postprocess = plant.runner.postprocess_sampled

    def one_less(idx_mapping, sampled, num_sampled, num_rejected, *args, **kwargs):
        num_rejected = (num_rejected - 1).clamp(min=0)
        return postprocess(idx_mapping, sampled, num_sampled, num_rejected, *args, **kwargs)

    plant.monkeypatch.setattr(plant.runner, "postprocess_sampled", one_less)


@bug(
    "a-finished-request-keeps-a-block",
    "D11",
    "full",
    "kv_cache",
    rf"update of engine step \d+: \d+ blocks belong to nobody: .*; just finished: {REQUEST}",
    ruins=True,
)
def leak(plant):
    """One block of a finished request never returns to the pool."""
    plant.source(
        modules()["single"].SingleTypeKVCacheManager,
        "free",
        ("self.pop_blocks_for_free(request_id)", "self.pop_blocks_for_free(request_id)[1:]"),
    )


@bug(
    "a-block-is-counted-twice",
    "D",
    "block-prompts",
    "kv_cache",
    rf"{REQUEST}, schedule of engine step \d+: block \d+ \(number \d+\) has a reference count "
    r"of 2, 1 requests hold it",
    ruins=True,
)
def counted_twice(plant):
    """A new block starts with two references."""
    plant.source(
        modules()["pool"].BlockPool,
        "get_new_blocks",
        ("return ret", "ret[0].ref_cnt += 1\n    return ret"),
    )


@bug(
    "a-block-for-two",
    "D",
    "partial",
    "kv_cache",
    r"schedule of engine step \d+: blocks in use are free|"
    rf"{REQUEST}, schedule of engine step \d+: block \d+ \(number \d+\) is also in the table of ",
    ruins=True,
)
def shared(plant):
    """The pool hands out a block that it keeps in the free list."""
    plant.source(
        modules()["pool"].BlockPool,
        "get_new_blocks",
        (
            "ret: list[KVCacheBlock] = self.free_block_queue.popleft_n(num_blocks)",
            "ret = self.free_block_queue.popleft_n(num_blocks)\n"
            "    self.free_block_queue.append_n(ret[-1:])",
        ),
    )


@bug(
    "a-block-loses-its-content",
    "D",
    "alternating",
    "outputs",
    rf"{REQUEST}: output token \d+ is \d+, the target alone says \d+; (after|committed by) step ",
)
def lost_content(plant):
    """The target's first layer forgets everything once."""
    execute_model = plant.runner.execute_model
    calls = iter(range(10**6))

    def zeroing(*args, **kwargs):
        if next(calls) == 4:
            plant.runner.kv_caches[0].zero_()
        return execute_model(*args, **kwargs)

    plant.monkeypatch.setattr(plant.runner, "execute_model", zeroing)


# --- E: drafter ---


def lose_slots(plant, where):
    """The drafter does not write the KV entries of the tokens that ``where`` names."""
    propose = plant.runner.speculator.propose

    def without(batch, metadata, slots, hidden, aux, sampled, rejected, *args, **kwargs):
        slots = {name: slot.clone() for name, slot in slots.items()}
        drafter = [name for name in slots if name not in target_layers]
        for row, token in where(batch, sampled.tolist(), rejected.tolist()):
            start = int(batch.query_start_loc_np[row])
            for name in drafter:
                slots[name][start + token] = -1
        return propose(batch, metadata, slots, hidden, aux, sampled, rejected, *args, **kwargs)

    target_layers = {f"model.layers.{i}.self_attn.attn" for i in range(2)}
    plant.monkeypatch.setattr(plant.runner.speculator, "propose", without)


DRAFTS_DIFFER = (
    rf"{REQUEST}, step \d+, position \d+, after .*: proposed \[\d+, \d+, \d+\], where the same "
    r"prefix without accepted drafts gets \["
)


@bug("the-last-accepted-draft-has-no-kv", "E1", "full", "drafter", DRAFTS_DIFFER)
def last_kv_missing(plant):
    """After a full step the drafter's cache lacks the entry of the last accepted draft."""

    def last(batch, sampled, rejected):
        for row in range(batch.num_reqs):
            if sampled[row] == 4:
                yield row, 3

    lose_slots(plant, last)


@bug("accepted-drafts-keep-approximated-kv", "E2", "partial", "drafter", DRAFTS_DIFFER)
def approximated(plant):
    """Accepted drafts are not run through the drafter again with the target's hidden states."""

    def accepted(batch, sampled, rejected):
        for row in range(batch.num_reqs):
            if batch.num_draft_tokens:
                yield from ((row, i) for i in range(1, sampled[row]))

    lose_slots(plant, accepted)


@bug(
    "no-lookahead-at-the-first-prefill",
    "E3",
    "block-prompts",
    "kv_cache",
    rf"{REQUEST}, schedule of engine step \d+: \d blocks of 32 tokens, \d+ computed \+ 3 "
    r"lookahead tokens need \d: drafts have no slot of their own",
    ruins=True,
)
def no_lookahead(plant):
    """The first prefill allocates no slots for the drafts."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "schedule",
        (
            "0 if limit_lookahead_tokens else self.num_lookahead_tokens",
            "0 if request.num_computed_tokens == 0 else self.num_lookahead_tokens",
        ),
    )


@bug(
    "a-hit-ends-where-the-drafter-has-no-state", "E4", "diverge-at-block", "drafter", DRAFTS_DIFFER
)
def whole_hit(plant):
    """The last cached block is kept for a drafter that needs its last token recomputed."""
    plant.source(
        modules()["single"].FullAttentionManager,
        "find_longest_cache_hit",
        ("hit_length -= min(alignment_tokens, block_size)", "pass"),
    )


@bug(
    "drafts-of-an-older-step",
    "E8",
    "alternating",
    "acceptance",
    rf"{REQUEST}, step \d+, .*, seen \d; it verified the drafts \[.*\], but those made for it "
    r"were \[.*\]: they belong to another request or an older step",
)
def old_drafts(plant):
    """Every third time the new drafts are not stored: the old ones are verified again."""
    plant.runner.__dict__["_planted_steps"] = iter(range(10**6))
    plant.source(
        type(plant.runner),
        "sample_tokens",
        (
            "self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens",
            "if next(self._planted_steps) % 3:\n"
            "            self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens",
        ),
    )


@bug(
    "drafts-of-the-neighbour",
    "E8",
    "partial",
    "acceptance",
    rf"{REQUEST}, step \d+, .*, seen \d; it verified the drafts \[.*\], but those made for it ",
)
def neighbours_drafts(plant):
    """Drafts are stored in the slot of the next row."""
    plant.source(
        type(plant.runner),
        "sample_tokens",
        (
            "self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens",
            "self.req_states.draft_tokens[input_batch.idx_mapping.roll(1)] = draft_tokens",
        ),
    )


@bug("the-drafter-sees-another-hidden-state", "E", "partial", "drafter", DRAFTS_DIFFER)
def shifted_hidden(plant):
    """Hidden states are shifted by one row in verification steps; the outputs stay right."""
    propose = plant.runner.speculator.propose

    def shifted(batch, metadata, slots, hidden, aux, *args, **kwargs):
        moved = hidden.roll(1, 0) if batch.num_draft_tokens else hidden
        return propose(batch, metadata, slots, moved, aux, *args, **kwargs)

    plant.monkeypatch.setattr(plant.runner.speculator, "propose", shifted)


@bug("the-drafter-forgets-an-accepted-token", "E", "partial", "drafter", DRAFTS_DIFFER)
def forgets(plant):
    """The drafter's sequence is one token short after a partly accepted step."""
    propose = plant.runner.speculator.propose

    def longer(batch, metadata, slots, hidden, aux, sampled, rejected, *args, **kwargs):
        kept = (rejected + (sampled > 1).int()).clamp(max=3)
        return propose(batch, metadata, slots, hidden, aux, sampled, kept, *args, **kwargs)

    plant.monkeypatch.setattr(plant.runner.speculator, "propose", longer)


@bug("the-drafter-reads-a-rejected-slot", "E", "alternating", "drafter", DRAFTS_DIFFER)
def reads_ahead(plant):
    """Chained drafts attend one slot too far: to what a rejected draft left there."""
    plant.source(
        speculator_module(plant),
        "_prepare_decode_inputs_kernel",
        (
            "seq_len = tl.minimum(seq_len + 1, max_model_len)",
            "seq_len = tl.minimum(seq_len + 2, max_model_len)",
        ),
    )


@bug("chained-drafts-at-the-same-position", "E10", "alternating", "drafter", DRAFTS_DIFFER)
def same_position(plant):
    """After a partly accepted step the first chained draft stays at its parent's position."""
    plant.source(
        speculator_module(plant),
        "_prepare_decode_inputs_kernel",
        (
            "position = tl.minimum(position + 1, max_model_len - 1)",
            "position = tl.minimum(position + tl.where(num_rejected > 0, 1, 2), max_model_len - 1)",
        ),
    )


def speculator_module(plant):
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import speculator

    return speculator


# --- G: sampler and rows ---


@bug(
    "a-token-out-of-the-vocabulary",
    "G1",
    "alternating",
    "engine",
    r"IndexError.*after the schedule of engine step \d+, with request 0, request 1",
    ruins=True,
)
def out_of_vocabulary(plant):
    """A row without a finite logit gives the first id past the vocabulary."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    original = rejection_sampler._synthaccept_original
    calls = iter(range(10**6))

    def broken(*args, **kwargs):
        sampled, num_sampled = original(*args, **kwargs)
        if next(calls) == 2:
            last = (num_sampled.long() - 1).clamp(min=0)
            sampled.scatter_(1, last[:, None], 512)
        return sampled, num_sampled

    plant.monkeypatch.setattr(rejection_sampler, "_synthaccept_original", broken)


@bug(
    "rows-and-requests-are-misaligned",
    "G9",
    "partial",
    "outputs",
    rf"{REQUEST}: output token \d+ is \d+, the target alone says \d+; .* in engine step \d+, ",
    ruins=True,
)
def misaligned(plant):
    """The verdict on one request is booked on another."""
    sample = plant.runner.sample

    def swapped(hidden_states, batch, grammar_output):
        if batch.num_draft_tokens and batch.num_reqs > 1:
            batch.idx_mapping = batch.idx_mapping.flip(0)
        return sample(hidden_states, batch, grammar_output)

    plant.monkeypatch.setattr(plant.runner, "sample", swapped)


@bug(
    "a-rejected-draft-is-accepted",
    "G2",
    "partial",
    "outputs",
    rf"{REQUEST}: output token \d+ is \d+, the target alone says \d+; committed by step \d+ ",
)
def accepts_one_more(plant):
    """The verification accepts one draft more than the target would."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    original = rejection_sampler._synthaccept_original

    def lenient(logits, draft_logits, ids, bounds, *args, **kwargs):
        sampled, num_sampled = original(logits, draft_logits, ids, bounds, *args, **kwargs)
        for row in range(len(num_sampled)):
            start, end = int(bounds[row]), int(bounds[row + 1])
            n = int(num_sampled[row])
            if 1 < n < end - start:
                sampled[row, n] = sampled[row, n - 1]
                sampled[row, n - 1] = ids[start + n]
                num_sampled[row] += 1
        return sampled, num_sampled

    plant.monkeypatch.setattr(rejection_sampler, "_synthaccept_original", lenient)


# --- H: metrics ---


@bug(
    "an-acceptance-too-few-in-the-metrics",
    "H2",
    "full",
    "accounting",
    r"accepted tokens: the ledger counts \d+, the engine's scheduler statistics \d+ ",
)
def one_less_accepted(plant):
    """The bonus token is taken off twice."""
    plant.source(
        modules()["scheduler"].Scheduler,
        "make_spec_decoding_stats",
        ("num_accepted_tokens=num_accepted_tokens", "num_accepted_tokens=num_accepted_tokens - 1"),
    )


@bug(
    "accepts-that-are-no-prefix",
    "H3",
    "partial",
    "accounting",
    r"accepted tokens per position: the ledger counts \[.*\], the engine's scheduler ",
)
def no_prefix(plant):
    """The counts per position include drafts after the first rejected one."""
    plant.source(
        modules()["metrics"].SpecDecodingStats,
        "observe_draft",
        ("for i in range(num_accepted_tokens):", "for i in range(num_draft_tokens):"),
    )


# --- I: work ---


@bug(
    "one-target-pass-more",
    "I",
    "full",
    "scheduler",
    r"engine step \d+: 2 forward passes of the target, expected 1",
)
def two_passes(plant):
    """Every step runs the target twice."""
    model = plant.runner.model
    forward, inside = model.forward, []

    def twice(*args, **kwargs):
        if not inside:
            inside.append(True)
            model(*args, **kwargs)
            inside.clear()
        return forward(*args, **kwargs)

    plant.monkeypatch.setattr(model, "forward", twice)


@bug(
    "one-draft-pass-more",
    "I",
    "full",
    "scheduler",
    r"engine step \d+: 4 forward passes of the drafter, expected 3",
)
def longer_chain(plant):
    """The drafter makes one pass more than it has drafts to make."""
    speculator = plant.runner.speculator
    run_model = speculator._run_model

    def again(*args, **kwargs):
        if int(speculator.current_draft_step) == 1:
            run_model(*args, **kwargs)
        return run_model(*args, **kwargs)

    plant.monkeypatch.setattr(speculator, "_run_model", again)
