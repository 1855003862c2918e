"""The Helm chart: what it renders is accepted by the API server, and wrong values are refused with their name."""

import subprocess
from pathlib import Path

import pytest
import yaml
from harness import eventually

CHART = Path(__file__).resolve().parents[3] / "charts" / "glm5-operator"


@pytest.fixture
def helm(kubectl):
    def run(*arguments):
        command = ["helm", "template", "glm5-operator", str(CHART), "--kube-version", "1.35.0", *arguments]
        return subprocess.run(command, env=kubectl.environment, capture_output=True, text=True, check=False)

    return run


def rendered(helm, *arguments):
    done = helm(*arguments)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("replicas=2", "replicas"),
        ("allowHostPath=maybe", "allowHostPath"),
        ("image.digest=latest", "digest"),
        ("monitoring.podMonitor=perhaps", "podMonitor"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm, value, words):
    done = helm("--set", value)
    assert done.returncode != 0
    assert words in done.stderr


def test_what_it_renders_is_accepted_by_the_api_server(kubectl, namespace, helm):
    documents = rendered(helm, "--namespace", namespace, "--set", "crds.install=false")
    text = yaml.safe_dump_all(documents)
    kubectl.run("apply", "--dry-run=server", "-n", namespace, "-f", "-", text=text)


def test_the_operators_pod_meets_the_restricted_standard(kubectl, namespace, helm):
    kubectl.run("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    documents = rendered(helm, "--namespace", namespace, "--set", "crds.install=false")
    for document in of_kind(documents, "ServiceAccount") + of_kind(documents, "Deployment"):
        kubectl.run("apply", "-n", namespace, "-f", "-", text=yaml.safe_dump(document))
    chosen = ("replicaset", "-n", namespace, "-l", "app.kubernetes.io/name=glm5-operator")
    # A controller manager that has just started makes the replica set late, which kubectl wait would not await.
    eventually(
        lambda: [each["status"]["replicas"] for each in kubectl.get(*chosen)["items"]] == [1],
        "the operator's pod is admitted",
        seconds=60,
    )


def test_it_asks_for_no_right_over_secrets_and_none_to_write_specs(helm):
    documents = rendered(helm)
    rules = [rule for kind in ("Role", "ClusterRole") for role in of_kind(documents, kind) for rule in role["rules"]]
    own = [
        rule
        for role in of_kind(documents, "ClusterRole")
        if role["metadata"]["name"] == "glm5-operator"
        for rule in role["rules"]
    ]
    assert own
    assert not [rule for rule in rules if "secrets" in rule["resources"] or "*" in rule["resources"] + rule["verbs"]]
    writes = [rule["verbs"] for rule in own if rule["resources"] == ["glm5deployments"]]
    assert writes == [["get", "list", "watch"]]


def test_named_namespaces_are_all_that_it_gets_rights_over(helm):
    documents = rendered(helm, "--set", "watchNamespaces={models,lab}")
    roles = of_kind(documents, "Role")
    assert {role["metadata"]["namespace"] for role in roles if role["metadata"]["name"] == "glm5-operator"} == {
        "models",
        "lab",
    }
    assert [role for role in of_kind(documents, "ClusterRole") if role["metadata"]["name"] == "glm5-operator"] == []


def test_the_definition_is_upgraded_with_the_chart_and_kept_on_uninstall(helm):
    definition = of_kind(rendered(helm), "CustomResourceDefinition")[0]
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not (CHART / "crds").exists()
