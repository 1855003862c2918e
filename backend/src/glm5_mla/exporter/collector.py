"""From the ranks' files to a page for Prometheus: read anew at each scrape, nothing is kept in between."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from glm5_mla import __version__

from . import metrics
from .text import Page

if TYPE_CHECKING:
    from .ranks import RunDirectory

_HISTOGRAMS = (
    (metrics.DECODE_STEP, "step"),
    (metrics.DECODE_INTERVAL, "interval"),
    (metrics.DECODE_CAST, "cast"),
    (metrics.DECODE_ATTENTION, "attention"),
)


class RankCollector:
    """Collects every metric of the list; one that has nothing to say has no series, never an old one."""

    def __init__(self, run_directory: RunDirectory, deployment: str) -> None:
        self._run_directory = run_directory
        self._deployment = deployment
        self._reads = 0
        self._read_seconds = 0.0

    def collect(self) -> bytes:
        """Read all ranks and return the page that a scrape gets."""
        start = time.perf_counter()
        ranks = self._run_directory.read()
        self._read_seconds += time.perf_counter() - start
        self._reads += 1

        page = Page(metrics.METRICS, self._deployment)
        for number, living in ranks:
            rank = str(number)
            page.put(metrics.RANK_UP, 1 if living else 0, rank)
            if living:
                for metric, name in _HISTOGRAMS:
                    page.put_histogram(metric, living.histograms[name], rank)
                page.put(metrics.DECODE_CAST_BYTES, living.cast_bytes, rank)
                page.put(metrics.RANK_START, living.start_time_s, rank)
                if living.last_step_end_s is not None:
                    page.put(metrics.RANK_LAST_STEP, living.last_step_end_s, rank)

        rank0 = next((living for number, living in ranks if number == 0), None)
        if rank0:
            page.put(metrics.DECODE_TOKENS, rank0.decode_tokens)
            page.put(metrics.DECODE_TOKEN_RATE, rank0.window.tokens_per_second)
            page.put(metrics.DECODE_STEPS, rank0.graph_steps, "true")
            page.put(metrics.DECODE_STEPS, rank0.eager_steps, "false")
            page.put(metrics.DECODE_BATCH, rank0.window.batch or 0)
            page.put(metrics.DECODE_KV_TOKENS, rank0.window.kv_tokens or 0)
            page.put(metrics.RUNNING_REQUESTS, rank0.running_requests)
            info = asdict(rank0.info)
            page.put(metrics.BACKEND_INFO, 1, *(info[label] for label in metrics.BACKEND_INFO.labels))
            page.put(metrics.BACKEND_VERIFIED, 1 if rank0.info.verified else 0)

        page.put(metrics.EXPECTED_RANKS, self._run_directory.expected_ranks(rank0))
        for reason, count in sorted(self._run_directory.errors.items()):
            page.put(metrics.FILE_ERRORS, count, reason)
        page.put_summary(metrics.READ_SECONDS, self._read_seconds, self._reads)
        page.put(metrics.EXPORTER_CPU, time.process_time())
        page.put(metrics.EXPORTER_INFO, 1, __version__)
        return page.encode()
