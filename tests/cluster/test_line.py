"""The whole line: a GLM5Deployment becomes a pod that answers, and its decode figures arrive in Prometheus."""

import copy
import json
import time

import pytest
import yaml
from openai import OpenAI

from demo.deployment import condition, explain, set_kv_cast, wait_ready
from demo.names import DEPLOYMENT, MODES, SAMPLE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

READY_SECONDS = 300
PROMPT = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture(scope="module")
def sample():
    return yaml.safe_load(SAMPLE.read_text())


@pytest.fixture(scope="module")
def modes(line, sample):
    """Each kvCast mode in turn on one object: the same short load, measured by the client and by Prometheus."""
    line.apply(sample)
    measured = {}
    for mode in MODES:
        set_kv_cast(line.kubectl, line.namespace, DEPLOYMENT, mode)
        wait_ready(line.kubectl, line.namespace, DEPLOYMENT, timeout=READY_SECONDS)
        measured[mode] = line.measure(DEPLOYMENT, requests=4, tokens=12)
    return measured


@pytest.fixture
def served(line, modes):
    """The object's URL on this machine, with its last mode, Never, in force."""
    with line.forwarded(DEPLOYMENT, 30000) as url:
        yield url


@pytest.fixture
def variant(line, sample):
    """Make the sample with another name and other fields; the object that exists is stopped meanwhile to free GPUs."""
    made = []

    def make(name, change):
        value = copy.deepcopy(sample)
        value["metadata"]["name"] = name
        change(value["spec"])
        line.apply(value)
        made.append(name)
        return name

    line.delete(DEPLOYMENT)
    yield make
    for name in made:
        line.delete(name)


