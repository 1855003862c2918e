"""`glm5-mla exporter`: keeps the process that serves the figures (server.py) running.

Why a process of its own: a pod is ready only while its sidecars run, and kubelet waits up to five minutes before it
starts one again that keeps ending. The exporter's trouble must not take serving down, so the container's first process
is this one: it imports nothing that could break, and starts the server again within seconds. What still ends the
container is its memory limit, as the kernel then ends all of its processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

SERVER = (sys.executable, "-m", "glm5_mla.exporter.server")
SETTING_STATUS = 2
"""The server's exit status for a setting that can't be used: starting it again would not help."""

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0
STEADY_S = 60.0
"""A server that ran as long as this is started again after the first pause, whatever was before."""

_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: a sidecar is set by its environment."""
    parser.epilog = "Environment: GLM5_RUN_DIR, GLM5_EXPORTER_PORT, GLM5_DEPLOYMENT, GLM5_EXPECTED_RANKS."


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT and return 0; return 2 when the first server finds a setting that can't be used."""
    # Blocked and waited for, not handled: none is lost between two lines, nor ignored because this is process 1.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    try:
        return supervise(list(SERVER))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def supervise(command: list[str]) -> int:
    """Run `command`, again whenever it ends, until asked to stop; `_WATCHED` must be blocked."""
    pause = FIRST_PAUSE_S
    first = True
    while True:
        begin = time.monotonic()
        try:
            child = os.posix_spawn(command[0], command, os.environ, setsigmask=())
        except OSError as error:
            how = f"can't be started: {error.strerror}"
        else:
            status, asked = _wait(child)
            if asked:
                return 0
            if first and status == SETTING_STATUS:
                return status
            how = f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
        first = False
        if time.monotonic() - begin >= STEADY_S:
            pause = FIRST_PAUSE_S
        print(f"glm5-mla exporter: its server {how}; next start in {pause:.0f} s", file=sys.stderr, flush=True)
        if _asked_within(pause):
            return 0
        pause = min(2 * pause, LONGEST_PAUSE_S)


def _wait(child: int) -> tuple[int, bool]:
    """Wait for `child` to end, passing on the wish to stop; its exit status, -n for signal n, and whether it was asked.

    Reaps other processes too: orphans come to process 1.
    """
    asked = False
    while True:
        if signal.sigwait(_WATCHED) != signal.SIGCHLD:
            asked = True
            os.kill(child, signal.SIGTERM)  # not reaped yet, so its number is its own
            continue
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return os.waitstatus_to_exitcode(ended[1]), asked


def _asked_within(seconds: float) -> bool:
    """Sleep; tells at once when SIGTERM or SIGINT arrives."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        arrived = signal.sigtimedwait(_WATCHED, left)
        if arrived is not None and arrived.si_signo != signal.SIGCHLD:
            return True
    return False
