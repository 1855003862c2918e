"""SGLang arguments that an object must not pass beside its fields."""

import pytest

from glm5_operator.api import flags
from glm5_operator.api.crd import custom_resource_definition


def test_each_is_refused_with_and_without_a_value_and_under_every_name():
    for refused in flags.REFUSED_FLAGS:
        for flag in refused.flags:
            assert flags.refusal(["--log-level", "info", flag]) == refused.message
            assert flags.refusal([f"{flag}=x\ny"]) == refused.message


@pytest.mark.parametrize(
    "argument", ["--ep-size=8", "--chunked-prefill-size", "--model-loader-extra-config={}", "--portal", "8192"]
)
def test_others_pass(argument):
    assert flags.refusal([argument]) is None


def test_each_refusal_names_a_field_to_use_or_why_not():
    assert [refused.flags for refused in flags.REFUSED_FLAGS if len(refused.remedy) < 15] == []


def test_the_api_server_refuses_the_same_ones():
    server = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    told = server["properties"]["server"]["properties"]["extraArgs"]["x-kubernetes-validations"]
    assert [entry["message"] for entry in told] == [refused.message for refused in flags.REFUSED_FLAGS]
    assert all(refused.pattern in entry["rule"] for entry, refused in zip(told, flags.REFUSED_FLAGS, strict=True))


def test_no_argument_that_the_operator_passes_is_left_to_the_user_too():
    from builders import context

    from glm5_operator.resources.arguments import sglang_arguments

    everything = context(
        {
            "model": {"source": {"persistentVolumeClaim": {"claimName": "w"}}, "quantization": "fp8"},
            "kvCache": {"maxTokens": 1, "memoryFraction": 0.5},
            "contextLength": 1,
            "maxRunningRequests": 1,
            "speculativeDecoding": {"draftModelPath": "draft"},
        }
    )
    passed = [argument for argument in sglang_arguments(everything) if argument.startswith("--")]
    assert len(passed) > 15
    assert [argument for argument in passed if flags.refusal([argument]) is None] == []
