"""The pod that an object becomes."""

import pytest
from builders import context

from glm5_operator.resources.arguments import sglang_arguments
from glm5_operator.resources.deployment import build_deployment as build
from glm5_operator.resources.pod_template import merged_pod_template


def build_deployment(made):
    return build(made, merged_pod_template(made)[0])


def pod_of(extra=None, **settings):
    return build_deployment(context(extra, **settings))["spec"]["template"]["spec"]


def server_of(extra=None, **settings):
    return pod_of(extra, **settings)["containers"][0]


def environment(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def option(arguments, flag):
    return arguments[arguments.index(flag) + 1]


def test_defaults_become_these_sglang_arguments():
    assert sglang_arguments(context()) == [
        *("--model-path", "/models/model"),
        *("--served-model-name", "glm5"),
        *("--tp-size", "8"),
        *("--kv-cache-dtype", "fp8_e4m3"),
        *("--attention-backend", "flashinfer"),
        *("--json-model-override-args", '{"architectures":["DeepseekV2ForCausalLM"]}'),
        *("--host", "0.0.0.0"),
        *("--port", "30000"),
        "--enable-metrics",
        *("--tool-call-parser", "glm47"),
        *("--reasoning-parser", "glm45"),
    ]


def test_sparse_attention_leaves_the_backend_to_sglang():
    arguments = sglang_arguments(context({"attention": {"algorithm": "Sparse"}}))
    assert "--attention-backend" not in arguments
    assert "--json-model-override-args" not in arguments


def test_limits_and_speculation_become_arguments():
    arguments = sglang_arguments(
        context(
            {
                "model": {"name": "glm-5", "path": "fp8", "quantization": "fp8"},
                "gpus": {"count": 8, "tensorParallelSize": 1},
                "kvCache": {"dtype": "bfloat16", "maxTokens": 1000, "memoryFraction": 0.8},
                "contextLength": 4096,
                "maxRunningRequests": 16,
                "speculativeDecoding": {"steps": 2, "draftModelPath": "draft"},
                "server": {
                    "toolCallParser": "",
                    "reasoningParser": "",
                    "extraArgs": ["--chunked-prefill-size", "8192"],
                },
            }
        )
    )
    for flag, value in {
        "--model-path": "/models/model/fp8",
        "--served-model-name": "glm-5",
        "--quantization": "fp8",
        "--tp-size": "1",
        "--kv-cache-dtype": "bfloat16",
        "--max-total-tokens": "1000",
        "--mem-fraction-static": "0.8",
        "--context-length": "4096",
        "--max-running-requests": "16",
        "--speculative-algorithm": "NEXTN",
        "--speculative-num-steps": "2",
        "--speculative-draft-model-path": "/models/model/draft",
    }.items():
        assert option(arguments, flag) == value
    assert "--tool-call-parser" not in arguments
    assert arguments[-2:] == ["--chunked-prefill-size", "8192"]


def test_the_launcher_is_told_the_cast_mode_and_where_ranks_write():
    server = server_of({"attention": {"kvCast": "ActiveRows"}})
    assert server["command"] == ["glm5-mla", "serve", "--"]
    assert environment(server)["GLM5_KV_CAST"] == "ActiveRows"
    assert environment(server)["GLM5_RUN_DIR"] == "/run/glm5"


def test_the_api_key_is_a_mounted_file_and_never_an_argument_or_variable():
    server = server_of({"server": {"apiKeySecretRef": {"name": "keys", "key": "glm"}}})
    assert environment(server)["GLM5_API_KEY_FILE"] == "/etc/glm5/api-key/key"
    assert "--api-key" not in server["args"]
    volume = next(
        v
        for v in pod_of({"server": {"apiKeySecretRef": {"name": "keys", "key": "glm"}}})["volumes"]
        if v["name"] == "api-key"
    )
    assert volume["secret"] == {"secretName": "keys", "items": [{"key": "glm", "path": "key"}]}


def test_gpus_are_requested_and_limited_beside_the_users_own_resources():
    server = server_of({"server": {"resources": {"requests": {"cpu": 4}, "limits": {"memory": "8Gi"}}}})
    assert server["resources"] == {
        "requests": {"cpu": "4", "nvidia.com/gpu": "8"},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "8"},
    }


def test_startup_and_readiness_ask_for_a_finished_warm_up_and_liveness_only_for_a_listener():
    server = server_of({"startup": {"timeout": "10m"}})
    startup, readiness = server["startupProbe"], server["readinessProbe"]
    assert startup["httpGet"]["path"] == readiness["httpGet"]["path"] == "/ready"
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600
    assert "tcpSocket" in server["livenessProbe"]


def test_a_pod_has_time_to_finish_its_generations():
    pod = pod_of({"drain": {"gracePeriod": "5m"}})
    assert pod["terminationGracePeriodSeconds"] == 310
    assert pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "10"]


