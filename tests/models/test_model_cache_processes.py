"""The cache under several processes: at once, killed half-way, or out of room."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_synthaccept.models.cache import MANIFEST, stored

ROOT = Path(__file__).parents[2]
FILES = {"config.json": b"{}", "weights": bytes(range(256)) * 100}


def script(body: str, *args: object) -> subprocess.Popen[str]:
    """Another process that runs ``body`` with this package importable."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(body), *map(str, args)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def leftovers(root: Path) -> list[str]:
    return [path.name for path in (root / "models").glob(".tmp-*")]


RACE = """
    import json, pathlib, sys, time
    from pytest_synthaccept.models import cache
    root, number, locks = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if locks == "broken":
        def flock(*_): raise OSError("no locks here")
        cache.fcntl.flock = flock
    built, seen = 0, []
    def build():
        global built
        built += 1
        return {f"file{i}": bytes([i]) * 20000 for i in range(8)}
    (root / f"ready-{number}").touch()
    while not (root / "go").exists():
        time.sleep(0.001)
    for n in range(25):
        folder = cache.stored("m", {"n": n}, build, root)
        seen.append(all((folder / f"file{i}").read_bytes() == bytes([i]) * 20000 for i in range(8)))
    print(json.dumps({"built": built, "whole": all(seen)}))
"""


@pytest.mark.parametrize("locks", ["working", "broken"])
def test_processes_that_ask_at_once_get_one_good_copy(tmp_path, locks):
    racers = [script(RACE, tmp_path, number, locks) for number in range(4)]
    if locks == "working":  # a repair must not take away what somebody else has just repaired
        for n in range(0, 25, 2):
            (stored("m", {"n": n}, lambda: FILES, tmp_path) / MANIFEST).unlink()
    while sum(1 for _ in tmp_path.glob("ready-*")) < len(racers):
        assert all(racer.poll() is None for racer in racers), racers[0].communicate()
    (tmp_path / "go").touch()
    ends = [racer.communicate(timeout=60) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * len(racers), ends
    results = [json.loads(out) for out, _ in ends]
    assert all(result["whole"] for result in results)
    built = sum(result["built"] for result in results)
    assert built == 25 if locks == "working" else 25 <= built <= 100
    assert len(list((tmp_path / "models").glob("m-*"))) == 25
    assert leftovers(tmp_path) == []


KILLED = """
    import os, pathlib, signal, sys
    from pytest_synthaccept.models.cache import stored
    class Files(dict):
        def items(self):
            yield "config.json", b"{}"
            os.kill(os.getpid(), signal.SIGKILL)
    stored("m", {}, lambda: Files(), pathlib.Path(sys.argv[1]))
"""


def test_writer_killed_half_way_leaves_nothing_that_is_used(tmp_path):
    killed = script(KILLED, tmp_path)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    (left,) = leftovers(tmp_path)
    assert not list((tmp_path / "models").glob("m-*"))

    folder = stored("m", {}, lambda: FILES, tmp_path)
    assert (folder / "weights").read_bytes() == FILES["weights"]
    assert leftovers(tmp_path) == [left]  # too young: it might belong to a living writer

    os.utime(tmp_path / "models" / left, (0, 0))
    stored("m", {"another": 1}, lambda: FILES, tmp_path)
    assert leftovers(tmp_path) == []


FULL = """
    import pathlib, resource, sys
    from pytest_synthaccept.errors import EngineError
    from pytest_synthaccept.models.cache import stored
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    try:
        stored("m", {}, lambda: {"config.json": b"{}", "weights": bytes(25_600)},
               pathlib.Path(sys.argv[1]))
    except EngineError as error:
        print(error)
"""


def test_no_room_for_a_file(tmp_path):
    # The system refuses the rest of the file in mid-write, as a full disk does.
    out, err = script(FULL, tmp_path).communicate(timeout=60)
    assert str(tmp_path / "models" / "m-") in out, err
    assert "File too large; set SYNTHACCEPT_CACHE" in out
    assert list((tmp_path / "models").glob("*m-*")) == []
    assert leftovers(tmp_path) == []
    assert stored("m", {}, lambda: FILES, tmp_path).is_dir()