def wait_for_condition(line, name, kind, status, *, seconds=180):
    """Wait until a condition has this status, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        value = line.get(name)
        found = condition(value, kind)
        if found.get("status") == status and found.get("observedGeneration") == value["metadata"]["generation"]:
            return found
        assert time.monotonic() < deadline, f"{kind} of {name} is not {status} after {seconds} s: {explain(value)}"
        time.sleep(1)


def test_all_three_modes_give_the_same_tokens(modes):
    outputs = {mode: measured.outputs for mode, measured in modes.items()}
    assert [len(output) for output in outputs["WholePool"]] == [12] * 4
    assert outputs["ActiveRows"] == outputs["WholePool"]
    assert outputs["Never"] == outputs["WholePool"]


def test_casting_the_whole_pool_takes_over_half_of_a_step(modes):
    assert modes["WholePool"].figures.cast_share > 0.5


def test_never_casts_nothing(modes):
    assert modes["Never"].spent.cast_seconds == 0


def test_prometheus_counts_the_decode_tokens_that_the_client_counts_in_each_mode(modes):
    for mode, measured in modes.items():
        assert measured.spent.tokens == measured.client_decode_tokens, mode


def test_prometheus_counts_the_decode_tokens_of_a_long_run_exactly(line, modes):
    measured = line.measure(DEPLOYMENT, requests=4, tokens=150)
    assert measured.client_decode_tokens == 4 * 149
    assert measured.spent.tokens == measured.client_decode_tokens


def test_sglangs_own_series_carry_the_deployment_namespace_and_pod(line, modes):
    series = line.prometheus.query(
        f'sglang:num_requests_total{{namespace="{line.namespace}",deployment="{DEPLOYMENT}"}}'
    )
    assert series
    assert {labels["container"] for labels, _ in series} == {"server"}


def test_our_series_keep_their_own_deployment_label(line, modes):
    series = line.prometheus.query(f'glm5_backend_info{{namespace="{line.namespace}",kv_cast="Never"}}')
    assert [labels["deployment"] for labels, _ in series] == [DEPLOYMENT]
    assert "exported_deployment" not in series[0][0]


def test_the_operators_own_metrics_are_scraped(line, modes):
    assert line.prometheus.value('sum(glm5_operator_reconcile_total{namespace="glm5-system"})') > 0


def test_chat_completions_answer(served):
    client = OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(model=DEPLOYMENT, messages=PROMPT, max_tokens=8, temperature=0)
    assert answer.usage.completion_tokens == 8
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content


def test_chat_completions_stream_the_same_text(served):
    client = OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0)
    whole = client.chat.completions.create(model=DEPLOYMENT, messages=PROMPT, max_tokens=24, temperature=0)
    stream = client.chat.completions.create(
        model=DEPLOYMENT, messages=PROMPT, max_tokens=24, temperature=0, stream=True
    )
    pieces = [choice.delta.content for chunk in stream for choice in chunk.choices if choice.delta.content]
    assert len(pieces) > 1
    assert "".join(pieces) == whole.choices[0].message.content


def test_the_model_is_listed_under_the_objects_name(served):
    client = OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == [DEPLOYMENT]


def test_kubectl_get_agrees_with_prometheus(line, modes):
    line.kubectl.run("wait", "glm5", DEPLOYMENT, "-n", line.namespace, "--for=condition=Available", "--timeout=30s")
    row = line.kubectl.run("get", "glm5", DEPLOYMENT, "-n", line.namespace).splitlines()[1].split()
    assert row[:3] == [DEPLOYMENT, "1/1", "Never"]
    said = line.get(DEPLOYMENT)["status"]["backend"]
    [(labels, _)] = line.prometheus.query(f'glm5_backend_info{{namespace="{line.namespace}"}}')
    assert (said["kvCast"], said["kernel"], said["sglang"]) == (labels["kv_cast"], labels["kernel"], labels["sglang"])


def test_a_deleted_object_takes_its_children_with_it(line, modes):
    line.delete(DEPLOYMENT)
    chosen = ("-n", line.namespace, "-l", f"glm5.dev/deployment={DEPLOYMENT}")
    for kind in ("deployments", "services", "replicasets", "pods"):
        line.kubectl.run("wait", kind, *chosen, "--for=delete", "--timeout=60s", timeout=70)
        assert line.kubectl.get(kind, *chosen)["items"] == []


BAD = {
    "two sources": (
        {"model": {"source": {"persistentVolumeClaim": {"claimName": "x"}, "image": {"reference": "a/b:c"}}}},
        ["spec.model.source", "exactly one"],
    ),
    "no source": ({"model": {"source": {}}}, ["spec.model.source", "exactly one"]),
    "a negative count": ({"gpus": {"count": -1}}, ["spec.gpus.count", "greater than or equal to"]),
    "a cast of a BF16 cache": (
        {"attention": {"kvCast": "ActiveRows"}, "kvCache": {"dtype": "bfloat16"}},
        ["kvCast", "Never"],
    ),
    "an unknown field": ({"kvCash": {}}, ["kvCash"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_the_api_server_with_field_and_remedy(line, sample, case):
    changes, words = BAD[case]
    value = copy.deepcopy(sample)
    value["metadata"]["name"] = "bad"
    value["spec"].update(changes)
    done = line.kubectl.try_run("apply", "-n", line.namespace, "-f", "-", text=json.dumps(value))
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr


def test_a_missing_claim_shows_in_a_condition_that_names_it(line, variant):
    def change(spec):
        spec["model"]["source"]["persistentVolumeClaim"]["claimName"] = "no-such-claim"

    name = variant("no-claim", change)
    found = wait_for_condition(line, name, "Available", "False")
    assert "no-such-claim" in explain(line.get(name))
    assert found["message"]


def test_a_server_that_does_not_use_our_backend_refuses_and_the_status_says_so(line, variant):
    # SGLang's own switch for plugins leaves ours out: it would then serve with a backend that casts the whole pool.
    name = variant("unverified", lambda spec: spec["server"].update(env=[{"name": "SGLANG_PLUGINS", "value": "none"}]))
    found = wait_for_condition(line, name, "BackendVerified", "False")
    assert found["reason"] == "BackendNotInPlace"
    assert "SGLANG_PLUGINS" in found["message"]
    assert line.get(name)["status"]["readyReplicas"] == 0


def test_two_tensor_parallel_ranks_serve_and_both_report(line, variant):
    def change(spec):
        spec["gpus"]["tensorParallelSize"] = 2
        spec["attention"]["kvCast"] = "Never"
        spec["kvCache"]["maxTokens"] = 20000

    name = variant("two-ranks", change)
    wait_ready(line.kubectl, line.namespace, name, timeout=READY_SECONDS)
    measured = line.measure(name, requests=2, tokens=10)
    assert measured.spent.tokens == measured.client_decode_tokens == 18
    series = line.prometheus.query(
        f'glm5_decode_step_seconds_count{{namespace="{line.namespace}",deployment="{name}"}} > 0'
    )
    assert {labels["rank"] for labels, _ in series} == {"0", "1"}
