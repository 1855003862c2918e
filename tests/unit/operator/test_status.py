"""What status says, for every state that pods and children can be in."""

import datetime
import json

import pytest
from builders import NOW_TEXT, context, pod, ready_pod

from glm5_operator.reconcile.decode import Download, parse_reading
from glm5_operator.reconcile.plan import wanted_children
from glm5_operator.reconcile.pods import parse_time, view_pods
from glm5_operator.reconcile.status import Observed, Problem, build_status, refused_status, transitions

NOW = parse_time(NOW_TEXT)
HUB = {"repo": "zai-org/GLM-5-FP8", "cacheClaimName": "cache"}
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def reading(**window):
    rank = {"rank": 0, "alive": True, "stepSeconds": 0.01, "castSeconds": 0.0}
    return parse_reading(
        {
            "version": 1,
            "backend": {"verified": True, "kvCast": "Never", "kernel": "cuda", "version": "0.1.0"},
            "runningRequests": 1,
            "window": {"steps": 100, "tokensPerSecond": 120.0, "batchSize": 1.0, "ranks": [rank], **window},
        }
    )


def status_of(
    *pods,
    extra=None,
    readings=None,
    problems=(),
    previous=None,
    deployment_status=None,
    current=True,
    now=NOW,
    autoscaler=None,
):
    made = context(extra)
    deployment = wanted_children(made, pod_monitor_api=False)["Deployment"]
    deployment["metadata"]["generation"] = 1
    deployment["status"] = {"observedGeneration": 1, **(deployment_status or {})}
    observed = Observed(deployment, current, view_pods(pods, made, now, "h1"), readings or {}, problems, autoscaler)
    return build_status(made, 3, observed, previous or {}, now)


def conditions(status):
    return {entry["type"]: (entry["status"], entry["reason"]) for entry in status["conditions"]}


def message(status, kind):
    return next(entry["message"] for entry in status["conditions"] if entry["type"] == kind)


def waiting(reason, text="", name="server"):
    return pod(
        containerStatuses=[{"name": name, "image": "i:1", "state": {"waiting": {"reason": reason, "message": text}}}]
    )


def crashed(code, text="", *, reason="Error", started="2026-01-02T03:00:00Z", finished="2026-01-02T03:00:09Z"):
    ended = {"exitCode": code, "reason": reason, "message": text, "startedAt": started, "finishedAt": finished}
    entry = {
        "name": "server",
        "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
    }
    return pod(containerStatuses=[entry])


def test_a_ready_pod_of_the_current_spec_makes_the_object_available_and_complete():
    status = status_of(ready_pod(), readings={"glm5-a": reading()})
    assert conditions(status) == {
        "Available": ("True", "Serving"),
        "Progressing": ("False", "Complete"),
        "Degraded": ("False", "AsExpected"),
        "BackendVerified": ("True", "Verified"),
        "DecodeHealthy": ("True", "AsExpected"),
    }
    assert (status["ready"], status["state"], status["observedGeneration"]) == ("1/1", "Ready", 3)
    assert status["decode"] == {
        "tokensPerSecond": "120",
        "step": "10ms",
        "cast": "0ms (0%)",
        "batchSize": "1.0",
        "time": NOW_TEXT,
    }


def test_no_pod_is_available_before_its_readiness_says_so():
    started = {"name": "server", "started": False, "state": {"running": {"startedAt": "2026-01-02T03:00:05Z"}}}
    status = status_of(pod(containerStatuses=[started]))
    assert conditions(status)["Available"] == ("False", "LoadingModel")
    assert "4 min of at most 2h" in message(status, "Progressing")
    assert (status["ready"], status["state"]) == ("0/1", "Starting")


def test_old_pods_that_still_satisfy_the_count_do_not_make_a_rollout_complete():
    old = ready_pod()
    old["metadata"]["labels"]["pod-template-hash"] = "h0"
    status = status_of(old)
    assert conditions(status)["Available"][0] == "True"
    assert conditions(status)["Progressing"] == ("True", "Updating")
    assert (status["state"], status["updatedReplicas"]) == ("Updating", 0)


def test_a_deployment_not_yet_seen_by_its_controller_is_no_complete_rollout():
    status = status_of(ready_pod(), deployment_status={"observedGeneration": 0})
    assert conditions(status)["Progressing"][0] == "True"


