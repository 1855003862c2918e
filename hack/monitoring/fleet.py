"""The Fleet dashboard: all deployments beside each other."""

from typing import Any

from .panels import BLUE, RED, Query, Row, Series, Stat, Table, build_dashboard, label_variable, sglang
from .panels import PromQueryFormat as Format

WHERE = 'namespace=~"$namespace"'
RATE = "$__rate_interval"


def by_deployment(metric: str) -> str:
    """Return the rate of a counter, summed by deployment."""
    return f"sum by (namespace, deployment) (rate({metric}{{{WHERE}}}[{RATE}]))"


def share(part: str, whole: str) -> str:
    """Return the quotient of two counters' rates, by deployment."""
    return f"{by_deployment(part)} / {by_deployment(whole)}"


def one_row(expr: str) -> Query:
    """Return a query for one column of the table, keyed by namespace/deployment."""
    labelled = f'label_join({expr}, "key", "/", "namespace", "deployment")'
    return Query(labelled, format=Format.TABLE)


CAST_SHARE = share("glm5_decode_cast_seconds_sum", "glm5_decode_step_seconds_sum")
ALERTS = f'ALERTS{{alertname=~"GLM5.*",alertstate="firing",{WHERE}}}'

NOW = Row(
    "Now",
    [
        Stat(
            "Decode throughput",
            "Decode tokens per second of all deployments together.",
            "suffix: tok/s",
            [Query(f"sum(rate(glm5_decode_tokens_total{{{WHERE}}}[{RATE}]))")],
            base=BLUE,
            decimals=1,
            width=6,
        ),
        Stat(
            "Pods",
            "Pods whose exporter is scraped.",
            "none",
            [Query(f"count(glm5_exporter_info{{{WHERE}}})")],
            base=BLUE,
            width=6,
        ),
        Stat(
            "Ranks missing",
            "Ranks that should run and do not report.",
            "none",
            [Query(f"sum(glm5_exporter_expected_ranks{{{WHERE}}}) - sum(glm5_rank_up{{{WHERE}}})")],
            thresholds=[(1, RED)],
            width=6,
        ),
        Stat(
            "Alerts firing",
            "Alerts of this project that fire now.",
            "none",
            [Query(f"count({ALERTS}) or vector(0)")],
            thresholds=[(1, RED)],
            width=6,
        ),
        Table(
            "Deployments",
            "One row a deployment: its speed, what a step costs, how much of it is cast, and its load.",
            "none",
            [
                one_row(by_deployment("glm5_decode_tokens_total")),
                one_row(share("glm5_decode_step_seconds_sum", "glm5_decode_step_seconds_count")),
                one_row(CAST_SHARE),
                one_row(f"sum by (namespace, deployment) (glm5_decode_running_requests{{{WHERE}}})"),
                one_row(f"sum by (namespace, deployment) ({sglang('num_queue_reqs', WHERE)})"),
                one_row(f"max by (namespace, deployment) ({sglang('token_usage', WHERE)})"),
                one_row(f"sum by (namespace, deployment) (glm5_rank_up{{{WHERE}}})"),
            ],
            columns={
                "key": "Deployment",
                "Value #A": "Decode",
                "Value #B": "Step",
                "Value #C": "Cast share",
                "Value #D": "Running",
                "Value #E": "Queued",
                "Value #F": "KV pool in use",
                "Value #G": "Ranks up",
            },
            units={
                "Value #A": "suffix: tok/s",
                "Value #B": "s",
                "Value #C": "percentunit",
                "Value #F": "percentunit",
            },
            join="key",
            height=6,
        ),
    ],
)

TIME = Row(
    "Over time",
    [
        Series(
            "Decode throughput",
            "Decode tokens per second, by deployment.",
            "suffix: tok/s",
            [Query(by_deployment("glm5_decode_tokens_total"), "{{namespace}}/{{deployment}}")],
            width=12,
        ),
        Series(
            "Cast share of the step",
            "Time in casts over time of the forward pass, by deployment. The line is where the alert stands.",
            "percentunit",
            [Query(CAST_SHARE, "{{namespace}}/{{deployment}}")],
            width=12,
            maximum=1,
            limit=0.10,
        ),
        Series(
            "Inter-token latency p99",
            "99 of 100 decode steps follow the one before within this time, by deployment.",
            "s",
            [
                Query(
                    "histogram_quantile(0.99, sum by (namespace, deployment, le)"
                    f' (rate(glm5_decode_interval_seconds_bucket{{{WHERE},rank="0"}}[{RATE}])))',
                    "{{namespace}}/{{deployment}}",
                )
            ],
            width=12,
        ),
        Series(
            "Time to first token p95",
            "95 of 100 requests got their first token within this time, by deployment.",
            "s",
            [
                Query(
                    "histogram_quantile(0.95, sum by (namespace, deployment, le)"
                    f" (rate({sglang('time_to_first_token_seconds_bucket', WHERE)}[{RATE}])))",
                    "{{namespace}}/{{deployment}}",
                )
            ],
            width=12,
        ),
        Series(
            "Running and queued",
            "Requests in decoding and requests waiting, by deployment.",
            "none",
            [
                Query(
                    f"sum by (namespace, deployment) (glm5_decode_running_requests{{{WHERE}}})",
                    "running {{namespace}}/{{deployment}}",
                ),
                Query(
                    f"sum by (namespace, deployment) ({sglang('num_queue_reqs', WHERE)})",
                    "queued {{namespace}}/{{deployment}}",
                ),
            ],
            width=12,
        ),
        Series(
            "KV pool in use",
            "The fullest pod's pool, by deployment. The line is where the alert stands.",
            "percentunit",
            [Query(f"max by (namespace, deployment) ({sglang('token_usage', WHERE)})", "{{namespace}}/{{deployment}}")],
            width=12,
            maximum=1,
            limit=0.95,
        ),
    ],
)

MODES = Row(
    "Modes and alerts",
    [
        Table(
            "Modes in use",
            "How many pods run in which kvCast mode, with which kernel.",
            "none",
            [
                Query(
                    f"count by (namespace, deployment, kv_cast, kernel, sglang, gpu) (glm5_backend_info{{{WHERE}}})",
                    format=Format.TABLE,
                )
            ],
            columns={
                "namespace": "Namespace",
                "deployment": "Deployment",
                "kv_cast": "kvCast",
                "kernel": "Kernel",
                "sglang": "SGLang",
                "gpu": "GPU",
                "Value": "Pods",
            },
            width=12,
        ),
        Table(
            "Alerts firing",
            "Alerts of this project that fire now.",
            "none",
            [Query(ALERTS, format=Format.TABLE)],
            columns={
                "alertname": "Alert",
                "severity": "Severity",
                "namespace": "Namespace",
                "deployment": "Deployment",
            },
            width=12,
        ),
    ],
)


def fleet_dashboard() -> dict[str, Any]:
    """Return the Fleet dashboard's JSON model."""
    return build_dashboard(
        uid="glm5-fleet",
        title="GLM-5 / Fleet",
        description="All GLM5Deployments beside each other: speed, load, cast share, alerts.",
        rows=[NOW, TIME, MODES],
        variables=[label_variable("namespace", "Namespace", "label_values(glm5_exporter_info, namespace)")],
        refresh="30s",
        since="now-3h",
    )
