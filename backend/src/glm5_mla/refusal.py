"""Refusing to serve: one reason, one sentence, one exit status, and the place where Kubernetes looks for them."""

from __future__ import annotations

import json
import os
import sys

EXIT_STATUS = 78
"""EX_CONFIG of sysexits.h: a restart won't help before something is changed."""

TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LOG_VARIABLE = "GLM5_TERMINATION_LOG"
"""Names another file, for a server that runs outside of Kubernetes."""


class Refusal(Exception):
    """The server must not serve like this. `reason` is CamelCase, `message` a sentence that says what to change."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message

    def end(self) -> int:
        """Record the refusal, print it, and return the exit status that goes with it."""
        self.record()
        print(f"glm5-mla refuses to go on: {self}", file=sys.stderr, flush=True)
        return EXIT_STATUS

    def record(self, path: str | None = None) -> None:
        """Write the reason to the container's termination log, where there is one; the first writer's word stands.

        Every rank of a server may refuse for its own reason, or because another one did.
        """
        path = path or os.environ.get(TERMINATION_LOG_VARIABLE) or TERMINATION_LOG
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError:  # not in a container
            return
        with os.fdopen(descriptor, "w") as log:
            if os.fstat(descriptor).st_size == 0:
                log.write(json.dumps({"reason": self.reason, "message": self.message}) + "\n")