@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        (
            pod(
                phase="Pending",
                conditions=[{**UNSCHEDULED, "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}],
            ),
            "WaitingForGPU",
            "no node has 8 nvidia.com/gpu free",
        ),
        (
            pod(phase="Pending", conditions=[{**UNSCHEDULED, "message": 'persistentvolumeclaim "weights" not found'}]),
            "ClaimNotFound",
            "PersistentVolumeClaim weights not found in namespace models",
        ),
        (
            pod(
                phase="Pending",
                conditions=[{**UNSCHEDULED, "message": "pod has unbound immediate PersistentVolumeClaims"}],
            ),
            "ClaimNotBound",
            "StorageClass",
        ),
        (waiting("ImagePullBackOff", "Back-off pulling image"), "ImagePull", "image i:1 of container server"),
        (
            waiting("CreateContainerConfigError", 'secret "keys" not found'),
            "SecretNotFound",
            "Secret keys is missing in namespace models",
        ),
        (crashed(1, "Traceback\nValueError: no config.json"), "Crash", "ValueError: no config.json"),
        (crashed(137, "", reason="OOMKilled"), "OutOfMemory", "spec.server.resources"),
        (crashed(139, "Fatal"), "Crash", "code 139 (signal 11)"),
        (
            crashed(2, "usage: x\nlaunch_server.py: error: unrecognized arguments: --wrong"),
            "BadArgument",
            "unrecognized arguments: --wrong",
        ),
        (
            crashed(78, json.dumps({"reason": "BackendNotInUse", "message": "SGLang runs triton"})),
            "BackendNotInUse",
            "SGLang runs triton",
        ),
        (
            crashed(143, "", started="2026-01-02T01:00:00Z", finished="2026-01-02T03:00:00Z"),
            "StartupTimeout",
            "spec.startup.timeout (2h)",
        ),
        (
            # Without a grace period in between, the last of the probes that must fail is one period earlier.
            crashed(137, "", started="2026-01-02T01:00:00Z", finished="2026-01-02T02:59:55Z"),
            "StartupTimeout",
            "spec.startup.timeout (2h)",
        ),
        (
            crashed(1, "CUDA error", started="2026-01-02T01:00:00Z", finished="2026-01-02T03:00:00Z"),
            "Crash",
            "CUDA error",
        ),
        (
            crashed(137, "", started="2026-01-01T01:00:00Z", finished="2026-01-02T03:00:00Z"),
            "Crash",
            "code 137 (signal 9)",
        ),
        (
            crashed(137, "", reason="OOMKilled", started="2026-01-02T01:00:00Z", finished="2026-01-02T03:00:00Z"),
            "OutOfMemory",
            "spec.server.resources",
        ),
        (pod(phase="Failed", reason="Evicted", message="low on memory"), "Evicted", "low on memory"),
        (pod(phase="Failed", reason="OutOfnvidia.com/gpu", message="x"), "NodeRefused", "OutOfnvidia.com/gpu"),
    ],
)
def test_a_pods_failure_is_told_in_words(found, reason, words):
    status = status_of(found)
    assert conditions(status)["Available"] == ("False", reason)
    assert words in message(status, "Available")
    assert status["pods"][0]["reason"] == reason
    assert status["state"] == reason


IMAGE = {"model": {"source": {"persistentVolumeClaim": None, "image": {"reference": "registry.example/glm5:1"}}}}


def test_a_model_image_that_cannot_be_pulled_is_not_taken_for_the_servers_image():
    text = 'Back-off pulling image "registry.example/glm5:1"'
    status = status_of(waiting("ImagePullBackOff", text), extra=IMAGE)
    assert conditions(status)["Available"] == ("False", "ImagePull")
    assert "image registry.example/glm5:1 of spec.model.source.image" in message(status, "Available")


def test_a_runtime_without_image_volumes_is_named_with_the_version_that_has_them():
    identifier = "8323f05b267b66bfcd41911b5072b56f6195d76c049b33066563d97b9b44056f"
    text = f'failed to generate container "{identifier}" spec: failed to generate spec: failed to mkdir "": mkdir : no'
    status = status_of(waiting("CreateContainerError", text), extra=IMAGE)
    assert conditions(status)["Available"] == ("False", "ImageVolumeUnsupported")
    assert "containerd can from version 2.1 on" in message(status, "Available")
    assert identifier not in json.dumps(status), "it differs at each attempt, and each would be written"
    status = status_of(waiting("CreateContainerError", text))
    assert conditions(status)["Available"] == ("False", "ContainerStart")


