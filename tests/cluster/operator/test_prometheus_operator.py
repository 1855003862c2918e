"""The operator of Prometheus, the real one, takes what we make for it: its configuration runs in a real Prometheus.

The control plane has no node, so the test puts the pod's address into its status, as a kubelet would.
"""

import base64
import gzip
import json
import os
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml
from harness import eventually
from objects import glm5

from cluster import build
from cluster.layout import layout

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts/glm5-operator"
NAME = "all"
RULES = [
    rule
    for group in yaml.safe_load((CHART / "rules/glm5.yaml").read_text())["groups"]
    for rule in group["rules"]
]  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def programs():
    """The folders of the Prometheus operator and of the cluster's programs, Prometheus' own among them."""
    control_plane = layout("control-plane")
    prometheus = build.build(control_plane, ["helm", "prometheus", "promtool"])
    return build.build_prometheus_operator(control_plane), prometheus


@pytest.fixture
def crds(kubectl, programs):
    """The CRDs that the Prometheus operator comes with."""
    folder = programs[0] / "crds"
    kubectl.run("apply", "--server-side", "-f", str(folder))
    kubectl.run("wait", "--for=condition=Established", "-f", str(folder), "--timeout=30s")
    yield
    kubectl.run("delete", "-f", str(folder), "--ignore-not-found")


@pytest.fixture
def prometheus_operator(kubectl, programs, crds, namespace, tmp_path):
    """The Prometheus operator at work on the test's namespace."""
    command = [programs[0] / "prometheus-operator", f"--namespaces={namespace}"]
    command.append(f"--web.listen-address=127.0.0.1:{free_port()}")
    with (tmp_path / "prometheus-operator.log").open("wb") as log:
        process = subprocess.Popen(command, env=kubectl.environment, stdout=log, stderr=log)
    yield tmp_path / "prometheus-operator.log"
    process.terminate()
    assert process.wait(60) == 0


def from_chart(kubectl, namespace: str, *templates: str) -> str:
    """What the chart makes in a cluster that has the API of the Prometheus operator."""
    shown = [argument for name in templates for argument in ("-s", f"templates/{name}.yaml")]
    api = ["--api-versions", "monitoring.coreos.com/v1", "--kube-version", "1.35.0"]
    command = ["helm", "template", "glm5-operator", str(CHART), "-n", namespace, *api, *shown]
    return subprocess.run(command, env=kubectl.environment, capture_output=True, text=True, check=True).stdout


def give_address(kubectl, namespace: str) -> str:
    """Do for the deployment's pod what a kubelet does once it runs; the pod's name."""

    def pods() -> list:
        return kubectl.get("pods", "-n", namespace, "-l", "glm5.dev/deployment=glm5")["items"]

    name = eventually(pods, "the deployment's pod", 60)[0]["metadata"]["name"]
    status = {"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    patch = ("patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    kubectl.run(*patch)
    return name


@pytest.fixture
def configuration(kubectl, namespace, prometheus_operator, start_operator, tmp_path):
    """The file that the Prometheus operator made of our objects, with paths to its rules and to credentials."""
    # The API server tells of a new API some seconds after it serves it; the next sweep finds it.
    start_operator(GLM5_OPERATOR_SWEEP_SECONDS="5")
    kubectl.run("apply", "-f", "-", text=glm5(namespace))
    kubectl.run("apply", "-n", namespace, "-f", "-", text=from_chart(kubectl, namespace, "rules", "podmonitor"))
    selectors = {"podMonitorSelector": {}, "ruleSelector": {}}
    prometheus = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Prometheus",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {"replicas": 1, "evaluationInterval": "1s", **selectors},
    }
    kubectl.apply([prometheus])

    def generated() -> tuple[str, dict]:
        secret = kubectl.get("secret", f"prometheus-{NAME}", "-n", namespace)
        text = gzip.decompress(base64.b64decode(secret["data"]["prometheus.yaml.gz"])).decode()
        rules = kubectl.get("configmap", f"prometheus-{NAME}-rulefiles-0", "-n", namespace)["data"]
        assert "/glm5/" in text, "our operator's PodMonitor"
        assert "/glm5-operator/" in text, "the chart's PodMonitor"
        return text, rules

    try:
        text, rules = eventually(generated, "a configuration of all our objects", 120)
    except BaseException:
        print(prometheus_operator.read_text()[-4000:])
        raise
    # What the container beside Prometheus puts in from its environment.
    value = yaml.safe_load(text.replace("$(SHARD)", "0").replace("$(POD_NAME)", f"prometheus-{NAME}-0"))
    for name, content in rules.items():
        (tmp_path / name).write_text(content)
    value["rule_files"] = [str(tmp_path / name) for name in rules]
    for job in value["scrape_configs"]:
        for discovery in job["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = str(kubectl.kubeconfig)
    path = tmp_path / "prometheus.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


@pytest.fixture
def ask(configuration, programs, tmp_path):
    """A real Prometheus that runs with the configuration, asked by a path of its API."""
    port = free_port()
    command = [
        programs[1] / "prometheus",
        f"--config.file={configuration}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ, stdout=log, stderr=log)

    def ask(path: str):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=20) as answer:
            return json.load(answer)["data"]

    eventually(lambda: ask("status/buildinfo"), f"Prometheus answers: {tmp_path / 'prometheus.log'}", 60)
    yield ask
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.timeout(900)
def test_its_configuration_of_our_objects_finds_the_pod_and_loads_every_rule(
    kubectl, namespace, programs, configuration, ask
):
    check = subprocess.run([programs[1] / "promtool", "check", "config", configuration], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr
    assert f"{len(RULES)} rules found" in check.stdout

    name = give_address(kubectl, namespace)
    jobs = {f"podMonitor/{namespace}/glm5/0", f"podMonitor/{namespace}/glm5/1"}

    def targets() -> dict[str, dict]:
        found = {target["scrapePool"]: target for target in ask("targets?state=active")["activeTargets"]}
        return found if set(found) == jobs else {}

    exporter, server = (target for _, target in sorted(eventually(targets, "the pod's two targets", 60).items()))
    common = {"namespace": namespace, "pod": name, "job": f"{namespace}/glm5"}
    assert exporter["scrapeUrl"] == "http://127.0.0.1:9408/metrics"
    assert exporter["scrapeInterval"] == "5s"
    assert common.items() <= exporter["labels"].items()
    assert exporter["labels"]["container"] == "exporter"
    assert server["scrapeUrl"] == "http://127.0.0.1:30000/metrics"
    assert server["scrapeInterval"] == "15s"
    assert (common | {"deployment": "glm5", "container": "server"}).items() <= server["labels"].items()

    def loaded() -> list[dict]:
        rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] == "ok" for rule in rules) else []

    rules = eventually(loaded, "every rule evaluated without an error", 60)
    assert sorted(rule["name"] for rule in rules) == sorted(rule.get("alert") or rule["record"] for rule in RULES)
