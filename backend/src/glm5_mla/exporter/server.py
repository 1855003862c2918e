"""`python -m glm5_mla.exporter.server`: serves /metrics, /v1/decode and /healthz; supervisor.py keeps it running."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import socketserver
import sys
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from glm5_mla.timing.rankfile import DEFAULT_RUN_DIR

from .collector import RankCollector
from .decode import decode_figures
from .ranks import MAX_RANKS, RunDirectory
from .supervisor import SETTING_STATUS
from .text import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

DEFAULT_PORT = 9408
_CLIENT_TIMEOUT_S = 10.0


class SettingError(ValueError):
    """An environment variable holds something that cannot be used."""


@dataclass(frozen=True)
class Settings:
    """What the environment says (names: docs/architecture.md)."""

    run_dir: str
    port: int
    deployment: str
    expected_ranks: int | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings. Raises SettingError naming the variable and what it may hold."""
        expected = _whole_number(environment, "GLM5_EXPECTED_RANKS", 0, 1, MAX_RANKS)
        return cls(
            run_dir=environment.get("GLM5_RUN_DIR") or DEFAULT_RUN_DIR,
            port=_whole_number(environment, "GLM5_EXPORTER_PORT", DEFAULT_PORT, 0, 65535),
            deployment=environment.get("GLM5_DEPLOYMENT", ""),
            expected_ranks=expected or None,
        )


def _whole_number(environment: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise SettingError(f"{name} is {text!r}: set it to a whole number from {low} to {high}, or leave it unset")
    return int(text)


class ExporterServer(ThreadingHTTPServer):
    """The HTTP server of one exporter, listening on all addresses, IPv6 included where there is any."""

    daemon_threads = True

    def __init__(self, settings: Settings) -> None:
        self.run_directory = RunDirectory(settings.run_dir, settings.expected_ranks)
        self.deployment = settings.deployment
        self.collector = RankCollector(self.run_directory, settings.deployment)
        self.dual_stack = socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if self.dual_stack else socket.AF_INET
        super().__init__(("::" if self.dual_stack else "0.0.0.0", settings.port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking the DNS for the machine's name, as HTTPServer does: it may be slow to answer in a pod."""
        if self.dual_stack:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]


class _Handler(BaseHTTPRequestHandler):
    server: ExporterServer
    timeout = _CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        try:
            if path == "/metrics":
                self._answer(HTTPStatus.OK, CONTENT_TYPE, self.server.collector.collect())
            elif path == "/v1/decode":
                figures = decode_figures(
                    self.server.run_directory.read(), self.server.deployment, self.server.run_directory.path
                )
                self._answer(HTTPStatus.OK, "application/json", json.dumps(figures).encode() + b"\n")
            elif path == "/healthz":
                self._answer(HTTPStatus.OK, "text/plain; charset=utf-8", b"ok\n")
            else:
                text = b"not here; this serves /metrics, /v1/decode and /healthz\n"
                self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", text)
        except ConnectionError:
            pass  # the client went away
        except Exception:
            log.exception("no answer to GET %s", path)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", b"failed; see the log\n")

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the log free of a line a scrape."""


def main() -> int:
    """Serve until SIGTERM or SIGINT. Returns 0 then, SETTING_STATUS on a bad setting or if the port can't be had."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        settings = Settings.from_environment(os.environ)
    except SettingError as error:
        print(f"glm5-mla exporter: {error}", file=sys.stderr)
        return SETTING_STATUS
    try:
        server = ExporterServer(settings)
    except OSError as error:
        print(
            f"glm5-mla exporter: cannot listen on port {settings.port}: {error.strerror};"
            " set GLM5_EXPORTER_PORT to a free one",
            file=sys.stderr,
        )
        return SETTING_STATUS
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    serving = threading.Thread(target=server.serve_forever, name="serve", daemon=True)
    serving.start()
    log.info("serving %s on port %d", settings.run_dir, server.server_port)
    ended.wait()
    server.shutdown()
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
