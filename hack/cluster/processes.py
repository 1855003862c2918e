"""Processes as /proc shows them. Nothing is remembered in pid files: a recycled id could then hit a stranger."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A running process: its id on the host and its argument list."""

    pid: int
    argv: tuple[str, ...]


def processes() -> Iterator[Process]:
    """All processes of the machine that have an argument list (kernel threads and zombies have none)."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            if argv != [""]:
                yield Process(int(entry.name), tuple(argv))


def pid_namespace(pid: int) -> str | None:
    """An opaque name of the process-id namespace that `pid` lives in; None when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def kill(pid: int) -> None:
    """End a process at once; one that has ended already is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def proportional_memory(pids: list[int]) -> int:
    """Bytes of memory that these processes hold, shared pages counted by their share."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total
