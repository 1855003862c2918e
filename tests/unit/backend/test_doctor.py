"""What the doctor finds on a machine without a GPU, and how it puts findings into words."""

import json

import pytest

from glm5_mla import cli, doctor


@pytest.mark.sglang
def test_without_a_gpu_every_mode_can_be_tried_and_only_the_reference_kernel_runs(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == {"name": "cpu"}
    assert found["modes"] == {"Never": None, "ActiveRows": None, "WholePool": None}
    assert [name for name, reason in found["kernels"].items() if reason is None] == ["reference"]
    assert found["versions"]["sglang"] == "0.5.23"


def test_a_reason_is_given_for_what_cannot_be_had():
    text = doctor.as_text(
        {
            "versions": {"sglang": "0.5.23", "flashinfer-python": None},
            "device": {"name": "X", "count": 8, "compute_capability": "12.0", "memory_gib": 96},
            "heads": 8,
            "kernels": {"cuda": None, "flashinfer": "FP8 needs SM90"},
            "modes": {"Never": None},
        }
    )
    assert "8 x X, compute capability 12.0, 96 GiB each" in text
    assert "kernel that reads FP8 rows as they are flashinfer: no: FP8 needs SM90" in text
    assert "kvCast mode Never: can be used" in text
    assert "flashinfer-python not installed" in text
