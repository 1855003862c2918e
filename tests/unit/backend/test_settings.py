"""Settings from the environment, and how a wrong one is refused."""

import json

import pytest

from glm5_mla.refusal import Refusal
from glm5_mla.settings import KvCast, Settings


def test_without_settings_rows_are_read_as_they_are_by_the_best_kernel():
    assert Settings.from_environment({}) == Settings(KvCast.NEVER, "auto", "/run/glm5")


def test_an_empty_variable_counts_as_unset():
    assert Settings.from_environment({"GLM5_KV_CAST": "", "GLM5_KERNEL": "", "GLM5_RUN_DIR": ""}).kernel == "auto"


def test_settings_are_taken_from_the_environment():
    environment = {"GLM5_KV_CAST": "WholePool", "GLM5_KERNEL": "flashinfer", "GLM5_RUN_DIR": "/tmp/x"}
    assert Settings.from_environment(environment) == Settings(KvCast.WHOLE_POOL, "flashinfer", "/tmp/x")


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("GLM5_KV_CAST", "never", "Never, ActiveRows, WholePool"),
        ("GLM5_KERNEL", "fa3", "auto, reference, triton, cuda"),
        ("GLM5_STEP_TIMING", "0", "on, off"),
    ],
)
def test_a_wrong_value_is_refused_with_the_variable_and_what_it_may_hold(variable, value, allowed):
    with pytest.raises(Refusal) as refused:
        Settings.from_environment({variable: value})
    assert refused.value.reason == "BadSetting"
    assert variable in refused.value.message
    assert repr(value) in refused.value.message
    assert allowed in refused.value.message


def test_a_refusal_is_recorded_as_one_json_line_and_the_first_one_stands(tmp_path):
    log = tmp_path / "termination-log"
    log.touch()
    Refusal("First", "Do this.").record(str(log))
    Refusal("Second", "Do that.").record(str(log))
    assert [json.loads(line) for line in log.read_text().splitlines()] == [{"reason": "First", "message": "Do this."}]


def test_outside_of_a_container_a_refusal_leaves_no_file_behind(tmp_path):
    Refusal("First", "Do this.").record(str(tmp_path / "none"))
    assert list(tmp_path.iterdir()) == []
