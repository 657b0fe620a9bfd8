"""Every option: help, command line, ini, precedence, header, bad values."""

from __future__ import annotations

import pytest

OPTIONS = {
    "--acceptance-rate=RATE[,RATE...]": (
        "Acceptance rates 0..1 for tests that use an engine and carry no acceptance_rate marker: "
        "each test runs once per rate (default: none)"
    ),
    "--synthaccept-device=DEVICE": "Device of the engines: auto, cpu, cuda (default: auto)",
    "--synthaccept-model=MODEL": ("Target model: a folder or a hub name (default: a tiny Llama)"),
    "--synthaccept-drafter=METHOD[:MODEL]": (
        "Drafting method and its model: a folder or a hub name (default: a tiny EAGLE)"
    ),
    "--synthaccept-tokens=K": "Draft tokens per verification step (default: 3)",
    "--synthaccept-engine-args=JSON": (
        "vLLM engine arguments, a JSON object: what spec_engine_args returns by itself "
        "(default: {})"
    ),
    "--synthaccept-checks=NAME[,NAME...]": (
        "Checks to run on every engine run of a test that passed: all, none, or names "
        "(default: all)"
    ),
    "--synthaccept-seed=N[,N-N...]": (
        "Seeds for tests that use spec_seed, as those of the ready suite do: each runs once per "
        "seed (default: 0)"
    ),
    "--synthaccept-poison=on|off": (
        "Fill KV cache slots that nobody may read with large values (default: tiny models)"
    ),
    "--synthaccept-doctor": (
        "Say whether an engine can run here, and exit without collecting tests"
    ),
}
INI = {
    "acceptance_rate": "--acceptance-rate",
    "synthaccept_device": "--synthaccept-device",
    "synthaccept_model": "--synthaccept-model",
    "synthaccept_drafter": "--synthaccept-drafter",
    "synthaccept_tokens": "--synthaccept-tokens",
    "synthaccept_checks": "--synthaccept-checks",
    "synthaccept_engine_args": "--synthaccept-engine-args",
    "synthaccept_seed": "--synthaccept-seed",
    "synthaccept_poison": "--synthaccept-poison",
}

RATE_LIST = "is not a list of rates; give one rate 0..1 or several, separated by commas: 0.3,0.7"
RATE_RANGE = "has an entry outside 0..1; a rate is accepted/drafted, 0.5 for 50 %"
DEVICE = "is not a device; allowed: auto, cpu, cuda"
TOKENS = "is not a number of draft tokens; give an integer, 1 or more"
DRAFTER = "is not METHOD[:MODEL]; for example eagle, or eagle:/path/to/head"
NO_CONFIG = "has no config.json; give a model folder or a hub name"
NOT_JSON = """is not a JSON object; give e.g. '{"max_model_len": 512}'"""
SEEDS = "is not a list of seeds; give integers, or ranges as in 0-19"
ALL_CHECKS = "outputs, acceptance, accounting, scheduler, kv_cache, drafter"
CHECK = "names no check {!r}; allowed: all, none, or some of " + ALL_CHECKS

BAD = [
    ("acceptance_rate", "half", RATE_LIST),
    ("acceptance_rate", "0.3,", RATE_LIST),
    ("acceptance_rate", "50%", RATE_LIST),
    ("acceptance_rate", "1.01", RATE_RANGE),
    ("acceptance_rate", "0.5,-0.1", RATE_RANGE),
    ("acceptance_rate", "nan", RATE_RANGE),
    ("acceptance_rate", "0.5,0.50", "has an entry twice; give each rate once"),
    ("synthaccept_device", "gpu", DEVICE),
    ("synthaccept_device", "CPU", DEVICE),
    ("synthaccept_model", "/no/such/model", NO_CONFIG),
    ("synthaccept_drafter", "eagle:/no/such/head", NO_CONFIG),
    ("synthaccept_drafter", "eagle:", "is empty; give a model folder or a hub name"),
    ("synthaccept_drafter", ":head", DRAFTER),
    ("synthaccept_drafter", "no method", DRAFTER),
    ("synthaccept_tokens", "0", TOKENS),
    ("synthaccept_tokens", "-1", TOKENS),
    ("synthaccept_tokens", "2.5", TOKENS),
    ("synthaccept_tokens", "1_0", TOKENS),
    ("synthaccept_checks", "all,acceptance", CHECK.format("all")),
    ("synthaccept_checks", "acceptance,speed", CHECK.format("speed")),
    ("synthaccept_engine_args", "max_model_len=5", NOT_JSON),
    ("synthaccept_engine_args", "[1]", NOT_JSON),
    ("synthaccept_seed", "one", SEEDS),
    ("synthaccept_seed", "-1", SEEDS),
    ("synthaccept_seed", "1,0-2", "has a seed twice, or none; give each seed once"),
    ("synthaccept_seed", "3-1", "has a seed twice, or none; give each seed once"),
    ("synthaccept_poison", "yes", "is neither on nor off"),
]


