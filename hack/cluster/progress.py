"""What the person at the terminal sees while something takes long."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HEARTBEAT_SECONDS = 15.0
_started = time.monotonic()


class Failure(Exception):
    """Something a person can act on. The message says what is wrong and what to do; it is shown without a traceback."""


def say(text: str) -> None:
    """Print one line with the time since the program's start."""
    print(f"[{time.monotonic() - _started:6.1f}s] {text}", flush=True)


def run_logged(
    command: Sequence[str | Path],
    *,
    what: str,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a long command with its output in `log`, saying every 15 s how far it is.

    Raises Failure with the log's last lines when the command fails.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = said = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=cwd
        )
        try:
            while process.poll() is None:
                time.sleep(0.1)
                if time.monotonic() - said >= HEARTBEAT_SECONDS:
                    said = time.monotonic()
                    lines = log.read_text(errors="replace").splitlines()
                    last = lines[-1].strip()[-90:] if lines else "no output yet"
                    say(f"  {what}: {said - begin:.0f} s, line {len(lines)}: {last}")
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise Failure(f"{what} failed with exit code {process.returncode}. Its last lines ({log}):\n{tail}")


def wait_until(what: str, check: Callable[[], bool], *, timeout: float, hint: str, every: float = 0.3) -> None:
    """Call `check` until it is True, saying every 15 s that we wait; Failure with `hint` after `timeout` seconds."""
    begin = said = time.monotonic()
    while not check():
        now = time.monotonic()
        if now - begin > timeout:
            raise Failure(f"{what}: not so after {timeout:.0f} s. {hint}")
        if now - said >= HEARTBEAT_SECONDS:
            said = now
            say(f"  waiting for {what} ({now - begin:.0f} of at most {timeout:.0f} s)")
        time.sleep(every)


def warn(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)
