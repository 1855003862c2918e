"""The one list of the exporter's metrics, from which the exporter, docs/metrics.md and the dashboards are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram", "summary"]
Scope = Literal["rank", "pod", "exporter"]

UNITS = ("seconds", "bytes", "tokens", "tokens/s", "steps", "requests", "ranks", "errors", "1", "unix time in seconds")


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric: its name in Prometheus, kind, unit, description, and labels beside ``deployment``.

    ``scope`` tells what one series stands for: each rank, the pod (read from rank 0), or the exporter itself.
    Raises ValueError if a part of the description is missing or breaks Prometheus' naming conventions.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    scope: Scope
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"glm5_[a-z0-9_]+", self.name):
            raise ValueError(f"metric {self.name!r}: a name is glm5_ and small letters, digits, underscores")
        if self.unit not in UNITS:
            raise ValueError(f"metric {self.name}: unit {self.unit!r} is none of {', '.join(UNITS)}")
        if len(self.help) < 20 or not self.help.endswith("."):
            raise ValueError(f"metric {self.name}: the description must be at least a sentence")
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"metric {self.name}: counters, and only they, end in _total")
        if self.unit in ("seconds", "bytes") and self.unit not in self.name:
            raise ValueError(f"metric {self.name}: the name must hold its unit, {self.unit}")

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Return the names of all labels the exporter puts on the series, ``le`` of histograms excluded."""
        return ("deployment", *(("rank",) if self.scope == "rank" else ()), *self.labels)


DECODE_STEP = Metric(
    "glm5_decode_step_seconds",
    "histogram",
    "seconds",
    "Time of one decode step's forward pass on this rank: GPU time, on a CPU wall time.",
    "rank",
)
DECODE_INTERVAL = Metric(
    "glm5_decode_interval_seconds",
    "histogram",
    "seconds",
    "From the end of one decode step to the end of the next that directly follows; less the step: the host's gap.",
    "rank",
)
DECODE_CAST = Metric(
    "glm5_decode_cast_seconds",
    "histogram",
    "seconds",
    "Time a decode step spends in passes that write converted KV to memory, summed over the layers.",
    "rank",
)
DECODE_ATTENTION = Metric(
    "glm5_decode_attention_seconds",
    "histogram",
    "seconds",
    "Time a decode step spends in attention kernels, casts excluded, summed over the layers.",
    "rank",
)
DECODE_CAST_BYTES = Metric(
    "glm5_decode_cast_bytes_total",
    "counter",
    "bytes",
    "Bytes of converted KV that decode steps wrote to memory.",
    "rank",
)
RANK_LAST_STEP = Metric(
    "glm5_rank_last_step_timestamp_seconds",
    "gauge",
    "unix time in seconds",
    "When this rank's last decode step ended; absent before the first.",
    "rank",
)
RANK_START = Metric(
    "glm5_rank_start_time_seconds",
    "gauge",
    "unix time in seconds",
    "When this rank's process started to count.",
    "rank",
)
RANK_UP = Metric(
    "glm5_rank_up",
    "gauge",
    "1",
    "1 while the rank's heartbeat is fresh (under 10 s old), 0 for one that is expected and dead or not there yet.",
    "rank",
)
DECODE_TOKENS = Metric(
    "glm5_decode_tokens_total",
    "counter",
    "tokens",
    "Tokens that decode steps gave to requests; a request's first token comes from prefill and is not among them.",
    "pod",
)
DECODE_TOKEN_RATE = Metric(
    "glm5_decode_tokens_per_second",
    "gauge",
    "tokens/s",
    "Decode tokens in the last 10 s, divided by 10 s; 0 while idle. For comparisons use the counter.",
    "pod",
)
DECODE_STEPS = Metric(
    "glm5_decode_steps_total",
    "counter",
    "steps",
    "Decode steps, by whether they ran as a CUDA graph (graph is true or false).",
    "pod",
    ("graph",),
)
DECODE_BATCH = Metric(
    "glm5_decode_batch_size",
    "gauge",
    "requests",
    "Requests in a decode step's batch, mean over the last 10 s; 0 while idle.",
    "pod",
)
DECODE_KV_TOKENS = Metric(
    "glm5_decode_kv_tokens",
    "gauge",
    "tokens",
    "KV rows that a decode step's batch has in use, mean over the last 10 s; 0 while idle.",
    "pod",
)
RUNNING_REQUESTS = Metric(
    "glm5_decode_running_requests",
    "gauge",
    "requests",
    "Requests in decoding at the scheduler's last pass.",
    "pod",
)
BACKEND_INFO = Metric(
    "glm5_backend_info",
    "gauge",
    "1",
    "Always 1; the labels say how the KV cache is read, by which kernel, and in which versions.",
    "pod",
    ("kv_cast", "kernel", "version", "sglang", "flashinfer", "torch", "gpu"),
)
BACKEND_VERIFIED = Metric(
    "glm5_backend_verified",
    "gauge",
    "1",
    "1 if the server proved that the attention backend in use is the one configured, else 0.",
    "pod",
)
EXPECTED_RANKS = Metric(
    "glm5_exporter_expected_ranks",
    "gauge",
    "ranks",
    "Ranks that the pod should have, as the exporter was told.",
    "exporter",
)
FILE_ERRORS = Metric(
    "glm5_exporter_file_errors_total",
    "counter",
    "errors",
    "Reads of a rank's file that failed, by reason: damaged, not_a_rank_file, unreadable, version, wrong_rank.",
    "exporter",
    ("reason",),
)
READ_SECONDS = Metric(
    "glm5_exporter_read_seconds", "summary", "seconds", "Time the exporter took to read all ranks' files.", "exporter"
)
EXPORTER_CPU = Metric(
    "glm5_exporter_cpu_seconds_total", "counter", "seconds", "CPU time that the exporter has used.", "exporter"
)
EXPORTER_INFO = Metric(
    "glm5_exporter_info", "gauge", "1", "Always 1; the label tells the exporter's version.", "exporter", ("version",)
)

METRICS: tuple[Metric, ...] = (
    DECODE_STEP,
    DECODE_INTERVAL,
    DECODE_CAST,
    DECODE_ATTENTION,
    DECODE_CAST_BYTES,
    RANK_LAST_STEP,
    RANK_START,
    RANK_UP,
    DECODE_TOKENS,
    DECODE_TOKEN_RATE,
    DECODE_STEPS,
    DECODE_BATCH,
    DECODE_KV_TOKENS,
    RUNNING_REQUESTS,
    BACKEND_INFO,
    BACKEND_VERIFIED,
    EXPECTED_RANKS,
    FILE_ERRORS,
    READ_SECONDS,
    EXPORTER_CPU,
    EXPORTER_INFO,
)
