"""Asks a live Prometheus every query of the dashboards (`PYTHONPATH=hack python -m monitoring.check`).

Prints a line a query with the number of series that came back, and ends with status 1 if a query failed or, without
being named by --empty, brought nothing.
"""

import argparse
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

from .__main__ import DASHBOARDS


def panel_queries() -> Iterator[tuple[str, str, str]]:
    """Return (dashboard, panel, expression) for every query, with values in the place of Grafana's variables."""
    for name, make in DASHBOARDS.items():
        board = make()
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"].replace("$__rate_interval", "1m")
                for variable in board["templating"]["list"]:
                    expression = expression.replace(f"${variable['name']}", variable.get("allValue", ""))
                yield name, panel["title"], expression


def ask(prometheus: str, expression: str) -> int:
    """Return how many series the expression has now. Raises ValueError with Prometheus' message if it is refused."""
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return len(json.load(answer)["data"]["result"])
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error).get("error", str(error))) from error


def main() -> int:
    """Ask all queries and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m monitoring.check", description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090")
    parser.add_argument("--dashboard", choices=DASHBOARDS, help="this one only")
    parser.add_argument("--empty", action="append", default=[], metavar="PANEL", help="a panel that may be empty")
    arguments = parser.parse_args()
    bad = 0
    for board, panel, expression in panel_queries():
        if arguments.dashboard not in (None, board):
            continue
        try:
            series = ask(arguments.prometheus, expression)
            failed = series == 0 and panel not in arguments.empty
            print(f"{'EMPTY' if failed else 'ok':5} {series:4} {board} / {panel}")
        except ValueError as error:
            failed = True
            print(f"WRONG      {board} / {panel}: {error}: {expression}")
        bad += failed
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
