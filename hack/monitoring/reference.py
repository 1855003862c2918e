"""docs/metrics.md, from the exporter's list of metrics."""

from collections.abc import Iterable

from glm5_mla.exporter.metrics import METRICS, Metric
from glm5_mla.exporter.ranks import WINDOW_S
from glm5_mla.timing.rankfile import BUCKET_BOUNDS_NS, DEAD_AFTER_S

HEAD = """\
<!-- Made by `make generate` from backend/src/glm5_mla/exporter/metrics.py: change it there. -->
# Metrics

Each pod of a GLM5Deployment has two places to scrape: port `metrics` (9408), where the exporter beside the server
serves the series below, and port `http` (30000), where SGLang serves its own (`sglang:...`). The exporter reads the
files that the server's ranks write and keeps nothing itself, so that its restart loses nothing.

All series of the exporter carry `deployment`, the name of the GLM5Deployment; `namespace` and `pod` come from the
scrape.
"""

SECTIONS = {
    "rank": """\
## Of each rank (label `rank`)

One series a rank, that is a GPU. Histograms have buckets from {low:g} us to {high:g} s; up to 1 s neighbours are a
factor of about 1.6 apart, so that a quantile is right to a fifth or so, while `_sum` over `_count` is exact.
""",
    "pod": """\
## Of each pod (from rank 0)

All ranks see the same requests, so these are given once; a sum over pods counts every token once.
""",
    "exporter": """\
## Of the exporter itself
""",
}

TAIL = """\
## What to know when you use them

- A *cast* is a pass of its own that writes converted KV to memory; conversion in a kernel's registers counts as
  attention. A *step* is the GPU time of one decode forward (on a CPU: its wall time). The *interval* runs from one
  step's end to the end of the next one that directly follows, so that pauses without work are not in it. Host gap =
  interval - step.
- Counters and histograms begin at zero when a rank starts. A rank that dies takes its series with it after {dead:g}
  s: no old value is shown as if it were fresh. `glm5_rank_up` tells which ranks are missing.
- Gauges over the last {window:g} s are for people. To compare with a client's own count take the difference of
  `glm5_decode_tokens_total` over the run: it equals the output tokens less one a request, exactly.
- Windows are cut on the machine's monotonic clock; a jump of the wall clock moves nothing but the two timestamps.
- `sum(rate(glm5_decode_cast_seconds_sum[1m])) / sum(rate(glm5_decode_step_seconds_sum[1m]))` is the cast share.

## From SGLang

The dashboards and alerts also use these of SGLang's own: `sglang:num_queue_reqs`, `sglang:token_usage` and
`sglang:spec_accept_length` (gauges that SGLang renews every 40 decode steps), `sglang:time_to_first_token_seconds` and
`sglang:e2e_request_latency_seconds` (histograms, a value a request), `sglang:num_requests_total`,
`sglang:num_aborted_requests_total`, `sglang:num_retracted_requests_total` and `sglang:http_responses_total`.

A Prometheus of version 2 stores them as `sglang_...`, because SGLang's client library writes an underscore for the
colon in the format that it negotiates; dashboards and alerts ask for both names. SGLang renders its page inside the
server's own event loop: do not scrape it more often than every 15 s.
"""


def _table(metrics: Iterable[Metric]) -> str:
    lines = ["| metric | type | unit | labels | what it is |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


def metrics_reference() -> str:
    """Return docs/metrics.md."""
    values = {
        "low": BUCKET_BOUNDS_NS[0] / 1e3,
        "high": BUCKET_BOUNDS_NS[-1] / 1e9,
        "dead": DEAD_AFTER_S,
        "window": WINDOW_S,
    }
    parts = [HEAD]
    for scope, text in SECTIONS.items():
        parts += [text.format(**values), _table(metric for metric in METRICS if metric.scope == scope)]
    return "\n".join([*parts, TAIL.format(**values)])
