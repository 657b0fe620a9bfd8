"""A plan: how many drafts of which verification step are accepted; and the checks of its values.

Every check returns the value as a plain float, int, str or tuple, or raises AcceptanceError
with one line: where, name and value, what is allowed, what to do.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import NoReturn

from pytest_synthaccept.acceptance.laws import (
    LAWS,
    conditional,
    first_position_certain_above,
    length_from_rate,
    rate_from_length,
)
from pytest_synthaccept.acceptance.sequence import MASK32, U32
from pytest_synthaccept.errors import AcceptanceError

RATE_HINT = "rate is accepted/drafted (50 % is 0.5); for tokens per verification step give length="
LENGTH_HINT = (
    "length is tokens per verification step with the bonus; for accepted/drafted give rate="
)
SCRIPT_HINT = (
    "a script is accepted counts per verification step, repeated; give e.g. script=[3, 0, 2], "
    "or {request key: [3, 0, 2]}"
)
RATES_HINT = "rates are unconditional, P(first i drafts accepted); give e.g. rates=[0.9, 0.5, 0.2]"


# (request key, accepted counts of its steps, repeated); ANY_REQUEST stands for every key.
Script = tuple[tuple[int, tuple[int, ...]], ...]
ANY_REQUEST = -1


class SynthacceptWarning(UserWarning):
    """A plan that is valid but tests less than it seems to."""


@dataclass(frozen=True)
class AcceptancePlan:
    """The accepted count of every (request key, verification step).

    ``rates``: unconditional rates per position, 0..1, non-increasing, K long. ``sampling``:
    "exact" (counts hug the rates) or "random" (independent draws). ``seed``: 0..2**32-1.
    ``requested``: how the plan was asked for, for reports. ``script``: accepted counts per
    request key in place of all that; ``rates`` are then the script's own, for reading.
    ``where`` starts the message of the AcceptanceError that a wrong value raises.
    """

    rates: tuple[float, ...]
    sampling: str = "exact"
    seed: int = 0
    requested: str = ""
    script: Script = ()
    _: KW_ONLY
    where: InitVar[str] = "AcceptancePlan"

    def __post_init__(self, where: str) -> None:
        object.__setattr__(self, "rates", check_rates(self.rates, where))
        object.__setattr__(self, "sampling", check_choice("sampling", self.sampling, U32, where))
        object.__setattr__(self, "seed", check_u32("seed", self.seed, where))
        script = _check_pairs(self.script, where, len(self.rates)) if self.script else ()
        object.__setattr__(self, "script", script)

    @classmethod
    def from_rate(
        cls,
        rate: float,
        *,
        num_speculative_tokens: int,
        law: str = "geometric",
        sampling: str = "exact",
        seed: int = 0,
        where: str = "AcceptancePlan.from_rate",
    ) -> AcceptancePlan:
        """Plan a mean accepted/drafted ``rate`` (0..1), spread over the positions by ``law``.

        Warns (SynthacceptWarning, once per rate and K) where the geometric law makes draft 1
        certain.
        """
        rate, k = check_rate(rate, where), check_k(num_speculative_tokens, where)
        return cls._by_law(rate, k, law, f"rate={rate!r}", sampling, seed, where)

    @classmethod
    def from_length(
        cls,
        length: float,
        *,
        num_speculative_tokens: int,
        law: str = "geometric",
        sampling: str = "exact",
        seed: int = 0,
        where: str = "AcceptancePlan.from_length",
    ) -> AcceptancePlan:
        """Plan ``length`` tokens per verification step with the bonus (1..K+1); see from_rate."""
        k = check_k(num_speculative_tokens, where)
        length = check_length(length, where, k)
        rate = rate_from_length(length, k)
        return cls._by_law(rate, k, law, f"length={length!r}", sampling, seed, where)

    @classmethod
    def from_rates(
        cls,
        rates: Sequence[float],
        *,
        num_speculative_tokens: int | None = None,
        sampling: str = "exact",
        seed: int = 0,
        where: str = "AcceptancePlan.from_rates",
    ) -> AcceptancePlan:
        """Plan these unconditional rates; K is their number, and must equal a K given here."""
        rates = check_rates(rates, where)
        if num_speculative_tokens is not None:
            k = check_k(num_speculative_tokens, where)
            if len(rates) != k:
                fail(where, f"rates={list(rates)} has {len(rates)} entries, K={k}; give {k} rates")
        return cls(rates, sampling, seed, f"rates={list(rates)}", where=where)

    @classmethod
    def from_script(
        cls,
        script: Sequence[int] | Mapping[int, Sequence[int]],
        *,
        num_speculative_tokens: int,
        seed: int = 0,
        where: str = "AcceptancePlan.from_script",
    ) -> AcceptancePlan:
        """Plan the accepted counts (0..K) of a request's verification steps, repeated for ever.

        A mapping gives each request key its own; a request without one accepts nothing. The
        ``seed`` keys the target's draws above temperature 0 only.
        """
        k = check_k(num_speculative_tokens, where)
        checked = check_script(script, where, k)
        by_key = {key: list(counts) for key, counts in checked}
        requested = f"script={show(by_key.get(ANY_REQUEST, by_key))}"
        rates = tuple(
            math.fsum(sum(c > i for c in counts) / len(counts) for counts in by_key.values())
            / len(by_key)
            for i in range(k)
        )
        return cls(rates, "exact", seed, requested, checked, where=where)

    @classmethod
    def _by_law(
        cls, rate: float, k: int, law: str, requested: str, sampling: str, seed: int, where: str
    ) -> AcceptancePlan:
        law = check_choice("law", law, LAWS, where)
        plan = cls(LAWS[law](rate, k), sampling, seed, f"{requested} ({law})", where=where)
        if law == "geometric" and plan.rates[0] == 1 and rate < 1:
            _warn_certain(rate, k, where)
        return plan

    @property
    def num_speculative_tokens(self) -> int:
        """K, the draft tokens of a full verification step."""
        return len(self.rates)

    @property
    def rate(self) -> float:
        """Mean accepted/drafted, 0..1."""
        return math.fsum(self.rates) / len(self.rates)

    @property
    def length(self) -> float:
        """Mean tokens per verification step with the bonus, 1..K+1."""
        return length_from_rate(self.rate, len(self.rates))

    @property
    def conditional_rates(self) -> tuple[float, ...]:
        """Per position, the rate of draft i where the drafts before it were accepted."""
        return conditional(self.rates)

    @cached_property
    def thresholds(self) -> tuple[int, ...]:
        """Per position round(p * 2**32), 0..2**32: draft i is accepted where u32 is below."""
        return tuple(round(p * 2**32) for p in self.rates)

    def decide(self, request: int, step: int) -> int:
        """The accepted count, 0..K, of a request key's verification step (both 0..2**32-1).

        A row with fewer drafts than the count accepts all that it has.
        """
        key = check_u32("request", request, "AcceptancePlan.decide")
        step = check_u32("step", step, "AcceptancePlan.decide")
        if self.script:
            counts = self._counts(key)
            return counts[step % len(counts)] if counts else 0
        u32 = U32[self.sampling](self.seed, key, step)
        return sum(u32 < threshold for threshold in self.thresholds)

    def covers(self, request: int) -> bool:
        """False for a request key that a script of several requests leaves out."""
        return not self.script or bool(self._counts(request))

    def _counts(self, key: int) -> tuple[int, ...]:
        return next((counts for of, counts in self.script if of in (ANY_REQUEST, key)), ())

    def describe(self) -> str:
        """One line: rate, length and the rates per position, which are easily mixed up."""
        if self.script:
            what = self.requested or "script"
            return f"{what}: rate {self.rate:.4f}, length {self.length:.4f}"
        positions = " ".join(f"{p:.4f}" for p in self.rates)
        asked = f"; asked for: {self.requested}" if self.requested else ""
        return (
            f"rate {self.rate:.4f}, length {self.length:.4f}, per position {positions}"
            f" ({self.sampling}, seed {self.seed}){asked}"
        )


_warned: set[tuple[float, int]] = set()


def _warn_certain(rate: float, k: int, where: str) -> None:
    if (rate, k) in _warned:
        return
    warnings.warn(
        f"{where}: the geometric law at rate={rate:.9g} and K={k} never rejects draft 1 (true"
        f" from rate {first_position_certain_above('geometric', k):.6f} on), so the zero-accept"
        ' path is not run; give law="constant", or rates=[...] with a first rate below 1',
        SynthacceptWarning,
        stacklevel=4,  # the caller of from_rate or from_length
    )
    _warned.add((rate, k))


def fail(where: str, text: str) -> NoReturn:
    """Raise an AcceptanceError: "where: text"."""
    raise AcceptanceError(f"{where}: {text}")


def show(value: object) -> str:
    """The value's repr for a message: on one line, cut at 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_rate(value: object, where: str) -> float:
    """Mean accepted/drafted: a real number in 0..1."""
    rate = _number(value)
    if not 0 <= rate <= 1:
        fail(where, f"rate={show(value)} is not a number in 0..1; {RATE_HINT}")
    return rate


