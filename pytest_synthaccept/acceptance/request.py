"""What a test asks for: the arguments of the marker, of set_acceptance and of the option.

They are checked in two stages: a request holds what is known at collection; its ``plan`` needs
K, which only the engine's configuration tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, NoReturn

from pytest_synthaccept.acceptance.laws import LAWS
from pytest_synthaccept.acceptance.plan import (
    AcceptancePlan,
    check_choice,
    check_length,
    check_rate,
    check_rates,
    check_script,
    check_u32,
    fail,
    show,
)
from pytest_synthaccept.acceptance.sequence import U32

SOURCES = ("rate", "length", "rates", "script", "trace")  # exactly one says what to accept
AVAILABLE_SOURCES = ("rate", "length", "rates", "script")
COSTS = ("lean", "faithful")


@dataclass(frozen=True)
class AcceptanceRequest:
    """The arguments of ``acceptance_rate``, checked; numbers are floats and ``rates`` a tuple.

    Exactly one of ``rate`` (mean accepted/drafted, 0..1), ``length`` (tokens per verification
    step with the bonus, 1..K+1), ``rates`` (unconditional per position, non-increasing, K long)
    and ``script`` (accepted counts per step, or request key -> counts) is not None. ``law``
    spreads a rate or a length over the positions. Raises AcceptanceError.
    """

    rate: float | None = None
    _: KW_ONLY
    length: float | None = None
    rates: tuple[float, ...] | None = None
    script: Sequence[int] | Mapping[int, Sequence[int]] | None = None
    trace: object = None
    law: str = "geometric"
    sampling: str = "exact"
    lossless: bool = False
    cost: str = "lean"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in _checked(vars(self), "AcceptanceRequest").items():
            object.__setattr__(self, name, value)

    @classmethod
    def parse(
        cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, where: str
    ) -> AcceptanceRequest:
        """The request of a call's arguments: all checks that need no K.

        ``where`` starts the message of the AcceptanceError that a wrong argument raises.
        """
        allowed = [field.name for field in fields(cls)]
        for name in kwargs:
            if name not in allowed:
                fail(where, f"unknown keyword {name!r}; give one of {', '.join(allowed)}")
        if len(args) > 1:
            what = f"got {len(args)} positional arguments {show(args)}"
            fail(where, f"{what}; give one, the rate, and the others by name")
        if args and "rate" in kwargs:
            what = f"got the rate twice, {show(args[0])} and rate={show(kwargs['rate'])}"
            fail(where, f"{what}; give it once")
        given = {**kwargs, "rate": args[0]} if args else kwargs
        request = cls(**_checked(given, where))
        for source in ("rates", "script"):
            if "law" in kwargs and getattr(request, source) is not None:
                what = (
                    f"got law={request.law!r} with {source}, but a law is for rate or length only"
                )
                fail(where, f"{what}; drop law= or {source}=")
        if "sampling" in kwargs and request.script is not None:
            what = f"got sampling={request.sampling!r} with script, which leaves nothing to sample"
            fail(where, f"{what}; drop sampling=")
        return request

    def plan(self, num_speculative_tokens: int, *, where: str) -> AcceptancePlan:
        """The plan for K draft tokens: the checks that need K (lengths); AcceptanceError."""
        shared: dict[str, Any] = {
            "num_speculative_tokens": num_speculative_tokens,
            "seed": self.seed,
            "where": where,
        }
        if self.script is not None:
            return AcceptancePlan.from_script(self.script, **shared)
        shared["sampling"] = self.sampling
        if self.rates is not None:
            return AcceptancePlan.from_rates(self.rates, **shared)
        if self.length is not None:
            return AcceptancePlan.from_length(self.length, law=self.law, **shared)
        assert self.rate is not None
        return AcceptancePlan.from_rate(self.rate, law=self.law, **shared)


def _no_trace_yet(value: object, where: str) -> NoReturn:
    sources = ", ".join(AVAILABLE_SOURCES)
    fail(where, f"trace={show(value)} is not available yet; available: {sources}")


def _check_lossless(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        fail(where, f"lossless={show(value)} is not a bool; give True or False")
    return value


def _check_script(value: object, where: str) -> object:
    """As given, but of tuples: a marker's arguments may be changed after us."""
    script = check_script(value, where)
    return dict(script) if isinstance(value, Mapping) else script[0][1]


_CHECKS: dict[str, Callable[[object, str], object]] = {
    "rate": check_rate,
    "length": check_length,
    "rates": check_rates,
    "script": _check_script,
    "trace": _no_trace_yet,
    "law": lambda value, where: check_choice("law", value, LAWS, where),
    "sampling": lambda value, where: check_choice("sampling", value, U32, where),
    "lossless": _check_lossless,
    "cost": lambda value, where: check_choice("cost", value, COSTS, where),
    "seed": lambda value, where: check_u32("seed", value, where),
}


def _checked(given: Mapping[str, object], where: str) -> dict[str, Any]:
    """The given arguments, checked and normalised; without the sources that are None."""
    sources = [name for name in SOURCES if given.get(name) is not None]
    if len(sources) != 1:
        what = " and ".join(f"{name}={show(given[name])}" for name in sources) or "nothing"
        fail(where, f"got {what}; give exactly one of {', '.join(AVAILABLE_SOURCES)}")
    names = [n for n in _CHECKS if n in given and (n in sources or n not in SOURCES)]
    return {name: _CHECKS[name](given[name], where) for name in names}
