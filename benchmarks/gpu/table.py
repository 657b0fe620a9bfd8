"""The records as Markdown."""

from __future__ import annotations

from typing import Any


def markdown(result: dict[str, Any]) -> str:
    """One table per operation: a row per shape, a column per provider, p50 (p20 to p80)."""
    machine = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    parts = [f"Measured by `python -m benchmarks.gpu`: {machine}. p50 (p20 to p80).\n"]
    for op in dict.fromkeys(record["op"] for record in result["records"]):
        records = [record for record in result["records"] if record["op"] == op]
        parts.append(_table(op, records))
    return "\n".join(parts)


def _table(op: str, records: list[dict[str, Any]]) -> str:
    providers = list(dict.fromkeys(record["provider"] for record in records))
    cells = {(_shape(r["shape"]), r["provider"]): _time(r) for r in records}
    lines = [
        f"| {op} | {' | '.join(providers)} |",
        "| --- |" + " --- |" * len(providers),
    ]
    for shape in dict.fromkeys(shape for shape, _ in cells):
        row = " | ".join(cells.get((shape, provider), "") for provider in providers)
        lines.append(f"| {shape} | {row} |")
    return "\n".join(lines) + "\n"


def _shape(shape: dict[str, Any]) -> str:
    if not shape:
        return ""
    text = f"{shape['requests']} requests, K = {shape['k']}, T = {shape['temperature']:g}"
    extra = [f"V = {shape['vocab']}", shape.get("dtype", "float32")]
    usual = ["V = 151936", "float32"]
    return ", ".join([text, *(e for e, u in zip(extra, usual, strict=True) if e != u)])


def _time(record: dict[str, Any]) -> str:
    if "p20" not in record or record["p20"] == record["p80"]:
        return f"{record['p50']:g}"
    return f"{record['p50']:g} ({record['p20']:g} to {record['p80']:g})"
