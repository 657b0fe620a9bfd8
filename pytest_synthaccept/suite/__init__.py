"""The ready suite: ``pytest --pyargs pytest_synthaccept.suite`` on your own engine and drafter.

``spec_patterns`` gives the same patterns to a test of your own.
"""

from pytest_synthaccept.suite.parametrize import spec_patterns
from pytest_synthaccept.suite.patterns import PATTERNS, Pattern, PatternError

__all__ = ["PATTERNS", "Pattern", "PatternError", "spec_patterns"]
