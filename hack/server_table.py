"""Prints the tables of docs/benchmarks/server-h200.md from server-h200.json: `make bench-tables`."""

import json
import sys
from pathlib import Path


def way(row: dict) -> str:
    """Name a way of serving as the tables do."""
    name = row["kernel"] if row["kv_cast"] is None else f"{row['kv_cast']}, {row['kernel']}"
    return f"{name}, {row['gpus']} GPUs" if row.get("gpus", 1) > 1 else name


def step(row: dict) -> str:
    """Give a step's milliseconds and the tokens a second."""
    return f"{row['step_ms']:.2f} ({row['tokens_per_s']:,.0f})"


def parts(row: dict) -> str:
    """Give a step's parts in milliseconds."""
    return "-" if row["base_ms"] is None else f"{row['cast_ms']:.2f} / {row['attention_ms']:.2f} / {row['base_ms']:.2f}"


def main(path: Path) -> None:
    """Print both tables: a way of serving a line, a case a column."""
    rows = {(way(row), row["batch"], row["context"]): row for row in json.loads(path.read_text())["rows"]}
    cases = sorted({(batch, context) for _, batch, context in rows})
    for title, cell in (("ms a step (tok/s)", step), ("ms in casts / attention / the rest", parts)):
        print(f"| {title} | " + " | ".join(f"{batch} x {context:,}" for batch, context in cases) + " |")
        print("|---|" + "---|" * len(cases))
        for name in dict.fromkeys(name for name, _, _ in rows):
            found = [rows.get((name, *case)) for case in cases]
            print(f"| {name} | " + " | ".join("-" if row is None else cell(row) for row in found) + " |")
        print()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
