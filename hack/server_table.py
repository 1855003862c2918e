"""Prints the tables of docs/benchmarks/server-h200.md from its JSON: `make bench-tables`.

    python hack/server_table.py JSON [NEW.json ...]

Further files are the results of later runs, which are merged into JSON first: a case measured anew takes the place of
the old one, and so does each entry of a section. Every one tells its run by the date that stands under `runs`.
"""

import json
import sys
from pathlib import Path

SECTIONS = ("numerics", "profiler", "timing_cost", "stamps", "scrapes")
ABOUT = ("machine", "versions", "model", "arguments")


def merge(into: dict, new: dict) -> None:
    """Take the rows and sections of a run into the results."""
    for results in (into, new):
        for row in results["rows"]:
            row.setdefault("run", results["date"])
    into.setdefault("runs", {into["date"]: about(into)})[new["date"]] = about(new)
    measured = {case(row): row for row in new["rows"]}
    into["rows"] = [measured.pop(case(row), row) for row in into["rows"]] + list(measured.values())
    for section in SECTIONS:
        entries = [{"run": new["date"], **entry} for entry in new.get(section, [])]
        anew = {subject(entry) for entry in entries}
        kept = [entry for entry in into.get(section, []) if subject(entry) not in anew]
        if kept or entries:
            into[section] = kept + entries


def about(results: dict) -> dict:
    """Give what a run was made on and with."""
    return {name: results[name] for name in ABOUT if name in results}


def subject(entry: dict) -> tuple:
    """Give what a section's entry is about."""
    return tuple(entry.get(name) for name in ("way", "kernel", "batch", "context"))


def case(row: dict) -> tuple:
    """Give what is measured once: a way of serving, batch and context."""
    return way(row), row["batch"], row["context"]


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


def skew(row: dict) -> str:
    """Give by how much the slowest rank is above the fastest."""
    return (
        f"{row['skew_percent']['step']:.2f} / {row['skew_percent']['attention']:.2f}" if "skew_percent" in row else "-"
    )


TABLES = (
    ("ms a step (tok/s)", step),
    ("ms in casts / attention / the rest", parts),
    ("% between slowest and fastest rank: step / attention", skew),
)


def tables(results: dict) -> str:
    """Make the tables: a way of serving a line, a case a column; one that would say nothing is left out."""
    rows = {case(row): row for row in results["rows"]}
    cases = sorted({(batch, context) for _, batch, context in rows})
    text = ""
    for title, cell in TABLES:
        cells = {key: cell(row) for key, row in rows.items()}
        if set(cells.values()) <= {"-"}:
            continue
        text += f"| {title} | " + " | ".join(f"{batch} x {context:,}" for batch, context in cases) + " |\n"
        text += "|---|" + "---|" * len(cases) + "\n"
        for name in dict.fromkeys(name for name, _, _ in rows):
            text += f"| {name} | " + " | ".join(cells.get((name, *each), "-") for each in cases) + " |\n"
        text += "\n"
    return text


def main(path: Path, *new: Path) -> None:
    """Merge, write when there was something to merge, and print the tables."""
    results = json.loads(path.read_text())
    for each in new:
        merge(results, json.loads(each.read_text()))
    if new:
        path.write_text(json.dumps(results, indent=1) + "\n")
    print(tables(results), end="")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
