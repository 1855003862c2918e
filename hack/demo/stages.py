"""The demo's stages: what each took in time, memory and disk."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cluster.progress import say


def memory_in_use() -> int:
    """Bytes of memory in use on this machine, as its kernel reckons what is left for new programs."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return (int(fields["MemTotal"].split()[0]) - int(fields["MemAvailable"].split()[0])) * 1024


def disk_in_use() -> int:
    """Bytes in use on the disk of /var."""
    return shutil.disk_usage("/var").used


def machine() -> str:
    """Name this machine in a line: its processor, cores and memory."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{os.cpu_count()} cores of {model}, {total / (1 << 30):.0f} GiB"


@dataclass
class Stages:
    """Every stage that has ended: (name, seconds, bytes of memory and disk more than at the start of the demo)."""

    ended: list[tuple[str, float, int, int]] = field(default_factory=list)
    begin: float = field(default_factory=time.monotonic)
    memory: int = field(default_factory=memory_in_use)
    disk: int = field(default_factory=disk_in_use)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run the block as a stage of this name."""
        say(f"== {name}")
        begin = time.monotonic()
        yield
        spent = time.monotonic() - begin
        self.ended.append((name, spent, memory_in_use() - self.memory, disk_in_use() - self.disk))

    def table(self) -> str:
        """Lay out all stages, and the whole, for people."""
        lines = [f"{'stage':<60}{'seconds':>9}{'memory':>12}{'disk':>12}   (more than before the demo)"]
        for name, seconds, memory, disk in self.ended:
            lines.append(f"{name:<60}{seconds:>9.0f}{memory / 2**20:>8.0f} MiB{disk / 2**20:>8.0f} MiB")
        lines.append(f"{'all':<60}{time.monotonic() - self.begin:>9.0f}")
        return "\n".join(lines)
