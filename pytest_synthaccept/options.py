"""The options: one table drives the command line, the ini keys, reading and the header.

Every option but the doctor's is also an ini key of the same name with underscores; the command
line wins. All values are checked before anything is collected.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_synthaccept.bench.expression import Condition
    from pytest_synthaccept.engine.config import Drafter

DEVICES = ("auto", "cpu", "cuda")
METHOD = "eagle"
UPDATES = ("new", "all")
GATE_FIELDS = ("baseline", "fail", "update")


def _rates(text: str) -> tuple[float, ...]:
    rates = tuple(_number(entry.strip()) for entry in text.split(","))
    for rate in rates:
        # A chained comparison, so that NaN is refused too.
        if not 0 <= rate <= 1:
            raise ValueError("has an entry outside 0..1; a rate is accepted/drafted, 0.5 for 50 %")
    if len(set(rates)) < len(rates):
        raise ValueError("has an entry twice; give each rate once")
    return rates


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        hint = "give one rate 0..1 or several, separated by commas: 0.3,0.7"
        raise ValueError(f"is not a list of rates; {hint}") from None


def _device(text: str) -> str:
    if text not in DEVICES:
        raise ValueError(f"is not a device; allowed: {', '.join(DEVICES)}")
    return text


def _model(text: str) -> str:
    from pytest_synthaccept.engine.config import require_path
    from pytest_synthaccept.errors import EngineError

    if not text.strip():
        raise ValueError("is empty; give a model folder or a hub name")
    try:
        require_path("model", text)
    except EngineError:
        raise ValueError("has no config.json; give a model folder or a hub name") from None
    return text


def _drafter(text: str) -> tuple[str, str | None]:
    method, colon, model = text.partition(":")
    if not method.replace("-", "_").isidentifier():
        raise ValueError("is not METHOD[:MODEL]; for example eagle, or eagle:/path/to/head")
    return method, _model(model) if colon else None


def _tokens(text: str) -> int:
    # A loose reading of digits would let "1_0" and " 3" through.
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError("is not a number of draft tokens; give an integer, 1 or more")
    return int(text)


def _engine_args(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError("""is not a JSON object; give e.g. '{"max_model_len": 512}'""")
    return value


def _seeds(text: str) -> tuple[int, ...]:
    seeds: list[int] = []
    for entry in text.split(","):
        first, dash, last = entry.strip().partition("-")
        if not all(part.isascii() and part.isdigit() for part in (first, last or first)):
            raise ValueError("is not a list of seeds; give integers, or ranges as in 0-19")
        seeds += range(int(first), int(last if dash else first) + 1)
    if len(set(seeds)) < len(seeds) or not seeds:
        raise ValueError("has a seed twice, or none; give each seed once")
    return tuple(seeds)


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError("is neither on nor off")
    return text == "on"


def _conditions(text: str) -> Any:
    from pytest_synthaccept.bench.expression import parse

    return parse(text)


def _update(text: str) -> str:
    if text not in UPDATES:
        raise ValueError(f"is no way to update a baseline; allowed: {', '.join(UPDATES)}")
    return text


def _path(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; give a file")
    return text


def _checks(text: str) -> tuple[str, ...] | None:
    """The names chosen; None for all that apply."""
    if text in ("all", "none"):
        return None if text == "all" else ()
    from pytest_synthaccept.checks import CHECKS

    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in CHECKS:
            allowed = f"all, none, or some of {', '.join(CHECKS)}"
            raise ValueError(f"names no check {name!r}; allowed: {allowed}")
    return names


@dataclass(frozen=True)
class Option:
    """One row: ``parse`` turns text into the value or raises ValueError with what is allowed."""

    name: str  # the ini key; the option is the same with dashes
    field: str  # of Settings, and the name in the header
    metavar: str
    help: str
    parse: Callable[[str], Any]
    default: Any
    default_text: str

    @property
    def flag(self) -> str:
        """The command-line spelling."""
        return "--" + self.name.replace("_", "-")

    @property
    def dest(self) -> str:
        """The attribute of ``config.option``."""
        return f"synthaccept_{self.field}"


OPTIONS = (
    Option(
        "acceptance_rate",
        "rates",
        "RATE[,RATE...]",
        "Acceptance rates 0..1 for tests that use an engine and carry no acceptance_rate marker: "
        "each test runs once per rate",
        _rates,
        (),
        "none",
    ),
    Option(
        "synthaccept_device",
        "device",
        "DEVICE",
        f"Device of the engines: {', '.join(DEVICES)}",
        _device,
        "auto",
        "auto",
    ),
    Option(
        "synthaccept_model",
        "model",
        "MODEL",
        "Target model: a folder or a hub name",
        _model,
        None,
        "a tiny Llama",
    ),
    Option(
        "synthaccept_drafter",
        "drafter",
        "METHOD[:MODEL]",
        "Drafting method and its model: a folder or a hub name",
        _drafter,
        (METHOD, None),
        "a tiny EAGLE",
    ),
    Option(
        "synthaccept_tokens",
        "tokens",
        "K",
        "Draft tokens per verification step",
        _tokens,
        3,
        "3",
    ),
    Option(
        "synthaccept_engine_args",
        "engine_args",
        "JSON",
        "vLLM engine arguments, a JSON object: what spec_engine_args returns by itself",
        _engine_args,
        {},
        "{}",
    ),
    Option(
        "synthaccept_checks",
        "checks",
        "NAME[,NAME...]",
        "Checks to run on every engine run of a test that passed: all, none, or names",
        _checks,
        None,
        "all",
    ),
    Option(
        "synthaccept_seed",
        "seeds",
        "N[,N-N...]",
        "Seeds for tests that use spec_seed, as those of the ready suite do: each runs once per "
        "seed",
        _seeds,
        (),
        "0",
    ),
    Option(
        "synthaccept_poison",
        "poison",
        "on|off",
        "Fill KV cache slots that nobody may read with large values",
        _switch,
        None,
        "tiny models",
    ),
    Option(
        "synthaccept_baseline",
        "baseline",
        "FILE",
        "Gate the benchmarks of spec_benchmark: compare them with this file",
        _path,
        None,
        "no gate",
    ),
    Option(
        "synthaccept_fail",
        "fail",
        "EXPR",
        "What fails the gate: work, break-even:0.05, step-time:10%%, speedup@0.7:10%%, or several, "
        "separated by commas",
        _conditions,
        None,
        "work",
    ),
    Option(
        "synthaccept_update",
        "update",
        "new|all",
        "Write the baseline: the benchmarks that it lacks, or all that were measured",
        _update,
        None,
        "nothing",
    ),
)


@dataclass(frozen=True)
class Settings:
    """The values in force. ``shown`` has the text of each, ``given`` where the given came from."""

    rates: tuple[float, ...]
    device: str
    model: str | None
    drafter: tuple[str, str | None]
    tokens: int
    engine_args: Mapping[str, Any]
    checks: tuple[str, ...] | None  # None: all that apply
    seeds: tuple[int, ...]
    poison: bool | None  # None: with the tiny models
    baseline: str | None
    fail: tuple[Condition, ...] | None  # None: the work alone
    update: str | None  # one of UPDATES
    shown: Mapping[str, str]
    given: Mapping[str, str]  # field -> "option" or "ini"

    def to_drafter(self) -> Drafter:
        """The drafter of the options."""
        from pytest_synthaccept.engine.config import Drafter

        method, model = self.drafter
        return Drafter(method, model, num_speculative_tokens=self.tokens)

    def place(self, field: str) -> str:
        """How messages name the place where ``field`` was given."""
        option = next(option for option in OPTIONS if option.field == field)
        return _place(option, self.given[field])


SETTINGS = pytest.StashKey[Settings]()


def add(parser: pytest.Parser) -> None:
    """Register the options and the ini keys."""
    group = parser.getgroup("synthaccept", "speculative decoding at a forced acceptance rate")
    for option in OPTIONS:
        group.addoption(
            option.flag,
            dest=option.dest,
            metavar=option.metavar,
            help=f"{option.help} (default: {option.default_text})",
        )
        parser.addini(option.name, f"Default value for {option.flag}", default=None)
    group.addoption(
        "--synthaccept-doctor",
        dest="synthaccept_doctor",
        action="store_true",
        help="Say whether an engine can run here, and exit without collecting tests",
    )


def arm_cpu_runtime(early_config: pytest.Config) -> None:
    """Prepare the environment for CPU engines, where vLLM's CPU build is what is installed.

    Before conftests and test modules load; bad values are ``configure``'s to complain about.
    """
    from pytest_synthaccept.engine import cpu_runtime, versions

    device = early_config.known_args_namespace.synthaccept_device
    if device is None:
        with contextlib.suppress(TypeError):  # a native TOML value that is not a string
            device = early_config.getini("synthaccept_device")
    if device != "cuda" and versions.installed().cpu_build:
        cpu_runtime.arm()


def configure(config: pytest.Config) -> None:
    """Read and check all values; ``pytest.UsageError`` with one line at the first bad one."""
    values, shown, given = {}, {}, {}
    for option in OPTIONS:
        source, text = _given(config, option)
        values[option.field], shown[option.field] = option.default, option.default_text
        if source:
            values[option.field], shown[option.field] = _parsed(option, source, text), text
            given[option.field] = source
    config.stash[SETTINGS] = Settings(**values, shown=shown, given=given)


def settings(config: pytest.Config) -> Settings:
    """The values in force."""
    return config.stash[SETTINGS]


def header(config: pytest.Config) -> str | None:
    """One line once something was given or with ``-v``; nothing for an idle plugin."""
    now = settings(config)
    if not now.given and config.get_verbosity() < 1:
        return None
    values = (
        f"{field}={text}" + (f" (from {now.given[field]})" if field in now.given else "")
        for field, text in now.shown.items()
        if field in now.given or field not in GATE_FIELDS
    )
    return f"synthaccept: {', '.join(values)}"


def _given(config: pytest.Config, option: Option) -> tuple[str, str]:
    """Where the option was given ("option", "ini" or "") and its text."""
    if (text := config.getoption(option.dest)) is not None:
        return "option", text
    try:
        text = config.getini(option.name)
    except TypeError as error:  # a native TOML value that is not a string, before pytest 9.2
        raise pytest.UsageError(str(error)) from None
    if text is not None and not isinstance(text, str):
        raise pytest.UsageError(f"{_place(option, 'ini')}: {text!r} is not a string; quote it")
    return ("", "") if text is None else ("ini", text)


def _parsed(option: Option, source: str, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        raise pytest.UsageError(f"{_place(option, source)}: {text!r} {error}") from None


def _place(option: Option, source: str) -> str:
    return option.flag if source == "option" else f"{option.name} (ini)"
