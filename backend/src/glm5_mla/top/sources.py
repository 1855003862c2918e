"""Where the figures come from: an exporter, the pods through the API server, or Prometheus."""

from __future__ import annotations

import http.client
import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .figures import PodFigures, RankFigures, from_exporter

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_S = 5.0
EXPORTER_PORT = 9408
DEPLOYMENT_LABEL = "glm5.dev/deployment"
_MAX_BYTES = 4 << 20


class SourceError(Exception):
    """The source cannot be read; the message says what to do."""


class Source(Protocol):
    """Something that can be asked for the figures of all pods."""

    @property
    def name(self) -> str:
        """Return where the figures come from, for the title."""

    def read(self) -> list[PodFigures]:
        """Return the figures of every pod. Raises SourceError if nothing can be read at all."""


def _get_json(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read(_MAX_BYTES))
    except urllib.error.HTTPError as error:
        raise SourceError(f"{url} answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SourceError(f"{url} cannot be read: {getattr(error, 'reason', error)}") from error


@dataclass(frozen=True)
class ExporterSource:
    """One exporter, as through ``kubectl port-forward``."""

    url: str

    @property
    def name(self) -> str:
        """Return where the figures come from, for the title."""
        return self.url

    def read(self) -> list[PodFigures]:
        """Return the one pod's figures."""
        try:
            return [from_exporter(_get_json(f"{self.url.rstrip('/')}/v1/decode"), "", "")]
        except (ValueError, AttributeError) as error:
            raise SourceError(f"{self.url} is not an exporter: {error}") from error


@dataclass(frozen=True)
class KubernetesSource:
    """The pods' exporters through the API server's proxy, with the reader's own kubectl and rights."""

    namespace: str | None
    deployment: str | None
    kubectl: str = "kubectl"

    @property
    def name(self) -> str:
        """Return where the figures come from, for the title."""
        return "pods, through the API server"

    def read(self) -> list[PodFigures]:
        """Return the figures of all matching pods that run."""
        selector = f"{DEPLOYMENT_LABEL}={self.deployment}" if self.deployment else DEPLOYMENT_LABEL
        where = ["-n", self.namespace] if self.namespace else ["-A"]
        pods = json.loads(self._kubectl("get", "pods", *where, "-l", selector, "-o", "json"))["items"]
        found = [self._read_pod(pod) for pod in pods if pod["status"].get("phase") == "Running"]
        if not found:
            raise SourceError(
                f"no running pod has the label {selector} {'in ' + self.namespace if self.namespace else ''}"
            )
        return sorted(found, key=lambda pod: (pod.namespace, pod.deployment, pod.pod))

    def _read_pod(self, pod: dict[str, Any]) -> PodFigures:
        metadata = pod["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        path = f"/api/v1/namespaces/{namespace}/pods/{name}:{EXPORTER_PORT}/proxy/v1/decode"
        try:
            return from_exporter(json.loads(self._kubectl("get", "--raw", path)), namespace, name)
        except (SourceError, ValueError, AttributeError) as error:
            return PodFigures(namespace, metadata["labels"][DEPLOYMENT_LABEL], name, {}, error=str(error))

    def _kubectl(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                [self.kubectl, *arguments, f"--request-timeout={TIMEOUT_S:g}s"], capture_output=True, text=True
            )
        except FileNotFoundError as error:
            raise SourceError(
                f"{self.kubectl} is not on the PATH: install it, or use --prometheus URL or --exporter URL"
            ) from error
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise SourceError(f"kubectl: {lines[-1] if lines else f'ended with status {done.returncode}'}")
        return done.stdout


@dataclass(frozen=True)
class PrometheusSource:
    """Rates over the last half minute from Prometheus."""

    url: str
    namespace: str | None
    deployment: str | None
    window: str = "30s"

    @property
    def name(self) -> str:
        """Return where the figures come from, for the title."""
        return f"{self.url}, last {self.window}"

    def read(self) -> list[PodFigures]:
        """Return the figures of every pod whose exporter Prometheus has scraped lately."""
        infos = self._ask("glm5_exporter_info{%s}")
        if not infos:
            raise SourceError(f"{self.url} has no glm5_exporter_info of {self._wanted() or 'any deployment'}")
        backends = {_pod(labels): labels for labels, _ in self._ask("glm5_backend_info{%s}")}
        rate = f"rate(glm5_decode_tokens_total{{%s}}[{self.window}])"
        tokens, batch, kv_tokens, running = (
            self._by_pod(expr)
            for expr in (
                rate,
                "glm5_decode_batch_size{%s}",
                "glm5_decode_kv_tokens{%s}",
                "glm5_decode_running_requests{%s}",
            )
        )
        alive = {(_pod(labels), int(labels["rank"])): value == 1 for labels, value in self._ask("glm5_rank_up{%s}")}
        times = {name: self._means(name) for name in ("step", "interval", "cast", "attention")}
        pods = []
        for key, labels in sorted({_pod(labels): labels for labels, _ in infos}.items()):
            backend = backends.get(key, {})
            names = {"kvCast": "kv_cast", "kernel": "kernel", "sglang": "sglang", "gpu": "gpu"}
            decoding = bool(batch.get(key))
            pods.append(
                PodFigures(
                    namespace=labels.get("namespace", ""),
                    deployment=labels.get("deployment", ""),
                    pod=labels.get("pod", labels.get("instance", "")),
                    backend={ours: backend.get(theirs, "") for ours, theirs in names.items() if backend},
                    tokens_per_second=tokens.get(key),
                    batch=batch.get(key) if decoding else None,
                    kv_tokens=kv_tokens.get(key) if decoding else None,
                    running=int(running[key]) if key in running else None,
                    ranks=tuple(
                        RankFigures(rank, up, **{name: mean.get((pod, rank)) for name, mean in times.items()})
                        for (pod, rank), up in sorted(alive.items())
                        if pod == key
                    ),
                )
            )
        return pods

    def _wanted(self) -> str:
        pairs = (("namespace", self.namespace), ("deployment", self.deployment))
        return ",".join(f"{name}={json.dumps(value)}" for name, value in pairs if value)

    def _ask(self, expression: str) -> list[tuple[dict[str, str], float]]:
        query = urllib.parse.urlencode({"query": expression.replace("%s", self._wanted())})
        answer = _get_json(f"{self.url.rstrip('/')}/api/v1/query?{query}")
        try:
            return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]
        except (KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{self.url} does not answer like Prometheus") from error

    def _by_pod(self, expression: str) -> dict[tuple[str, ...], float]:
        return {_pod(labels): value for labels, value in self._ask(expression)}

    def _means(self, name: str) -> dict[tuple[tuple[str, ...], int], float]:
        metric = f"glm5_decode_{name}_seconds"
        expression = f"rate({metric}_sum{{%s}}[{self.window}]) / (rate({metric}_count{{%s}}[{self.window}]) > 0)"
        return {(_pod(labels), int(labels["rank"])): value for labels, value in self._ask(expression)}


def _pod(labels: dict[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in ("namespace", "deployment", "pod", "instance"))


def choose(*, prometheus: str | None, exporter: str | None, namespace: str | None, deployment: str | None) -> Source:
    """Return the source that the command line asks for; without a URL it is the cluster that kubectl points at."""
    if exporter:
        return ExporterSource(exporter)
    if prometheus:
        return PrometheusSource(prometheus, namespace, deployment)
    return KubernetesSource(namespace, deployment)


def matching(pods: Sequence[PodFigures], deployment: str | None) -> list[PodFigures]:
    """Return the pods of the asked-for deployment; an exporter asked directly knows one only."""
    return [pod for pod in pods if deployment in (None, pod.deployment)]
