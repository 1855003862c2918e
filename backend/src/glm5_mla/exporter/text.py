"""Prometheus' text format, version 0.0.4, for a thousand series a scrape.

Names and label sets do not change from scrape to scrape: each is written once and kept, so that a scrape only adds the
numbers.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from glm5_mla.timing.rankfile import BUCKET_BOUNDS_NS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from glm5_mla.timing.rankreader import Histogram

    from .metrics import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS_S = (*(str(bound / 1e9) for bound in BUCKET_BOUNDS_NS), "+Inf")


class Page:
    """The answer to one scrape; `metrics` come in this order, also those that nothing is put into.

    Label values of `put` and its sisters are those after ``deployment``, in the order of ``Metric.all_labels``.
    """

    def __init__(self, metrics: Iterable[Metric], deployment: str) -> None:
        self._deployment = deployment
        self._lines = {metric: [_head(metric)] for metric in metrics}

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """Add one series of a counter or gauge. Whole numbers are written exactly."""
        self._lines[metric].append(f"{_series(metric, '', (self._deployment, *labels))} {value}")

    def put_histogram(self, metric: Metric, histogram: Histogram, *labels: str) -> None:
        """Add the series of one histogram."""
        counts = list(accumulate(histogram.buckets))
        series = _histogram_series(metric, (self._deployment, *labels))
        self._lines[metric] += map("{} {}".format, series, (*counts, histogram.sum_s, counts[-1]))

    def put_summary(self, metric: Metric, total: float, count: int, *labels: str) -> None:
        """Add the two series of a summary without quantiles."""
        for suffix, value in (("_sum", total), ("_count", count)):
            self._lines[metric].append(f"{_series(metric, suffix, (self._deployment, *labels))} {value}")

    def encode(self) -> bytes:
        """Return the body of the answer; what UTF-8 can't say of a label's value is a question mark in it."""
        return "\n".join([*(line for lines in self._lines.values() for line in lines), ""]).encode(errors="replace")


@lru_cache
def _head(metric: Metric) -> str:
    documentation = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {metric.name} {documentation}\n# TYPE {metric.name} {metric.kind}"


@lru_cache(maxsize=4096)
def _series(metric: Metric, suffix: str, values: tuple[str, ...]) -> str:
    return f"{metric.name}{suffix}{{{_labels(metric, values)}}}"


@lru_cache(maxsize=4096)
def _histogram_series(metric: Metric, values: tuple[str, ...]) -> tuple[str, ...]:
    labels = _labels(metric, values)
    buckets = (f'{metric.name}_bucket{{{labels},le="{bound}"}}' for bound in _BOUNDS_S)
    return (*buckets, f"{metric.name}_sum{{{labels}}}", f"{metric.name}_count{{{labels}}}")


def _labels(metric: Metric, values: tuple[str, ...]) -> str:
    return ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(metric.all_labels, values, strict=True))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
