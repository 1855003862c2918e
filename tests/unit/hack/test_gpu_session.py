"""The session on a card: bounded steps, whose commands name what there is."""

import itertools
import json
import sys
from pathlib import Path

import pytest

import gpu_session
from glm5_mla.bench.served import WAYS
from gpu_session import Step


def python(name, code, limit_s=30, **more):
    return Step(name, limit_s, ("-c", code), **more)


def test_a_step_that_fails_or_takes_too_long_does_not_keep_the_next_from_running(tmp_path, monkeypatch, capsys):
    steps = (
        python("slow", "import time; print('begun', flush=True); time.sleep(600)", 3),
        python("failing", "raise SystemExit(3)"),
        python("writing", "open('OUT/result.json', 'w').write('{}')"),
    )
    monkeypatch.setattr(gpu_session, "STEPS", steps)
    assert gpu_session.main(["--out", str(tmp_path)]) == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {name: found["result"] for name, found in summary.items()} == {
        "slow": "ended after 3 s",
        "failing": 3,
        "writing": 0,
    }
    assert (tmp_path / "slow.log").read_text().startswith("begun")
    assert (tmp_path / "result.json").exists()


def test_a_step_whose_tool_is_absent_is_left_out_and_says_so(tmp_path):
    found = gpu_session.run(python("checked", "", under=("no-such-tool",)), tmp_path, sys.executable)
    assert found["result"] == "left out: there is no no-such-tool here"


def test_an_unknown_step_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        gpu_session.main(["--only", "kernels,kernel"])
    assert "there is no step kernel\n" in capsys.readouterr().err


def test_steps_name_tests_and_ways_to_serve_that_there_are():
    arguments = [argument for step in gpu_session.STEPS for argument in step.arguments]
    assert all(Path(argument).is_file() for argument in arguments if argument.startswith("tests/"))
    waves = [name for before, value in itertools.pairwise(arguments) if before == "--wave" for name in value.split(",")]
    assert waves
    assert set(waves) <= set(WAYS)