def check_length(value: object, where: str, k: int | None = None) -> float:
    """Tokens per verification step: a real number in 1..K+1; finite while K is unknown."""
    length = _number(value)
    if not 1 <= length <= (sys.float_info.max if k is None else k + 1):
        allowed = "of 1 or more" if k is None else f"in 1..{k + 1} (K={k})"
        fail(where, f"length={show(value)} is not a number {allowed}; {LENGTH_HINT}")
    return length


def check_rates(value: object, where: str) -> tuple[float, ...]:
    """Unconditional rates per position: real numbers in 0..1, at least one, non-increasing."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        fail(where, f"rates={show(value)} is not a list of one rate or more; {RATES_HINT}")
    rates = tuple(map(_number, value))
    for i, rate in enumerate(rates):
        if not 0 <= rate <= 1:
            fail(where, f"rates[{i}]={show(value[i])} is not a number in 0..1; {RATES_HINT}")
        if i and rate > rates[i - 1]:
            rise = f"rates[{i}]={rate!r} is above rates[{i - 1}]={rates[i - 1]!r}"
            fail(where, f"{rise}, rates must not rise; {RATES_HINT}")
    return rates


def check_script(value: object, where: str, k: int | None = None) -> Script:
    """Accepted counts, or a mapping of request keys to them; 0..K, 0 or more while K is unknown."""
    if not isinstance(value, Mapping):
        return ((ANY_REQUEST, _check_counts("script", value, where, k)),)
    if not value:
        fail(where, f"script={{}} has no request; {SCRIPT_HINT}")
    for key in value:
        if not 0 <= _int(key) <= MASK32:
            fail(where, f"script has the key {show(key)}, not an int in 0..{MASK32}; {SCRIPT_HINT}")
    by_key = ((_int(key), counts) for key, counts in value.items())
    pairs = ((key, _check_counts(f"script[{key}]", counts, where, k)) for key, counts in by_key)
    return tuple(sorted(pairs))


def _check_pairs(value: object, where: str, k: int) -> Script:
    """The pairs of a plan's ``script`` (lists, as JSON has them, too)."""
    try:
        by_key = dict(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        what = f"script={show(value)} is not pairs (request key, counts)"
        fail(where, f"{what}; give the script to AcceptancePlan.from_script")
    return check_script(by_key[ANY_REQUEST] if [*by_key] == [ANY_REQUEST] else by_key, where, k)


def _check_counts(name: str, value: object, where: str, k: int | None) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        fail(where, f"{name}={show(value)} is not a list of one count or more; {SCRIPT_HINT}")
    for i, count in enumerate(value):
        if _int(count) < 0:
            fail(where, f"{name}[{i}]={show(count)} is not an int of 0 or more; {SCRIPT_HINT}")
        if k is not None and _int(count) > k:
            fail(where, f"{name}[{i}]={_int(count)} is above K={k}; {SCRIPT_HINT}")
    return tuple(map(_int, value))


def check_choice(name: str, value: object, allowed: Iterable[str], where: str) -> str:
    """One of the ``allowed`` words."""
    words = tuple(allowed)
    if not isinstance(value, str) or value not in words:
        fail(where, f"{name}={show(value)} is unknown; give one of {', '.join(words)}")
    return value


def check_u32(name: str, value: object, where: str) -> int:
    """An int in 0..2**32-1."""
    number = _int(value)
    if not 0 <= number <= MASK32:
        fail(where, f"{name}={show(value)} is not an int in 0..{MASK32}; give e.g. {name}=0")
    return number


def check_k(value: object, where: str) -> int:
    """K: an int of 1 or more."""
    k = _int(value)
    if k < 1:
        what = f"num_speculative_tokens={show(value)} is not an int of 1 or more"
        fail(where, f"{what}; give the engine's draft tokens per step")
    return k


def _number(value: object) -> float:
    """The value as a float; NaN, which is in no range, for what is not a real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a huge int is in no range either
        return math.nan


def _int(value: object) -> int:
    """The value as an int; -1, which is in no range here, for what is not an integer."""
    return int(value) if not isinstance(value, bool) and isinstance(value, Integral) else -1
