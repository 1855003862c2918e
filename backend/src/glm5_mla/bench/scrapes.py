"""The exporter beside a real server: how long a scrape of all its ranks takes, and whether it tells what they wrote."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from glm5_mla.bench.exporter import fetch, spread_ms
from glm5_mla.bench.served import prompts

if TYPE_CHECKING:
    from glm5_mla.bench.served import Server

SECONDS = 4.0
PAUSE_S = 0.05
_SUM = re.compile(r'^glm5_decode_step_seconds_sum\{.*?rank="(\d+)".*?\} (\S+)$', re.MULTILINE)


def scrape(server: Server, context: int) -> dict[str, Any]:
    """Scrape for some seconds while the server decodes, and once more when it is idle, to compare sums.

    `agrees`: each rank's exported sum of step times is what stands in its file.
    """
    environment = {**os.environ, "GLM5_RUN_DIR": str(server.run_dir), "GLM5_EXPORTER_PORT": "0"}
    exporter = subprocess.Popen(
        [sys.executable, "-m", "glm5_mla.exporter.server"], env=environment, stderr=subprocess.PIPE, text=True
    )
    over = threading.Event()
    try:
        assert exporter.stderr is not None
        url = f"http://127.0.0.1:{exporter.stderr.readline().split()[-1]}/metrics"
        decoding = threading.Thread(target=_decode, args=(server, context, over))
        decoding.start()
        answers = []
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            answers.append(fetch(url))
            time.sleep(PAUSE_S)
        over.set()
        decoding.join()
        time.sleep(0.3)  # the scheduler writes the last steps when it goes idle
        page = fetch(url)[1].decode()
    finally:
        over.set()
        exporter.terminate()
        exporter.wait()
    exported = {int(rank): float(value) for rank, value in _SUM.findall(page)}
    written = {rank: server.figures(rank).histograms["step"].sum_s for rank in range(server.way.tensor_parallel)}
    return {
        "way": server.way.name,
        "gpus": server.way.tensor_parallel,
        "ranks": len(exported),
        "scrapes": len(answers),
        "scrape_ms": spread_ms([seconds for seconds, _ in answers]),
        "bytes": len(page),
        "agrees": exported.keys() == written.keys()
        and all(abs(exported[rank] - value) < 1e-6 for rank, value in written.items()),
    }


def _decode(server: Server, context: int, over: threading.Event) -> None:
    while not over.is_set():
        server.generate(prompts(1, context), 100)