@pytest.mark.parametrize(
    ("said", "judged", "words"),
    [
        ([], ("Unknown", "NotYetJudged"), "has not said anything"),
        (
            [{"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound", "message": "found"}],
            ("True", "ValidMetricFound"),
            "found",
        ),
        (
            [
                {"type": "AbleToScale", "status": "True", "reason": "SucceededGetScale"},
                {
                    "type": "ScalingActive",
                    "status": "False",
                    "reason": "FailedGetPodsMetric",
                    "message": "unable to fetch metrics: no custom metrics API (custom.metrics.k8s.io) registered",
                },
            ],
            ("False", "FailedGetPodsMetric"),
            "scale by KEDA",
        ),
        (
            # Kubernetes' word for an object that somebody stopped: no fault.
            [{"type": "ScalingActive", "status": "False", "reason": "ScalingDisabled", "message": "count is zero"}],
            ("Unknown", "ScalingDisabled"),
            "spec.replicas is 0",
        ),
        (
            [{"type": "AbleToScale", "status": "False", "reason": "FailedGetScale", "message": "no scale"}],
            ("False", "FailedGetScale"),
            "no scale",
        ),
    ],
)
def test_an_autoscaler_that_cannot_scale_says_why(said, judged, words):
    extra = {"autoscaling": {"maxReplicas": 2, "targetQueueLength": 4}}
    status = status_of(ready_pod(), extra=extra, autoscaler={"status": {"conditions": said}})
    assert conditions(status)["ScalingActive"] == judged
    assert words in message(status, "ScalingActive")
    assert "ScalingActive" not in conditions(status_of(ready_pod()))


def test_a_server_that_refuses_to_serve_unverifies_the_backend():
    refused = crashed(78, json.dumps({"reason": "BackendNotInUse", "message": "SGLang runs triton"}))
    status = status_of(refused)
    assert conditions(status)["BackendVerified"] == ("False", "BackendNotInUse")


def test_waiting_for_gpus_says_when_the_old_copy_still_drains_on_them():
    old = {**ready_pod("glm5-old")}
    old["metadata"]["deletionTimestamp"] = "2026-01-02T03:10:00Z"
    new = pod("glm5-new", phase="Pending", conditions=[{**UNSCHEDULED, "message": "Insufficient nvidia.com/gpu"}])
    status = status_of(old, new)
    assert "the old copy is still draining" in message(status, "Available")
    assert status["state"] == "WaitingForGPU"


def unready_by_the_node_controller(name="glm5-a"):
    """A pod that served on a node that then fell silent: only the Ready condition is changed, and has no reason."""
    lost = ready_pod(name)
    lost["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "ContainersReady", "status": "True"},
        {"type": "Ready", "status": "False"},
    ]
    return lost


def test_a_pod_on_a_node_that_fell_silent_is_lost_and_not_called_unready():
    status = status_of(unready_by_the_node_controller())
    assert conditions(status)["Available"] == ("False", "NodeLost")
    assert conditions(status)["Degraded"] == ("True", "NodeLost")
    assert "node node-1 does not answer" in message(status, "Available")
    assert "out-of-service" not in message(status, "Available")
    assert (status["ready"], status["state"]) == ("0/1", "NodeLost")


def test_a_pod_whose_probe_or_readiness_gate_fails_is_not_called_lost():
    for reason, containers_ready in (("ContainersNotReady", "False"), ("ReadinessGatesNotReady", "True")):
        unready = unready_by_the_node_controller()
        unready["status"]["conditions"][1]["status"] = containers_ready
        unready["status"]["conditions"][2]["reason"] = reason
        assert conditions(status_of(unready))["Available"] == ("False", "NotReady")


def test_a_lost_pod_that_was_given_up_names_the_remedy_and_is_not_said_to_drain():
    lost = unready_by_the_node_controller("glm5-old")
    lost["metadata"]["deletionTimestamp"] = "2026-01-02T03:10:00Z"
    new = pod("glm5-new", phase="Pending", conditions=[{**UNSCHEDULED, "message": "Insufficient nvidia.com/gpu"}])
    status = status_of(lost, new)
    assert conditions(status)["Degraded"] == ("True", "NodeLost")
    assert "node-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in message(status, "Degraded")
    assert "drain" not in json.dumps(status)


def test_a_pod_terminating_for_ever_is_called_lost_with_the_remedy():
    lost = ready_pod()
    lost["metadata"]["deletionTimestamp"] = "2026-01-02T03:00:00Z"
    status = status_of(lost)
    assert conditions(status)["Degraded"] == ("True", "NodeLost")
    assert "out-of-service" in message(status, "Degraded")


