"""An engine core in a process of its own does not outlive the process that started it."""

import os
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import os
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
from pytest_synthaccept import SpecEngine

if __name__ == "__main__":
    engine = SpecEngine()
    print("ready", flush=True)
    import time
    time.sleep(600)
"""


def children(pid):
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in out.stdout.split()]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux's kernel for it")
def test_kill_9_leaves_no_engine_core(tmp_path):
    script = tmp_path / "start_engine.py"
    script.write_text(SCRIPT)
    with open(tmp_path / "log", "w") as log:
        parent = subprocess.Popen(
            [sys.executable, script], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert any("ready" in line for line in parent.stdout), (tmp_path / "log").read_text()
        engines = children(parent.pid)
        assert engines
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + 20
        while any(map(alive, engines)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert [pid for pid in engines if alive(pid)] == []
    finally:
        parent.kill()
        parent.stdout.close()