def test_a_full_node_can_be_updated_since_nothing_surges():
    deployment = build_deployment(context())["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    surging = build_deployment(context({"rollout": {"surge": True}}))["spec"]
    assert surging["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_slow_start_is_not_called_stuck():
    deployment = build_deployment(context({"startup": {"timeout": "3h"}, "drain": {"gracePeriod": "1h"}}))["spec"]
    assert deployment["progressDeadlineSeconds"] > 4 * 3600


def test_scaling_does_not_touch_the_pod_template():
    one, three = (build_deployment(context({"replicas": n}))["spec"] for n in (1, 3))
    assert one["template"] == three["template"]
    assert (one["replicas"], three["replicas"]) == (1, 3)


def test_the_pod_meets_the_restricted_security_standard():
    pod = pod_of()
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_exporter_is_a_sidecar_whose_trouble_does_not_stop_serving():
    exporter = pod_of({"gpus": {"tensorParallelSize": 2}})["initContainers"][0]
    assert exporter["restartPolicy"] == "Always"
    assert not any(key.endswith("Probe") for key in exporter)
    assert environment(exporter)["GLM5_EXPECTED_RANKS"] == "2"
    assert exporter["ports"] == [{"name": "metrics", "containerPort": 9408, "protocol": "TCP"}]


def test_last_log_lines_reach_the_status_of_every_container():
    pod = pod_of(
        {"model": {"source": {"persistentVolumeClaim": None, "huggingFace": {"repo": "a/b", "cacheClaimName": "c"}}}}
    )
    policies = {c["terminationMessagePolicy"] for c in [*pod["initContainers"], *pod["containers"]]}
    assert policies == {"FallbackToLogsOnError"}


def test_shared_memory_is_backed_by_memory():
    volumes = {volume["name"]: volume for volume in pod_of({"sharedMemory": "1Gi"})["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}


@pytest.mark.parametrize(
    ("source", "volume"),
    [
        (
            {"persistentVolumeClaim": {"claimName": "c"}},
            {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
        ),
        ({"hostPath": {"path": "/data"}}, {"hostPath": {"path": "/data", "type": "Directory"}}),
        ({"image": {"reference": "r/m:1"}}, {"image": {"reference": "r/m:1", "pullPolicy": "IfNotPresent"}}),
    ],
)
def test_each_model_source_is_mounted_read_only(source, volume):
    pod = pod_of({"model": {"source": {"persistentVolumeClaim": None, **source}}})
    assert {"name": "model", **volume} in pod["volumes"]
    mount = next(m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "model")
    assert mount == {"name": "model", "mountPath": "/models/model", "readOnly": True}


def test_a_hub_repository_is_downloaded_into_its_own_directory_of_the_claim():
    hub = {"repo": "zai-org/GLM-5", "revision": "v1", "cacheClaimName": "cache", "endpoint": "http://mirror:8080"}
    hub["tokenSecretRef"] = {"name": "hf", "key": "token"}
    pod = pod_of({"model": {"source": {"persistentVolumeClaim": None, "huggingFace": hub}}})
    download = pod["initContainers"][1]
    assert option(download["args"], "--out") == "/models/cache/zai-org--GLM-5/v1"
    assert environment(download)["HF_ENDPOINT"] == "http://mirror:8080"
    assert {"secretKeyRef": {"name": "hf", "key": "token"}} in [entry.get("valueFrom") for entry in download["env"]]
    mount = next(m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "model")
    assert mount["subPath"] == "zai-org--GLM-5/v1"
    assert mount["readOnly"] is True


def test_the_users_environment_wins_over_the_kernel_caches():
    server = server_of({"server": {"env": [{"name": "TRITON_CACHE_DIR", "value": "/mine"}]}})
    assert [e["value"] for e in server["env"] if e["name"] == "TRITON_CACHE_DIR"] == ["/mine"]


def test_a_gpu_product_is_asked_for_by_node_label():
    assert pod_of({"gpus": {"product": "NVIDIA-H200"}})["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert "nodeSelector" not in pod_of()


def test_the_image_is_the_objects_or_else_the_charts():
    assert server_of({"server": {"image": "mine:1"}})["image"] == "mine:1"
    assert server_of(server_image="chart:1")["image"] == "chart:1"


def test_images_and_the_hub_may_lie_inside_the_network():
    hub = {"repo": "zai-org/GLM-5", "cacheClaimName": "cache", "endpoint": "http://mirror:8080"}
    pod = pod_of(
        {
            "model": {"source": {"persistentVolumeClaim": None, "huggingFace": hub}},
            "server": {"image": "registry.inside/glm5:1", "imagePullSecrets": [{"name": "inside"}]},
        }
    )
    containers = pod["initContainers"] + pod["containers"]
    assert len(containers) == 3
    assert {container["image"] for container in containers} == {"registry.inside/glm5:1"}
    assert pod["imagePullSecrets"] == [{"name": "inside"}]
    addresses = [entry["value"] for c in containers for entry in c["env"] if "://" in str(entry.get("value"))]
    assert addresses == ["http://mirror:8080"]


def test_nothing_empty_is_sent():
    def empty(value, path=""):
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [path] * (value in ("", None, [], {})) + [
            e for key, child in children for e in empty(child, f"{path}.{key}")
        ]

    assert empty(build_deployment(context())) == []
    assert "runtimeClassName" not in pod_of()
