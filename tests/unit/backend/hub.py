"""A server that speaks as much of the Hugging Face hub's HTTP API as a download needs.

Tests start it on loopback; `python hub.py REPO DIRECTORY PORT` serves a directory, as in a pod of the cluster tests.
"""

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """One repository. The first `cuts` answers with a body end after `cut_after` bytes, as on a broken line."""

    daemon_threads = True

    def __init__(
        self,
        repo: str,
        files: dict[str, bytes],
        cut_after: int | None = None,
        cuts: int = 0,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        super().__init__(address, _Handler)
        self.repo = repo
        self.files = files
        self.cut_after = cut_after
        self.cuts = cuts
        self.bodies: list[tuple[str, int]] = []
        """(file, first byte) of every body that was asked for."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def _large(data: bytes) -> dict[str, object]:
    """What the hub tells beside of a file that it keeps in large-file storage."""
    if len(data) < 1_000_000:
        return {}
    return {"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}}


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = urlsplit(self.path).path  # as a proxy it is asked by the whole address
        if path.startswith(f"/api/models/{self.server.repo}/"):
            self._model_info()
        elif path.startswith(f"/{self.server.repo}/resolve/{COMMIT}/"):
            self._file(path.rpartition(f"{COMMIT}/")[2], body)
        else:
            self._send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})

    def _model_info(self) -> None:
        files = [{"rfilename": name, "size": len(data), **_large(data)} for name, data in self.server.files.items()]
        info = {"id": self.server.repo, "sha": COMMIT, "siblings": files}
        self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str, body: bool) -> None:
        data = self.server.files[name]
        etag = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        first = 0
        if asked := self.headers.get("Range"):
            first = int(asked.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        if not body:
            self._send(200, b"", headers, length=len(data))
            return
        self.server.bodies.append((name, first))
        print(f"body of {name} from byte {first}", flush=True)
        rest = data[first:]
        if self.server.cut_after is not None and self.server.cuts > 0 and len(rest) > self.server.cut_after:
            self.server.cuts -= 1
            self._send(206 if asked else 200, rest[: self.server.cut_after], headers, length=len(rest))
            self.close_connection = True
            return
        self._send(206 if asked else 200, rest, headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str], length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    repo, directory, port = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    found = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(".")]
    files = {str(path.relative_to(directory)): path.read_bytes() for path in found}
    Hub(repo, files, address=("0.0.0.0", port)).serve_forever()


if __name__ == "__main__":
    main()
