"""From the ranks' files to Prometheus: everything is read anew at each scrape, nothing is kept in between."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from glm5_mla import __version__
from glm5_mla.timing.rankfile import BUCKET_BOUNDS_NS

from . import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5_mla.timing.rankreader import Histogram, Snapshot

    from .metrics import Family, Metric
    from .ranks import RunDirectory

_BOUNDS = [*(str(bound / 1e9) for bound in BUCKET_BOUNDS_NS), "+Inf"]


class RankCollector(Collector):
    """Collects every metric of the list; one that has nothing to say has no samples, never an old one."""

    def __init__(self, run_directory: RunDirectory, deployment: str) -> None:
        self._run_directory = run_directory
        self._deployment = deployment
        self._reads = 0
        self._read_seconds = 0.0

    def collect(self) -> Iterator[Family]:
        """Read all ranks and return all families."""
        start = time.perf_counter()
        ranks = self._run_directory.read()
        self._read_seconds += time.perf_counter() - start
        self._reads += 1

        families = {metric: metric.family() for metric in metrics.METRICS}

        def put(metric: Metric, value: float, *labels: str) -> None:
            family = families[metric]
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
            family.add_metric([self._deployment, *labels], value)

        for number, living in ranks:
            put(metrics.RANK_UP, 1 if living else 0, str(number))
            if living:
                self._collect_rank(families, living)
                put(metrics.DECODE_CAST_BYTES, living.cast_bytes, str(number))
                put(metrics.RANK_START, living.start_time_s, str(number))
                if living.last_step_end_s is not None:
                    put(metrics.RANK_LAST_STEP, living.last_step_end_s, str(number))

        rank0 = next((living for number, living in ranks if number == 0), None)
        if rank0:
            put(metrics.DECODE_TOKENS, rank0.decode_tokens)
            put(metrics.DECODE_TOKEN_RATE, rank0.window.tokens_per_second)
            put(metrics.DECODE_STEPS, rank0.graph_steps, "true")
            put(metrics.DECODE_STEPS, rank0.eager_steps, "false")
            put(metrics.DECODE_BATCH, rank0.window.batch or 0)
            put(metrics.DECODE_KV_TOKENS, rank0.window.kv_tokens or 0)
            put(metrics.RUNNING_REQUESTS, rank0.running_requests)
            info = asdict(rank0.info)
            put(metrics.BACKEND_INFO, 1, *(info[label] for label in metrics.BACKEND_INFO.labels))
            put(metrics.BACKEND_VERIFIED, 1 if rank0.info.verified else 0)

        put(metrics.EXPECTED_RANKS, self._run_directory.expected_ranks(rank0))
        for reason, count in sorted(self._run_directory.errors.items()):
            put(metrics.FILE_ERRORS, count, reason)
        put(metrics.EXPORTER_CPU, time.process_time())
        put(metrics.EXPORTER_INFO, 1, __version__)
        read_seconds = families[metrics.READ_SECONDS]
        assert isinstance(read_seconds, SummaryMetricFamily)
        read_seconds.add_metric([self._deployment], self._reads, self._read_seconds)
        yield from families.values()

    def _collect_rank(self, families: dict[Metric, Family], living: Snapshot) -> None:
        for metric, name in (
            (metrics.DECODE_STEP, "step"),
            (metrics.DECODE_INTERVAL, "interval"),
            (metrics.DECODE_CAST, "cast"),
            (metrics.DECODE_ATTENTION, "attention"),
        ):
            family = families[metric]
            assert isinstance(family, HistogramMetricFamily)
            histogram = living.histograms[name]
            family.add_metric([self._deployment, str(living.rank)], _cumulative(histogram), histogram.sum_s)


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip(_BOUNDS, histogram.buckets, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