def test_a_server_restarted_since_its_start_took_too_long_says_so_while_it_starts_again():
    ended = {"exitCode": 143, "startedAt": "2026-01-02T01:00:00Z", "finishedAt": "2026-01-02T03:00:10Z"}
    entry = {
        "name": "server",
        "restartCount": 1,
        "started": False,
        "state": {"running": {"startedAt": "2026-01-02T03:00:11Z"}},
        "lastState": {"terminated": ended},
    }
    status = status_of(pod(containerStatuses=[entry]))
    assert conditions(status)["Degraded"] == ("True", "Restarting")
    assert "StartupTimeout: the server gave no answer within spec.startup.timeout" in message(status, "Degraded")


def test_a_backend_that_a_hung_rank_does_not_report_is_unknown_and_not_called_another():
    silent = {"rank": 0, "alive": False}
    hung = parse_reading({"version": 1, "backend": None, "window": {"ranks": [silent]}})
    status = status_of(ready_pod(), readings={"glm5-a": hung})
    assert conditions(status)["BackendVerified"] == ("Unknown", "RankSilent")
    assert conditions(status)["DecodeHealthy"] == ("False", "RankSilent")
    other = parse_reading({"version": 1, "backend": {"verified": False}, "window": {}})
    assert conditions(status_of(ready_pod(), readings={"glm5-a": other}))["BackendVerified"] == ("False", "NotInUse")
    both = status_of(ready_pod(), ready_pod("glm5-b"), readings={"glm5-a": hung, "glm5-b": other})
    assert conditions(both)["BackendVerified"] == ("False", "NotInUse"), "what is known counts more than what is not"


def test_a_reason_is_gone_when_it_no_longer_holds():
    failed = status_of(waiting("ImagePullBackOff"))
    healed = status_of(ready_pod(), previous=failed, readings={"glm5-a": reading()})
    assert conditions(healed)["Degraded"] == ("False", "AsExpected")
    assert "ImagePull" not in json.dumps(healed)


def test_an_evicted_pod_that_was_replaced_says_nothing_about_the_present():
    evicted = pod("glm5-old", phase="Failed", reason="Evicted", message="low on memory")
    status = status_of(evicted, ready_pod(), readings={"glm5-a": reading()})
    assert conditions(status)["Progressing"] == ("False", "Complete")
    assert (status["ready"], status["replicas"]) == ("1/1", 1)


def test_a_transition_time_moves_only_with_the_status():
    first = status_of(waiting("ImagePullBackOff"))
    later = NOW + datetime.timedelta(minutes=5)
    second = status_of(waiting("ErrImagePull"), previous=first, now=later)
    assert {entry["lastTransitionTime"] for entry in second["conditions"]} == {NOW_TEXT}
    third = status_of(ready_pod(), previous=second, now=later)
    times = {entry["type"]: entry["lastTransitionTime"] for entry in third["conditions"]}
    assert times["Available"] == "2026-01-02T03:09:05Z"


def test_a_stopped_object_is_no_failure():
    status = status_of(extra={"replicas": 0})
    assert (status["state"], status["ready"]) == ("Stopped", "0/0")
    assert conditions(status)["Degraded"][0] == "False"


def test_a_write_that_was_refused_is_told_first():
    status = status_of(problems=[Problem("QuotaExceeded", "no GPUs left")])
    assert conditions(status)["Degraded"] == ("True", "QuotaExceeded")


def test_quota_and_admission_are_told_from_the_deployments_own_condition():
    failure = {"type": "ReplicaFailure", "status": "True", "message": 'pods "x" is forbidden: exceeded quota: gpus'}
    status = status_of(deployment_status={"conditions": [failure]})
    assert conditions(status)["Available"] == ("False", "QuotaExceeded")


def test_a_refused_object_keeps_serving_what_it_served_before():
    served = status_of(ready_pod(), readings={"glm5-a": reading()})
    refused = refused_status({"replicas": 1}, 4, Problem("NotAllowed", "no host paths"), served, 1, 1, NOW)
    assert conditions(refused)["Available"] == ("True", "Serving")
    assert conditions(refused)["Degraded"] == ("True", "NotAllowed")
    assert (refused["observedGeneration"], refused["ready"], refused["url"]) == (4, "1/1", served["url"])


