"""Prometheus' text format, version 0.0.4, for a thousand series a scrape.

The client library's own writer sorts and escapes every label of every series at each scrape, most of a scrape's
time. Label sets do not change from scrape to scrape: each is written once and kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(families: Iterable[Metric]) -> bytes:
    """Return the families as the body of an answer to a scrape."""
    lines: list[str] = []
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        documentation = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        lines += [f"# HELP {name} {documentation}", f"# TYPE {name} {family.type}"]
        lines += [
            f"{_series(sample.name, tuple(sample.labels.items()))} {float(sample.value)!r}" for sample in family.samples
        ]
    return "\n".join([*lines, ""]).encode()


@lru_cache(maxsize=8192)
def _series(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    parts = []
    for label, value in sorted(labels):
        escaped = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        parts.append(f'{label}="{escaped}"')
    return f"{name}{{{','.join(parts)}}}"
