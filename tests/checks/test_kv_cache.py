"""The KV cache check, rule by rule: each catches the one thing that is wrong."""

from dataclasses import replace

import pytest


def fails(run, message):
    with pytest.raises(AssertionError) as caught:
        run.check("kv_cache")
    assert str(caught.value) == message


def table(run, n, index):
    return run.core[n].requests[index].blocks[0]


def test_a_correct_run_passes(run):
    run.check("kv_cache")
    assert run.checked == {"kv_cache": "passed"}


def test_another_process(run):
    run.core = []
    run.check("kv_cache")
    assert run.checked["kv_cache"] == (
        "skipped: the engine core is another process, its block pool was not seen"
    )


def test_a_block_belongs_to_nobody(run, core_edit):
    last = len(run.core) - 1
    core_edit(run, last, None, free_blocks=38)
    fails(
        run,
        f"kv_cache: update of engine step {run.core[last].step}: 2 blocks belong to nobody: "
        "38 free + 0 held by no request, the pool has 40; just finished: request 0",
    )


def test_a_block_in_use_is_free(run, core_edit):
    core_edit(run, 0, None, free_blocks=run.core[0].free_blocks + 1)
    fails(
        run,
        "kv_cache: schedule of engine step 0: blocks in use are free: 37 free + 4 held by "
        "request 0, request 1, the pool has 40",
    )


def test_two_requests_in_one_block(run, core_edit):
    mine, other = table(run, 0, 0), table(run, 0, 1)
    core_edit(run, 0, 1, blocks=((other[0], mine[1]),))
    core_edit(run, 0, None, free_blocks=37)
    fails(
        run,
        f"kv_cache: request 0, schedule of engine step 0: block {mine[1]} (number 1) is also in "
        "the table of request 1, and is no cached prefix",
    )


def test_a_cached_prefix_may_be_shared(run, core_edit):
    mine, other = table(run, 0, 0), table(run, 0, 1)
    run.core = run.core[:1]
    core_edit(run, 0, 0, refs=((2, 1),))
    core_edit(run, 0, 1, blocks=((mine[0], other[1]),), refs=((2, 1),))
    core_edit(run, 0, None, free_blocks=37)
    run.check("kv_cache")


def test_a_reference_too_many(run, core_edit):
    core_edit(run, 1, 1, refs=((1, 2),))
    block = table(run, 1, 1)[1]
    fails(
        run,
        f"kv_cache: request 1, update of engine step 0: block {block} (number 1) has a reference "
        "count of 2, 1 requests hold it",
    )


@pytest.mark.parametrize(("n", "written"), [(0, 5), (1, 5)])
def test_a_hash_ahead_of_the_tokens(run, core_edit, n, written):
    """When the outcome of a step is in, its last token still has no KV entry."""
    core_edit(run, n, 0, hashed=(2,))
    committed = run.core[n].requests[0].committed
    fails(
        run,
        f"kv_cache: request 0, {run.core[n].kind} of engine step 0: the prefix cache may hand "
        f"out 2 blocks of it, 8 tokens; {written} of its {committed} tokens have been written",
    )


def test_the_last_token_of_a_finished_request_is_not_published(run, core_edit):
    last = len(run.core) - 1
    size = run.core[last].requests[0].committed // 4 + 1
    core_edit(run, last, 0, hashed=(size,), committed=4 * size, computed=4 * size)
    fails(
        run,
        f"kv_cache: request 0, update of engine step {run.core[last].step}: the prefix cache may "
        f"hand out {size} blocks of it, {4 * size} tokens; {4 * size - 1} of its {4 * size} tokens "
        "have been written",
    )


def test_a_block_too_many_and_too_few(run, core_edit):
    blocks = table(run, 0, 1)
    core_edit(run, 0, 1, blocks=((*blocks, 30),), refs=((1, 1, 1),))
    core_edit(run, 0, None, free_blocks=35)
    fails(
        run,
        "kv_cache: request 1, schedule of engine step 0: 3 blocks of 4 tokens, 5 computed + "
        "3 lookahead tokens need 2: more than it may hold",
    )
    core_edit(run, 0, 1, blocks=(blocks[:1],), refs=((1,),))
    core_edit(run, 0, None, free_blocks=37)
    fails(
        run,
        "kv_cache: request 1, schedule of engine step 0: 1 blocks of 4 tokens, 5 computed + "
        "3 lookahead tokens need 2: drafts have no slot of their own",
    )


def test_a_table_loses_a_block(run, core_edit):
    was = table(run, 2, 0)
    for n in range(3, len(run.core)):
        now = (30, *table(run, n, 0)[1:])
        core_edit(run, n, 0, blocks=(now,))
    fails(
        run,
        f"kv_cache: request 0, update of engine step 1: its block table was {list(was)} and is "
        f"now {[30, *was[1:]]}: a block that it still reads was taken away or replaced",
    )


def test_blocks_not_given_back(run):
    run.kv_cache.pool_after = 38
    fails(run, "kv_cache: 2 blocks were not given back: 40 free before, 38 after")


def test_requests_from_outside_may_hold_blocks(run):
    run.kv_cache.pool_after = 38
    event = run.core[0]
    outside = replace(event.requests[0], request=0, index=-1, blocks=((),), refs=((),), hashed=(0,))
    run.core[0] = replace(event, requests=(*event.requests, outside))
    run.check("kv_cache")
