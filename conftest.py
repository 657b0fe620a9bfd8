"""What the tests of this repository need from pytest itself."""

pytest_plugins = "pytester"
