"""``python -m benchmarks.gpu [--out FOLDER] [--only PART]``: measure on this GPU.

Writes ``gpu.json`` (every record) and ``gpu.md`` (the same as tables, and the machine), and
``speed_curve.json``, the curves of a whole engine.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.gpu import table

HERE = Path(__file__).parent


def machine(commit: str) -> dict[str, str]:
    """What the figures depend on."""
    import torch
    import triton
    import vllm

    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", "0"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "commit": commit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--only", choices=["sampler", "engine", "speed_curve"])
    parser.add_argument("--commit", default=None, help="of the code, where it is no checkout")
    options = parser.parse_args()
    commit = options.commit or _commit()
    options.out.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []
    for name in ("sampler", "engine"):
        if options.only in (None, name):
            module = __import__(f"benchmarks.gpu.{name}", fromlist=["measure"])
            for record in module.measure():
                print(json.dumps(record), flush=True)
                records.append(record)
                result = {"machine": machine(commit), "records": records}
                (options.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
                (options.out / "gpu.md").write_text(table.markdown(result))
    if options.only in (None, "speed_curve"):
        from benchmarks.gpu import speed_curve

        found = {"machine": machine(commit), **speed_curve.measure()}
        (options.out / "speed_curve.json").write_text(json.dumps(found, indent=1) + "\n")


def _commit() -> str:
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    return head.stdout.strip()


if __name__ == "__main__":
    main()
