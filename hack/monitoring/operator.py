"""The Operator dashboard: whether the operator keeps up."""

from typing import Any

from .panels import BLUE, GREEN, ORANGE, RED, Query, Row, Series, Stat, Table, build_dashboard
from .panels import PromQueryFormat as Format

RATE = "$__rate_interval"


def quantiles(histogram: str) -> list[Query]:
    """Return p50 and p99 of one of the operator's histograms."""
    return [
        Query(f"histogram_quantile({q / 100}, sum by (le) (rate({histogram}_bucket[{RATE}])))", f"p{q}")
        for q in (50, 99)
    ]


NOW = Row(
    "Now",
    [
        Stat(
            "Leaders",
            "Operator processes that act. It should be exactly one.",
            "none",
            [Query("sum(glm5_operator_leader)")],
            base=RED,
            thresholds=[(1, GREEN), (2, RED)],
            width=6,
        ),
        Stat(
            "GLM5Deployments",
            "Objects that the operator looks after.",
            "none",
            [Query("sum(glm5_operator_deployments)")],
            base=BLUE,
            width=6,
        ),
        Stat(
            "Available",
            "Objects of which at least one pod answers.",
            "none",
            [Query("sum(glm5_deployment_available)")],
            base=BLUE,
            width=6,
        ),
        Stat(
            "Failed passes",
            "Passes over an object that ended in an error, in the last hour.",
            "none",
            [Query('sum(increase(glm5_operator_reconcile_total{result="error"}[1h])) or vector(0)')],
            thresholds=[(1, ORANGE), (10, RED)],
            decimals=0,
            width=6,
        ),
    ],
)

WORK = Row(
    "Work",
    [
        Series(
            "Objects by state",
            "GLM5Deployments by the one-word state that `kubectl get glm5` shows.",
            "none",
            [Query("sum by (state) (glm5_operator_deployments)", "{{state}}")],
            stacked=True,
        ),
        Series(
            "Passes",
            "Passes over an object, per second, by result. In a quiet cluster nearly all are unchanged.",
            "suffix: passes/s",
            [Query(f"sum by (result) (rate(glm5_operator_reconcile_total[{RATE}]))", "{{result}}")],
            colors={"error": RED},
        ),
        Series(
            "Time of a pass",
            "How long one pass over an object takes, answers of the API server included.",
            "s",
            quantiles("glm5_operator_reconcile_seconds"),
        ),
        Series(
            "Queue",
            "Objects that wait for a pass. It should fall back to 0 at once.",
            "none",
            [Query("sum(glm5_operator_queue_depth)", "waiting")],
            at_least=5,
        ),
        Series(
            "Wait in the queue",
            "Time from an event until the pass over its object starts.",
            "s",
            quantiles("glm5_operator_queue_seconds"),
        ),
        Series(
            "Requests to the API server",
            "By method and HTTP code, per second; code 0 means no answer. Watches are not counted.",
            "reqps",
            [Query(f"sum by (method, code) (rate(glm5_operator_api_requests_total[{RATE}]))", "{{method}} {{code}}")],
        ),
        Series(
            "Reads of decode figures",
            "Reads of the pods' exporters, per second, by result. Without them status.decode stays empty.",
            "suffix: reads/s",
            [Query(f"sum by (result) (rate(glm5_operator_decode_reads_total[{RATE}]))", "{{result}}")],
            colors={"error": RED, "invalid": ORANGE},
        ),
        Table(
            "Conditions that do not hold",
            "Conditions of GLM5Deployments that are not True; `kubectl describe glm5` gives reason and remedy.",
            "none",
            [
                Query(
                    'glm5_deployment_condition{type!~"Degraded|Progressing",status!="True"} == 1',
                    format=Format.TABLE,
                )
            ],
            columns={
                "namespace": "Namespace",
                "deployment": "Deployment",
                "type": "Condition",
                "status": "Status",
            },
            width=16,
        ),
    ],
)


def operator_dashboard() -> dict[str, Any]:
    """Return the Operator dashboard's JSON model."""
    return build_dashboard(
        uid="glm5-operator",
        title="GLM-5 / Operator",
        description="Whether the operator keeps up: passes, errors, its queue, its requests to the API server.",
        rows=[NOW, WORK],
        variables=[],
        refresh="30s",
        since="now-3h",
    )
