"""``cost="faithful"``: the engine's own verification runs, and ends as the plan says."""

import pytest

pytestmark = pytest.mark.acceptance_rate(0.5, seed=11, cost="faithful")

K, V = 3, 8192  # a whole block: vLLM subtracts -inf from -inf in a padded one


@pytest.fixture
def launches(monkeypatch):
    """How often each of vLLM's verification kernels was launched."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils as module

    counts = {}

    class Counted:
        def __init__(self, name):
            self.name, self.kernel = name, getattr(module, name)
            self.arg_names = self.kernel.arg_names

        def __getitem__(self, grid):
            counts[self.name] = counts.get(self.name, 0) + 1
            return self.kernel[grid]

    for name in (
        "_compute_local_logits_stats_kernel",
        "_rejection_kernel",
        "_resample_kernel",
        "_insert_resampled_kernel",
    ):
        monkeypatch.setattr(module, name, Counted(name))
    return counts


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decisions_are_those_of_a_lean_run(
    spec_engine, prompts, launches, assert_same_decisions, temperature
):
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=40, temperature=temperature, ignore_eos=True, seed=1)
    faithful = spec_engine.generate(prompts, sampling_params=params)
    assert set(launches.values()) == {launches["_rejection_kernel"]}
    assert launches["_rejection_kernel"] >= 10
    faithful.check("acceptance", "accounting", "scheduler", "kv_cache")
    launches.clear()
    spec_engine.set_acceptance(0.5, seed=11, cost="lean")
    lean = spec_engine.generate(prompts, sampling_params=params)
    assert not launches
    assert_same_decisions(faithful, lean, least=90)


def test_the_cost_cannot_change_in_a_run(spec_engine):
    from pytest_synthaccept.errors import AcceptanceError

    with spec_engine.run() as run:
        run.add([1, 2, 3], max_tokens=2)
        with pytest.raises(AcceptanceError) as caught:
            spec_engine.set_acceptance(0.5, cost="lean")
    assert str(caught.value) == (
        "set_acceptance: cost cannot change while a run is open; leave its with block first"
    )


def test_a_vllm_with_another_comparison_is_refused(spec_engine, monkeypatch):
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils as module

    from pytest_synthaccept.errors import EngineError

    names = module._rejection_kernel.arg_names

    class Renamed:
        def __init__(self):
            self.arg_names = [name.replace("sumexp", "lse") for name in names]

        def __getitem__(self, grid):
            return lambda *args, **kwargs: None

    monkeypatch.setattr(module, "_rejection_kernel", Renamed())
    with pytest.raises(EngineError) as caught:
        verdicts([[1, 2, 3]], [3], temperature=0.0)
    assert str(caught.value) == (
        "cost='faithful': this vLLM's _rejection_kernel has no draft_local_sumexp_ptr, "
        "draft_rejected_logsumexp_ptr, target_local_sumexp_ptr, "
        "target_rejected_logsumexp_ptr; use cost='lean'"
    )


def verdicts(drafts, script, *, temperature, draft_logits=False, prefill_len=0):
    """vLLM's ``rejection_sample`` under a script, each row of logits sure of token 10 + its index.

    Returns sampled [num_reqs, K + 1], num_sampled [num_reqs] and the drained ledger.
    """
    import torch

    from pytest_synthaccept.engine import verdict_seam
    from pytest_synthaccept.sampler import SamplerState, note_tokens, override

    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = [len(row) + 1 for row in drafts]
    n, num_logits = len(drafts), sum(lengths)
    cu = torch.tensor([sum(lengths[:i]) for i in range(n + 1)], dtype=torch.int32, device=device)
    logits = torch.zeros(num_logits, V, device=device)
    logits[torch.arange(num_logits), torch.arange(10, 10 + num_logits)] = 60.0
    rows = [i for i, length in enumerate(lengths) for _ in range(length)]
    local = [i for length in lengths for i in range(length)]

    def ints(values, dtype=torch.int32):
        return torch.tensor(values, dtype=dtype, device=device)

    state = SamplerState(
        num_slots=n,
        num_speculative_tokens=K,
        prefill_len=ints([prefill_len] * n),
        device=device,
    )
    state.begin(Script(script))
    for slot in range(n):
        state.assign(slot, state.open_lane(slot, 0))
    ids = ints([t for row in drafts for t in (0, *row)], torch.int64)
    pos = ints([8 + i for i in local], torch.int64)
    slots, temperatures = ints(range(n)), torch.full((n,), temperature, device=device)
    of_drafts = torch.zeros(n, K, V, device=device) if draft_logits else None
    seeds = ints([5] * n, torch.int64)
    ledger = state.ledger_rows(n)
    args = (logits, of_drafts, ids, cu, pos, slots, ints(rows), ints(local), temperatures, seeds, K)
    batch = (ids, cu, pos, slots, temperatures)
    sampled, num_sampled = verdict_seam.overridden(
        lambda verdict: override(state, ledger, verdict, *batch), *args
    )
    note_tokens(state, ledger, sampled, num_sampled)
    return sampled.tolist(), num_sampled.tolist(), state.drain()


class Script:
    thresholds, sampling, seed = (0,) * K, "exact", 0

    def __init__(self, counts):
        self.script = tuple((key, (count,)) for key, count in enumerate(counts))


@pytest.mark.parametrize("draft_logits", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_row_of_the_first_rejected_draft_decides(spec_engine, temperature, draft_logits):
    """Whatever vLLM's own comparison says: at temperature 0 it accepts one draft, the 18."""
    if draft_logits and temperature and spec_engine.info["device"] == "cpu":
        pytest.skip("Triton's interpreter has no log1p, which vLLM's resampling calls")
    drafts = [[1, 2, 3], [4, 5, 6], [18, 30, 20], [7], [8, 9]]
    accept = [0, 2, 1, 1, 3]
    sampled, num_sampled, ledger = verdicts(
        drafts, accept, temperature=temperature, draft_logits=draft_logits
    )
    realised = [min(a, len(d)) for a, d in zip(accept, drafts, strict=True)]
    assert num_sampled == [a + 1 for a in realised]
    start = 0
    for row, draft, accepted, logged in zip(sampled, drafts, realised, ledger, strict=True):
        token = 10 + start + accepted
        assert row[: accepted + 1] == [*draft[:accepted], token]
        assert logged[:7] == [logged[0], 0, 9, len(draft), len(draft), accept[logged[0]], accepted]
        assert logged[9:] == [token, *draft, *[-1] * (K - len(draft))]
        start += len(draft) + 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_placeholders_are_not_accepted(spec_engine, temperature):
    sampled, num_sampled, ledger = verdicts(
        [[-1, -1, -1], [1, -1, -1], []], [3, 3, 3], temperature=temperature
    )
    assert num_sampled == [1, 2, 1]
    assert [row[:n] for row, n in zip(sampled, num_sampled, strict=True)] == [[10], [1, 15], [18]]
    assert [row[4] for row in ledger] == [0, 1, 0]


def test_rows_before_the_end_of_the_prefill_accept_nothing(spec_engine):
    _, num_sampled, ledger = verdicts([[0, 0, 0]], [3], temperature=0.0, prefill_len=9)
    assert num_sampled == [1]
    assert [row[4:7] for row in ledger] == [[0, 0, 0]]
