"""Errors that are the user's to mend, one line each: value, place, what is allowed, what to do."""

from __future__ import annotations


class SynthacceptError(Exception):
    """Base of everything this package raises for a user's mistake or an unusable environment.

    The pytest side prints the message alone, without a traceback.
    """


class AcceptanceError(SynthacceptError, ValueError):
    """A wrong acceptance plan: the marker, ``set_acceptance`` or the option."""


class EngineError(SynthacceptError, RuntimeError):
    """The engine cannot be started, or would not run the forced path."""


class BenchmarkError(SynthacceptError, ValueError):
    """A wrong use of ``spec_benchmark``, or a comparison of what cannot be compared."""


INCONCLUSIVE = "inconclusive"  # the outcome's name, in a run's ``checked`` and in reports


class Inconclusive(Exception):  # noqa: N818 - it is an outcome, not an error
    """A check can say neither that a run is right nor that it is wrong, and why.

    The pytest side counts such a test apart: it is not passed.
    """