def test_help(pytester):
    text = " ".join(" ".join(pytester.runpytest("--help").outlines).split())
    for flag, help_text in OPTIONS.items():
        assert f"{flag} {help_text}" in text
    for name, flag in INI.items():
        assert f"{name} (string): Default value for {flag}" in text


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_bad_value(pytester, clean, name, value, message):
    flag = "--" + name.replace("_", "-")
    for args, place in (([f"{flag}={value}"], flag), (["-o", f"{name}={value}"], f"{name} (ini)")):
        result = clean(pytester.runpytest(*args))
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert [line for line in result.errlines if line] == [
            f"ERROR: {place}: {value!r} {message}"
        ]


@pytest.mark.parametrize("name", sorted(INI))
def test_empty_value_is_bad(pytester, clean, name):
    result = clean(pytester.runpytest("--" + name.replace("_", "-") + "="))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    [line] = [line for line in result.errlines if line]
    assert line.startswith(f"ERROR: --{name.replace('_', '-')}: '' ")


def test_bad_value_under_xdist_is_said_once(pytester, clean):
    result = clean(pytester.runpytest("-n2", "--synthaccept-tokens=0"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        f"ERROR: --synthaccept-tokens: '0' {TOKENS}"
    ]


@pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest reads no native TOML")
def test_native_toml_value_that_is_no_string(pytester, clean):
    pytester.makepyprojecttoml("[tool.pytest]\nsynthaccept_tokens = 5\n")
    result = clean(pytester.runpytest())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    [line] = [line for line in result.errlines if line]
    assert line.startswith("ERROR: ")
    assert "'synthaccept_tokens' expects a string, got int: 5" in line


def test_toml_list_is_bad(pytester, clean):
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\nacceptance_rate = [0.3]\n")
    result = clean(pytester.runpytest_subprocess())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: acceptance_rate (ini): [0.3] is not a string; quote it" in result.errlines


DEFAULTS = {
    "rates": "none",
    "device": "auto",
    "model": "a tiny Llama",
    "drafter": "a tiny EAGLE",
    "tokens": "3",
    "engine_args": "{}",
    "checks": "all",
    "seeds": "0",
    "poison": "tiny models",
}


def header(**changed: str) -> str:
    return "synthaccept: " + ", ".join(f"{k}={v}" for k, v in (DEFAULTS | changed).items())


def header_lines(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("synthaccept:")]


def test_idle_plugin_has_no_header(pytester):
    assert header_lines(pytester.runpytest()) == []


def test_header_when_verbose(pytester):
    assert header_lines(pytester.runpytest("-v")) == [header()]


def test_header_says_where_values_come_from(pytester):
    pytester.makeini("[pytest]\nsynthaccept_tokens = 5\nsynthaccept_device = cuda\n")
    result = pytester.runpytest("--acceptance-rate=0.3,0.7", "--synthaccept-device=cpu")
    assert header_lines(result) == [
        header(rates="0.3,0.7 (from option)", device="cpu (from option)", tokens="5 (from ini)")
    ]


def test_values_reach_the_engine(stub):
    stub.mkdir("target").joinpath("config.json").write_text("{}")
    stub.makeini("[pytest]\nsynthaccept_tokens = 5\nsynthaccept_device = cpu\n")
    stub.makepyfile(
        """
        def test_config(spec_engine):
            config = spec_engine.config
            assert (config.model, config.device) == ("./target", "cpu")
            assert (config.drafter.method, config.drafter.model) == ("eagle3", "org/head")
            assert config.drafter.num_speculative_tokens == 5
        """
    )
    result = stub.runpytest("--synthaccept-model=./target", "--synthaccept-drafter=eagle3:org/head")
    result.assert_outcomes(passed=1)
