"""How vLLM comes to its verdict on a batch's drafts: what is asked instead, and in its midst."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_synthaccept.errors import EngineError

if TYPE_CHECKING:
    from pytest_synthaccept.engine.seam import Hooks


def rejection_sample(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """vLLM's own verdict."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler as module

    own = getattr(module, "_synthaccept_original", module.rejection_sample)
    result: tuple[Any, Any] = own(*args, **kwargs)
    return result


def overridden(override: Callable[[Any], None], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """vLLM's own verdict, but for what ``override`` changes in the midst of it.

    It is given a ``sampler.Verdict`` after vLLM's comparison of drafts and target, before the
    resampling of what was rejected.
    """
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils as module

    comparison = module._rejection_kernel
    module._rejection_kernel = _Followed(comparison, override)
    try:
        return rejection_sample(*args, **kwargs)
    finally:
        module._rejection_kernel = comparison


# What the arguments of vLLM's comparison kernel are to `sampler.Verdict`.
_VERDICT = {
    "sampled": "sampled_ptr",
    "accepted": "rejected_steps_ptr",
    "target_max": "target_local_max_ptr",
    "target_argmax": "target_local_argmax_ptr",
    "target_sumexp": "target_local_sumexp_ptr",
    "draft_max": "draft_local_max_ptr",
    "draft_sumexp": "draft_local_sumexp_ptr",
    "target_logsumexp": "target_rejected_logsumexp_ptr",
    "draft_logsumexp": "draft_rejected_logsumexp_ptr",
    "has_draft_logits": "HAS_DRAFT_LOGITS",
}


class _Followed:
    """A Triton kernel whose every launch is followed by a call with its arguments."""

    def __init__(self, kernel: Any, then: Callable[[Any], None]) -> None:
        self._kernel = kernel
        self._then = then

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        from pytest_synthaccept.sampler import Verdict

        def launch(*args: Any, **kwargs: Any) -> None:
            self._kernel[grid](*args, **kwargs)
            given = dict(zip(self._kernel.arg_names, args, strict=False)) | kwargs
            missing = sorted(set(_VERDICT.values()) - set(given))
            if missing:
                raise EngineError(
                    f"cost='faithful': this vLLM's _rejection_kernel has no {', '.join(missing)}; "
                    "use cost='lean'"
                )
            self._then(Verdict(**{ours: given[theirs] for ours, theirs in _VERDICT.items()}))

        return launch


def nothing_accepted(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of ``rejection_sample`` with placeholders for drafts, which it rejects.

    The token in place of the first of them is then the target's own choice among all.
    """
    logits, draft_logits, draft_sampled, *rest = args
    return (logits, draft_logits, draft_sampled.new_full(draft_sampled.shape, -1), *rest)


def wrap(sampler: Any, hooks: Hooks) -> None:
    """Let ``hooks.verify`` answer ``rejection_sample`` while this rejection sampler is at work.

    The function is a module global, shared by every engine of the process; the sampler object
    is one runner's own. So the sampler gets a subclass of its class that says, for the time
    of its call, whose hooks answer.
    """
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler as module

    if not hasattr(module, "_synthaccept_original"):
        module._synthaccept_original = module.rejection_sample
        module.rejection_sample = _dispatch
    base = type(sampler)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _answering.append(hooks.verify)
        try:
            return base.__call__(self, *args, **kwargs)
        finally:
            _answering.pop()

    def call_if_active(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (call if hooks.active else base.__call__)(self, *args, **kwargs)

    sampler.__class__ = type(f"Synthaccept{base.__name__}", (base,), {"__call__": call_if_active})


_answering: list[Callable[..., Any]] = []


def _dispatch(*args: Any, **kwargs: Any) -> Any:
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler as module

    return (_answering[-1] if _answering else module._synthaccept_original)(*args, **kwargs)
