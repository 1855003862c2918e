"""Prints the table of docs/kernel.md from kernel-h200.json: `make bench-tables`."""

import json
import sys
from pathlib import Path

OURS = "glm5-mla cuda"
GOALS = {
    (1, 1_024): 5.4,
    (1, 8_192): 7.5,
    (1, 32_768): 11.0,
    (1, 131_072): 26.0,
    (8, 8_192): 16.0,
    (32, 8_192): 48.0,
    (64, 4_096): 48.0,
}
"""Microseconds a layer that the kernel was to reach on an H200."""
COLUMNS = (
    "read floor",
    OURS,
    "glm5-mla triton",
    "FlashInfer, FP8 rows",
    "FlashInfer, BF16 rows",
    "SGLang Triton, server's splits",
    "SGLang Triton, best splits",
    "FlashMLA, BF16 pages of 64",
    "FlashMLA, sparse FP8",
)


def table(rows: list[dict]) -> str:
    """Make the table: a shape a line, a kernel a column, ours with its goal beside it."""
    measured = {(row["batch"], row["context"], row["kernel"]): row for row in rows}
    shapes = sorted({(row["batch"], row["context"]) for row in rows if row["batch"] is not None})
    kernels = [name for name in COLUMNS if any(name == kernel for _, _, kernel in measured)]
    heads = [head for name in kernels for head in ([f"**{name}**", "goal"] if name == OURS else [name])]
    text = "| batch x context | " + " | ".join(heads) + " |\n|---" + "|---" * len(heads) + "|\n"
    for batch, context in shapes:
        cells = []
        for name in kernels:
            cell = microseconds(measured.get((batch, context, name)))
            goal = GOALS.get((batch, context))
            cells += [f"**{cell}**", "-" if goal is None else f"{goal:g}"] if name == OURS else [cell]
        text += f"| {batch} x {context:,} | " + " | ".join(cells) + " |\n"
    return text


def microseconds(row: dict | None) -> str:
    """Give a time with three figures, or - where there is none."""
    if row is None or "us" not in row:
        return "-"
    return f"{row['us']:,.0f}" if row["us"] >= 100 else f"{row['us']:.1f}"


def verify_table(rows: list[dict]) -> str:
    """Make the table of several query tokens a request: a number of them a line, a shape a column."""
    shapes = list(dict.fromkeys((row["batch"], row["context"]) for row in rows))
    measured = {(row["batch"], row["context"], row["query_tokens"]): row for row in rows}
    text = "| query tokens | " + " | ".join(f"{batch} x {context:,}" for batch, context in shapes)
    text += " |\n|---" + "|---" * len(shapes) + "|\n"
    for tokens in sorted({row["query_tokens"] for row in rows}):
        found = [measured.get((*shape, tokens)) for shape in shapes]
        cells = [f"{microseconds(row)} ({row['times_one_token']:.2f} x)" if row else "-" for row in found]
        text += f"| {tokens} | " + " | ".join(cells) + " |\n"
    return text


if __name__ == "__main__":
    measurements = json.loads(Path(sys.argv[1]).read_text())
    print(table(measurements["rows"]), end="")
    if "verify" in measurements:
        print("\n" + verify_table(measurements["verify"]), end="")
