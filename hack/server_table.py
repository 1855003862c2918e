"""Prints the tables of docs/benchmarks/server-h200.md from server-h200.json: `make bench-tables`."""

import json
import sys
from pathlib import Path


def name(row: dict) -> str:
    return row["kernel"] if row["kv_cast"] is None else f"{row['kv_cast']}, {row['kernel']}"


def main(path: Path) -> None:
    report = json.loads(path.read_text())
    rows = {(name(row), row["batch"], row["context"]): row for row in report["rows"]}
    ways = list(dict.fromkeys(way for way, _, _ in rows))
    cases = sorted({case[1:] for case in rows})
    print("| ms a step (tok/s) | " + " | ".join(f"{batch} x {context:,}" for batch, context in cases) + " |")
    print("|---|" + "---|" * len(cases))
    for way in ways:
        cells = [rows.get((way, *case)) for case in cases]
        print(
            f"| {way} | "
            + " | ".join(f"{c['step_ms']:.2f} ({c['tokens_per_s']:,.0f})" if c else "-" for c in cells)
            + " |"
        )
    print(
        "\n| ms a step in casts / in attention / in the rest | " + " | ".join(f"{b} x {c:,}" for b, c in cases) + " |"
    )
    print("|---|" + "---|" * len(cases))
    for way in ways:
        cells = [rows.get((way, *case)) for case in cases]
        if all(c is None or c["base_ms"] is None for c in cells):
            continue
        texts = [f"{c['cast_ms']:.2f} / {c['attention_ms']:.2f} / {c['base_ms']:.2f}" if c else "-" for c in cells]
        print(f"| {way} | " + " | ".join(texts) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
