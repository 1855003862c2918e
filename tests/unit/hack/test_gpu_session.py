"""The session on cards: bounded steps in lanes, whose commands name what there is."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import gpu_session
from glm5_mla.bench import server
from gpu_session import ALL, KERNELS, SERVERS, TIMING, Step


def python(name, code, lane=TIMING, limit_s=30, **more):
    return Step(name, lane, limit_s, ("-c", code), **more)


@pytest.fixture
def session(tmp_path, monkeypatch):
    """Runs steps on so many cards; returns the summary and whether all went well."""

    def run(*steps, cards=1, only=""):
        monkeypatch.setattr(gpu_session, "STEPS", steps)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(str(4 + number) for number in range(cards)))
        status = gpu_session.main(["--out", str(tmp_path), "--only", only])
        return json.loads((tmp_path / "summary.json").read_text()), status == 0

    return run


def results(summary):
    return {name: found["result"] for name, found in summary.items()}


def test_a_step_that_fails_or_takes_too_long_does_not_keep_the_next_from_running(session, tmp_path):
    summary, well = session(
        python("slow", "import time; print('begun', flush=True); time.sleep(600)", limit_s=3),
        python("failing", "raise SystemExit(3)"),
        python("writing", "open('OUT/result.json', 'w').write('{}')"),
    )
    assert not well
    assert results(summary) == {"slow": "ended after 3 s", "failing": 3, "writing": 0}
    assert (tmp_path / "slow.log").read_text().startswith("begun")
    assert (tmp_path / "result.json").exists()


def test_with_two_cards_lanes_run_side_by_side_and_the_last_lane_after_them(session):
    both = "import os, time; from pathlib import Path; Path('OUT/{0}').touch(); "
    both += "exec('while not Path(\"OUT/{1}\").exists(): time.sleep(0.01)')"
    summary, well = session(
        python("one", both.format("one", "other")),
        python("other", both.format("other", "one"), KERNELS),
        python("last", "from pathlib import Path; assert Path('OUT/one').exists() and Path('OUT/other').exists()", ALL),
        cards=2,
    )
    assert well
    assert list(summary)[-1] == "last"


@pytest.mark.parametrize(
    ("cards", "seen"),
    [
        (1, {TIMING: "4", KERNELS: "4", SERVERS: "4", ALL: "4"}),
        (2, {TIMING: "4", KERNELS: "5", SERVERS: "5", ALL: "4,5"}),
        (8, {TIMING: "4", KERNELS: "5", SERVERS: "5", ALL: "4,5,6,7,8,9,10,11"}),
    ],
)
def test_what_is_timed_has_the_first_card_to_itself(session, tmp_path, cards, seen):
    show = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], GPUS)"
    session(*(python(lane, show, lane) for lane in (TIMING, KERNELS, SERVERS, ALL)), cards=cards)
    assert {lane: (tmp_path / f"{lane}.log").read_text().split() for lane in seen} == {
        lane: [visible, str(cards)] for lane, visible in seen.items()
    }


def test_a_step_is_left_out_when_the_one_that_it_needs_failed_in_another_lane(session):
    summary, _ = session(python("timed", "", needs="check"), python("check", "raise SystemExit(1)", KERNELS), cards=2)
    assert summary["timed"]["result"] == "left out: check did not succeed"


def test_a_step_for_more_cards_than_there_are_is_left_out(session):
    summary, well = session(python("parallel", "", ALL, least_cards=2), python("single", ""))
    assert summary["parallel"]["result"] == "left out: it needs 2 cards"
    assert well


def test_a_step_that_was_asked_for_by_name_must_not_be_left_out(session):
    _, well = session(python("parallel", "", ALL, least_cards=2), only="parallel")
    assert not well


def test_a_step_whose_tool_is_absent_is_left_out_and_says_so(session):
    summary, _ = session(python("checked", "", under=("no-such-tool",)))
    assert summary["checked"]["result"] == "left out: there is no no-such-tool here"


def test_what_a_step_started_in_sessions_of_its_own_ends_with_it(session, tmp_path):
    code = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); "
        "open('OUT/pid', 'w').write(str(child.pid)); time.sleep(600)"
    )
    session(python("leaving", code, limit_s=3))
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while alive(child):
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ending_the_session_ends_its_steps_and_keeps_the_summary(tmp_path):
    code = "import gpu_session; from gpu_session import *; import sys; "
    code += "gpu_session.STEPS = (Step('long', 'timing', 600, ('-c', 'import time; time.sleep(600)')), "
    code += "Step('next', 'timing', 9, ('-c', ''))); sys.exit(gpu_session.main(['--out', sys.argv[1]]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "PYTHONPATH": "hack"}, stdout=subprocess.DEVNULL
    )
    summary = tmp_path / "summary.json"
    deadline = time.monotonic() + 30
    while not summary.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert results(json.loads(summary.read_text())) == {"long": "running"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 1
    assert results(json.loads(summary.read_text())) == {
        "long": "ended with the session",
        "next": "left out: the session was ended",
    }
    assert threading.active_count() == 1


def test_an_unknown_step_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        gpu_session.main(["--only", "kernels,kernel"])
    assert "there is no step kernel\n" in capsys.readouterr().err


def test_steps_name_tests_and_ways_to_serve_that_there_are():
    arguments = [argument for step in gpu_session.STEPS for argument in step.arguments]
    assert all(Path(argument).is_file() for argument in arguments if argument.startswith("tests/"))
    names = {step.name for step in gpu_session.STEPS}
    assert {step.needs for step in gpu_session.STEPS} <= names | {""}
    for step in gpu_session.STEPS:
        if "glm5_mla.bench.server" in step.arguments:
            words = [word.replace("GPUS", "2") for word in step.arguments[2:]]
            parsed = server.arguments_parser().parse_args(words)
            named = [name for wave in parsed.wave for name in wave.split(",")]
            assert set(named) | set(parsed.profile) | set(parsed.scrape) <= set(server.WAYS)


def test_servers_of_steps_that_may_run_at_once_have_ports_of_their_own():
    taken = {}
    for step in gpu_session.STEPS:
        if "glm5_mla.bench.server" not in step.arguments:
            continue
        parsed = server.arguments_parser().parse_args([word.replace("GPUS", "2") for word in step.arguments[2:]])
        most = max((len(wave.split(",")) for wave in parsed.wave), default=0)
        taken[step.name] = range(parsed.port, parsed.port + most * server.PORT_STEP)
    for one, other in itertools.combinations(taken.values(), 2):
        assert not set(one) & set(other)
