"""Questions to the demo's Prometheus, through the API server: the host needs no way to any pod."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from cluster.kubectl import Kubectl
from cluster.progress import Failure, wait_until

PROXY = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy"


@dataclass(frozen=True)
class Prometheus:
    """The Prometheus in the namespace `monitoring` of a cluster."""

    kubectl: Kubectl

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Evaluate a PromQL expression now; its series as (labels, value). Raises Failure with Prometheus' words."""
        answer = json.loads(self.kubectl.run("get", "--raw", f"{PROXY}/api/v1/query?query={quote(expression)}"))
        if answer["status"] != "success":
            raise Failure(f"Prometheus refuses {expression}: {answer['error']}")
        return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]

    def value(self, expression: str) -> float | None:
        """Return the one value of an expression, None without a series. Raises Failure when there are several."""
        series = self.query(expression)
        if len(series) > 1:
            raise Failure(f"{expression} has {len(series)} series where one was expected: {[s[0] for s in series]}")
        return series[0][1] if series else None

    def wait_for(self, what: str, expression: str, fits: Callable[[float], bool], *, timeout: float) -> float:
        """Wait until the expression's one value fits, and return it. Raises Failure with the last value seen."""
        seen: list[float | None] = [None]

        def check() -> bool:
            seen[0] = self.value(expression)
            return seen[0] is not None and fits(seen[0])

        try:
            wait_until(what, check, timeout=timeout, hint="", every=1)
        except Failure:
            raise Failure(f"{what}: not so after {timeout:.0f} s; Prometheus has {seen[0]} for {expression}.") from None
        value = seen[0]
        assert value is not None
        return value
