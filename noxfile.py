"""Sessions: ``examples`` (what the plugin does, on this machine), ``tests``, ``benchmarks``, and
``false_alarms``, which takes hours."""

import subprocess
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SUITE = "pytest_synthaccept/suite"
CPU_ENGINE = "requirements/cpu.txt"


def install_cpu_engine(session: nox.Session, *more: str) -> None:
    """The locked CPU engine and this package; PyTorch's index joins in only where it is needed."""
    index = [] if torch_is_on_the_index(session) else ["--extra-index-url", PYTORCH_CPU_INDEX]
    requirements = [arg for name in (CPU_ENGINE, *more) for arg in ("-r", name)]
    session.install("--no-deps", *index, *requirements)
    session.install("--no-deps", "-e", ".")


def torch_is_on_the_index(session: nox.Session) -> bool:
    lines = Path(CPU_ENGINE).read_text().splitlines()
    torch = next(line for line in lines if line.startswith("torch=="))
    pip = [str(Path(session.bin) / "python"), "-m", "pip", "download", "--no-deps", "-q"]
    found = subprocess.run(
        [*pip, "--dest", session.create_tmp(), torch], capture_output=True, check=False
    )
    return found.returncode == 0


@nox.session
def examples(session: nox.Session) -> None:
    install_cpu_engine(session)
    session.run("python", "-m", "pytest", "examples", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    install_cpu_engine(session, "requirements/test.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    # A file keeps to one worker, and so to its engines.
    workers = ["-n", "2", "--dist", "loadfile"]
    session.run("python", "-m", "pytest", "tests", SUITE, *workers, *session.posargs)


@nox.session
def benchmarks(session: nox.Session) -> None:
    install_cpu_engine(session, "requirements/test.txt")
    session.run("python", "-m", "pytest", "benchmarks", "--benchmark-only", *session.posargs)


@nox.session
def false_alarms(session: nox.Session) -> None:
    """The ready suite with every drafter, sync and async, 20 seeds: hours, and no failure."""
    install_cpu_engine(session, "requirements/test.txt")
    seeds = session.posargs or ["--synthaccept-seed=0-19"]
    for method in ("eagle", "eagle3", "draft_model", "mtp"):
        for asynchronous in ("false", "true"):
            args = f'--synthaccept-engine-args={{"async_scheduling": {asynchronous}}}'
            drafter = f"--synthaccept-drafter={method}"
            workers = ["-n", "2", "--dist", "loadscope"]
            session.run("python", "-m", "pytest", SUITE, drafter, args, *workers, *seeds)
