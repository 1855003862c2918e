"""A jump of the machine's wall clock, under a rank and an exporter that run as processes and go on running."""

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, to preload a wall clock")

# A rank that decodes as many steps as each line of its input says, and answers with its wall clock.
RANK = """
import sys, time
from glm5_mla.timing.rankfile import BackendInfo, RankWriter, StepRecord
rank = RankWriter(sys.argv[1], 0, 1, BackendInfo("Never", "reference", "0.1.0"))
for line in sys.stdin:
    for _ in range(int(line)):
        rank.record(StepRecord(time.time_ns(), 8_000_000, 10_000_000, 0, 2_000_000, 0, 2, 200, False))
        rank.add_tokens(2)
    print(time.time(), flush=True)
"""


class Machine:
    """A rank and the exporter, with one wall clock."""

    def __init__(self, folder: Path) -> None:
        self.offset = folder / "offset"
        self.jump(0)
        library = folder / "wall_clock.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, HERE / "wall_clock.c"], check=True)
        run = folder / "run"
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "WALL_CLOCK_OFFSET": str(self.offset),
            "GLM5_RUN_DIR": str(run),
            "GLM5_EXPORTER_PORT": "0",
            "GLM5_EXPECTED_RANKS": "1",
        }
        pipe = subprocess.PIPE
        self.rank = subprocess.Popen(
            [sys.executable, "-c", RANK, str(run)], env=environment, stdin=pipe, stdout=pipe, text=True
        )
        command = [Path(sys.executable).with_name("glm5-mla"), "exporter"]
        self.exporter = subprocess.Popen(command, env=environment, stderr=pipe, text=True)
        self.url = f"http://127.0.0.1:{self.exporter.stderr.readline().split()[-1]}/metrics"

    def jump(self, seconds: int) -> None:
        written = self.offset.with_suffix(".new")
        written.write_text(str(seconds))
        written.rename(self.offset)

    def decode(self, steps: int) -> float:
        """Decode; the rank's wall clock afterwards."""
        self.rank.stdin.write(f"{steps}\n")
        self.rank.stdin.flush()
        return float(self.rank.stdout.readline())

    def scrape(self) -> dict[str, float]:
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {re.sub(r'deployment="",?', "", name): float(value) for name, _, value in samples}

    def end(self) -> None:
        self.rank.stdin.close()
        self.exporter.terminate()
        for process in (self.rank, self.exporter):
            process.wait(30)


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("jump_s", [-400 * 86_400, -30, 30, 400 * 86_400])
def test_a_jump_moves_nothing_but_the_time_of_the_last_step(machine, jump_s):
    machine.decode(50)
    before = machine.scrape()
    machine.jump(jump_s)
    time.sleep(1.2)  # over a heartbeat
    after_jump = machine.scrape()
    counters = [name for name in before if name.startswith("glm5_decode") and not re.search("per_second|size|kv", name)]
    assert len(counters) > 100
    assert {name: after_jump[name] for name in counters} == {name: before[name] for name in counters}

    wall = machine.decode(50)
    assert wall - time.time() == pytest.approx(jump_s, abs=14), "the rank's own clock did not jump"
    after = machine.scrape()
    assert after['glm5_rank_up{rank="0"}'] == 1
    assert after["glm5_decode_tokens_total{}"] == 200
    assert after["glm5_decode_tokens_per_second{}"] in (20, 10), "the last 10 s have both halves, on a slow machine one"
    assert after['glm5_decode_step_seconds_count{rank="0"}'] == 100
    assert after['glm5_decode_step_seconds_sum{rank="0"}'] == pytest.approx(100 * 0.008)
    assert after['glm5_rank_last_step_timestamp_seconds{rank="0"}'] == pytest.approx(wall, abs=14)
