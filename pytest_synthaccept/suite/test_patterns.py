"""Every acceptance pattern on the engine at hand; the automatic checks judge the runs."""

from pytest_synthaccept.suite import spec_patterns
from pytest_synthaccept.suite.parametrize import BoundPattern


@spec_patterns()
def test_pattern(spec_pattern: BoundPattern) -> None:
    """The pattern comes about, and no check finds anything in it."""
    assert spec_pattern.play()
    print("\n".join(spec_pattern.occurred))
