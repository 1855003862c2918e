"""One measured load: what the client counted and what Prometheus counted meanwhile."""

import time
from dataclasses import dataclass

from cluster.kubectl import Kubectl
from cluster.progress import Failure

from . import jobs
from .deployment import pod_name
from .figures import Counters, Figures, figures, read
from .names import LOAD
from .prometheus import Prometheus

SETTLED_SECONDS = 2.5  # longer than the exporter's reading and a scrape apart
RESTLESS_SECONDS = 120


@dataclass(frozen=True)
class Measured:
    """The token ids that the server returned for each request, and the counters' differences in Prometheus."""

    outputs: list[list[int]]
    spent: Counters

    @property
    def client_decode_tokens(self) -> int:
        """Tokens that decode steps must have given: a request's first token comes from prefill."""
        return sum(len(output) - 1 for output in self.outputs)

    @property
    def figures(self) -> Figures:
        """The row of the table."""
        return figures(self.spent)


def load_job(name: str, namespace: str, deployment: str, *, image: str, requests: int, tokens: int) -> list[dict]:
    """Objects of a job that sends `requests` requests of `tokens` tokens to a deployment's Service."""
    url = f"http://{deployment}.{namespace}.svc:30000"
    command = ["python3", f"/script/{LOAD.name}", url, str(requests), str(tokens)]
    return jobs.job(name, namespace, image=image, command=command, script=LOAD)


def measure(
    kubectl: Kubectl,
    prometheus: Prometheus,
    *,
    namespace: str,
    deployment: str,
    image: str,
    requests: int,
    tokens: int,
    timeout: float = 300,
) -> Measured:
    """Send a load from a pod and read the deployment's counters before and after from Prometheus. Raises Failure."""
    pod = pod_name(kubectl, namespace, deployment)
    counter = f'glm5_decode_tokens_total{{namespace="{namespace}",pod="{pod}"}}'
    prometheus.wait_for(f"Prometheus to know {pod}", counter, lambda _: True, timeout=60)
    before = settled(prometheus, namespace=namespace, pod=pod)
    name = f"load-{deployment}"
    jobs.start(kubectl, load_job(name, namespace, deployment, image=image, requests=requests, tokens=tokens))
    outputs = jobs.outcome(jobs.finish(kubectl, name, namespace, timeout=timeout))["outputs"]
    after = settled(prometheus, namespace=namespace, pod=pod)
    return Measured(outputs, after - before)


def settled(prometheus: Prometheus, *, namespace: str, pod: str) -> Counters:
    """Read a pod's counters once they no longer move: what has happened before this call is in them.

    Raises Failure when they do not come to rest.
    """
    time.sleep(SETTLED_SECONDS)
    seen = read(prometheus, namespace=namespace, pod=pod)
    end = time.monotonic() + RESTLESS_SECONDS
    while time.monotonic() < end:
        time.sleep(SETTLED_SECONDS)
        again = read(prometheus, namespace=namespace, pod=pod)
        if again == seen:
            return again
        seen = again
    raise Failure(f"The counters of pod {pod} do not come to rest: something else sends it requests. End that first.")
