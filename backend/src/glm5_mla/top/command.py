"""`glm5-mla top`: options, the loop, the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
from dataclasses import asdict
from typing import TYPE_CHECKING

from .screen import WIDTH, Style, lines
from .sources import Source, SourceError, choose, matching

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from .figures import PodFigures

_HISTORY = 120
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("deployment", nargs="?", help="this GLM5Deployment only (default: all)")
    parser.add_argument("-n", "--namespace", help="in this namespace only (default: all)")
    parser.add_argument("--prometheus", metavar="URL", help="read from Prometheus instead of the pods")
    parser.add_argument("--exporter", metavar="URL", help="read one exporter, as through kubectl port-forward")
    parser.add_argument("--once", action="store_true", help="print one look and end")
    parser.add_argument("--json", action="store_true", help="print JSON, a line a look")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between looks (default: 2)"
    )


def run(args: argparse.Namespace) -> int:
    """Show the figures until `q` or Ctrl-C. Returns 1 if a single look failed, 2 on a bad interval."""
    if not 0.2 <= args.interval <= 3600:
        print("glm5-mla top: --interval must be from 0.2 to 3600 seconds", file=sys.stderr)
        return 2
    source = choose(
        prometheus=args.prometheus, exporter=args.exporter, namespace=args.namespace, deployment=args.deployment
    )
    once = args.once or not (args.json or sys.stdout.isatty())
    try:
        if once or args.json:
            return _print(source, args, once)
        return _watch(source, args)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _print(source: Source, args: argparse.Namespace, once: bool) -> int:
    while True:
        try:
            pods = matching(source.read(), args.deployment)
        except SourceError as error:
            print(f"glm5-mla top: {error}", file=sys.stderr)
            if once:
                return 1
        else:
            if args.json:
                print(json.dumps({"time": time.time(), "pods": [asdict(pod) for pod in pods]}), flush=True)
            else:
                print("\n".join(lines(pods, {}, _style())))
        if once:
            return 0
        time.sleep(args.interval)


def _style() -> Style:
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return Style(color=not plain, unicode=(sys.stdout.encoding or "").lower().replace("-", "") == "utf8")


def _watch(source: Source, args: argparse.Namespace) -> int:
    history: dict[str, list[float]] = {}
    pods: list[PodFigures] = []
    with _terminal():
        while True:
            try:
                pods, trouble = matching(source.read(), args.deployment), ""
                for pod in pods:
                    history.setdefault(pod.pod, []).append(pod.tokens_per_second or 0.0)
                    del history[pod.pod][:-_HISTORY]
            except SourceError as error:
                pods, trouble = [], str(error)
            title = f"GLM-5 decode   {time.strftime('%H:%M:%S')}   from {source.name}   q: quit"
            shown = [title[:WIDTH], "", *([trouble[: 2 * WIDTH]] if trouble else lines(pods, history, _style()))]
            height = os.get_terminal_size().lines
            body = "\n".join(line + _CLEAR_LINE for line in shown[: height - 1])
            sys.stdout.write(_HOME + body + _CLEAR_BELOW)
            sys.stdout.flush()
            ready, _, _ = select.select([sys.stdin], [], [], args.interval)
            if ready and sys.stdin.read(1) in ("q", ""):
                return 0


@contextlib.contextmanager
def _terminal() -> Iterator[None]:
    """Use the terminal's second screen, without echo, and leave it as it was."""
    interactive = sys.stdin.isatty()
    before = termios.tcgetattr(sys.stdin) if interactive else None
    sys.stdout.write(_ENTER)
    try:
        if interactive:
            tty.setcbreak(sys.stdin)
        yield
    finally:
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