def test_a_refused_object_tells_nothing_that_was_only_so_before():
    served = status_of(ready_pod(), readings={"glm5-a": reading()})
    refused = refused_status({"replicas": 1}, 4, Problem("NotAllowed", "no host paths"), served, 1, 0, NOW)
    assert conditions(refused)["Available"] == ("False", "NotAllowed")
    assert conditions(refused)["DecodeHealthy"][0] == "Unknown"
    assert not {"decode", "backend", "pods"} & refused.keys()
    assert (refused["readyReplicas"], refused["ready"]) == (0, "0/1")


@pytest.mark.parametrize(
    ("window", "reason"),
    [
        ({"ranks": [{"rank": 0, "alive": True, "stepSeconds": 0.01, "castSeconds": 0.006}]}, "CastInStep"),
        ({"ranks": [{"rank": r, "alive": True, "stepSeconds": 0.01 + 0.01 * (r == 7)} for r in range(8)]}, "SlowRank"),
        ({"ranks": [{"rank": 3, "alive": False}]}, "RankSilent"),
        ({"steps": 0, "ranks": []}, "NoTokens"),
    ],
)
def test_unhealthy_decoding_is_seen(window, reason):
    status = status_of(ready_pod(), readings={"glm5-a": reading(**window)})
    assert conditions(status)["DecodeHealthy"] == ("False", reason)


def test_a_silent_exporter_leaves_the_backend_unknown_and_serving_available():
    status = status_of(ready_pod(), readings={"glm5-a": None})
    assert conditions(status)["Available"][0] == "True"
    assert conditions(status)["BackendVerified"] == ("Unknown", "ExporterSilent")
    assert "decode" not in status


def test_a_pod_in_another_cast_mode_unverifies_the_backend():
    status = status_of(ready_pod(), extra={"attention": {"kvCast": "ActiveRows"}}, readings={"glm5-a": reading()})
    assert conditions(status)["BackendVerified"] == ("False", "OtherKvCast")


def test_events_tell_transitions_once():
    failed = status_of(waiting("ImagePullBackOff"))["conditions"]
    served = status_of(ready_pod(), readings={"glm5-a": reading()})["conditions"]
    assert [(kind, reason) for kind, reason, _ in transitions(failed, served)] == [
        ("Normal", "Serving"),
        ("Normal", "AsExpected"),
    ]
    assert transitions(served, served) == []
    assert ("Warning", "ImagePull") in [(kind, reason) for kind, reason, _ in transitions(served, failed)]


def test_a_download_shows_how_far_it_has_come():
    made = context({"model": {"source": {"persistentVolumeClaim": None, "huggingFace": HUB}}})
    found = pod(initContainerStatuses=[{"name": "download", "state": {"running": {"startedAt": NOW_TEXT}}}])
    view = view_pods([found], made, NOW, None, {"glm5-a": Download(done=74_400_000_000, total=744_000_000_000)})[0]
    assert (view.phase, view.reason) == ("Starting", "Downloading")
    assert view.message == "downloads zai-org/GLM-5-FP8 into its claim: 10 % of 744 GB"


def test_a_start_is_no_event_but_the_loss_of_service_is():
    starting = status_of(pod(containerStatuses=[]))["conditions"]
    served = status_of(ready_pod(), readings={"glm5-a": reading()})["conditions"]
    assert transitions([], starting) == []
    assert [reason for _, reason, _ in transitions(starting, served)] == ["Serving"]
    assert [kind for kind, _, _ in transitions(served, starting)] == ["Warning"]


@pytest.mark.parametrize(
    ("event", "reason", "words"),
    [
        (
            ("FailedMount", 'MountVolume.SetUp failed for volume "api-key" : secret "keys" not found'),
            "SecretNotFound",
            "Secret keys is missing in namespace models",
        ),
        (
            ("FailedMount", "MountVolume.SetUp failed: references non-existent secret key: glm"),
            "SecretKeyNotFound",
            "no key glm",
        ),
        (
            ("FailedMount", "hostPath type check failed: /data is not a directory"),
            "VolumeMount",
            "/data is not a directory",
        ),
    ],
)
def test_a_pod_whose_containers_cannot_be_created_tells_what_the_kubelet_told(event, reason, words):
    found = pod(phase="Pending", conditions=[{"type": "PodScheduled", "status": "True"}])
    view = view_pods([found], context(), NOW, None, None, {"glm5-a": event})[0]
    assert (view.phase, view.reason) == ("Failing", reason)
    assert words in view.message
