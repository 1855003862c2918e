"""`glm5-mla serve -- ARGUMENTS`: the container's first process, which runs the server and answers for how it ended.

Why a process of its own: the kernel lets process 1 ignore SIGTERM until it has a handler for it, which SGLang installs
only when the model is loaded, and SIGKILL always, by which SGLang ends itself when a rank fails. This one forwards
signals from the first moment on, reaps what is left behind, and never lives on without the server.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping

from glm5_mla import refusal
from glm5_mla.timing import rankfile

SERVER = (sys.executable, "-m", "glm5_mla.server")
STOPPING = (signal.SIGTERM, signal.SIGINT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENTS", help="SGLang's own, as for `sglang serve`")


def run(args: argparse.Namespace) -> int:
    """Run the server until it ends, and return the exit status of the container."""
    run_dir = os.environ.get("GLM5_RUN_DIR") or rankfile.DEFAULT_RUN_DIR
    with stoppable(), termination_log() as log:
        try:
            rankfile.wipe(run_dir)
        except OSError as error:
            return refusal.Refusal(
                "RunDirUnusable", f"What an earlier server left in {run_dir} can't be removed: {error}."
            ).end()
        environment = {**os.environ, "GLM5_BACKEND_REQUIRED": "1", refusal.TERMINATION_LOG_VARIABLE: log}
        status, asked = supervise([*SERVER, *args.arguments], environment)
        refused = os.path.getsize(log) > 0
    if refused and not asked:
        return refusal.EXIT_STATUS
    if status == 0 and not asked and not {"-h", "--help"} & set(args.arguments):
        print("glm5-mla: SGLang ended by itself, without an error status", file=sys.stderr)
        return 1
    return status


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGINT end this process with status 128 + n while there is no server to pass them on to.

    For process 1 of a container there is no default action.
    """

    def stop(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def termination_log() -> Iterator[str]:
    """Yield the path of the empty file where a refusal is written: the container's, or a passing one elsewhere."""
    path = os.environ.get(refusal.TERMINATION_LOG_VARIABLE) or refusal.TERMINATION_LOG
    if os.access(path, os.W_OK):
        os.truncate(path, 0)
        yield path
    else:
        with tempfile.NamedTemporaryFile(prefix="glm5-termination-") as file:
            yield file.name


def supervise(command: list[str], environment: Mapping[str, str]) -> tuple[int, bool]:
    """Run `command` in a session of its own to its end, and end all that it left there.

    SIGTERM and SIGINT to this process become SIGTERM to the command: SGLang then finishes the requests that it has.
    Returns the exit status, 128 + n for signal n, and whether it was asked to stop.
    """
    child = 0
    asked = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal asked
        asked = True
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        if asked:
            return 128 + signal.SIGTERM, True
        # Signals that this process handles are back at their default in the new one.
        child = os.posix_spawn(command[0], command, environment, setsid=True, setsigdef=STOPPING)
        if asked:
            os.kill(child, signal.SIGTERM)
        ended, wait_status = os.wait()
        while ended != child:  # an orphan that came to process 1
            ended, wait_status = os.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    code = os.waitstatus_to_exitcode(wait_status)
    return (code if code >= 0 else 128 - code), asked
