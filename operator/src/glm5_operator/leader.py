"""Leader election by a Lease, so that of several operator replicas one acts.

The client library ships an election too; it writes local time as UTC, ends the process on a connection error, and
leaves the Lease held at exit.
"""

import asyncio
import datetime
import logging
import time
from collections.abc import Callable
from typing import Any

from .cluster import ApiError, Cluster
from .settings import Settings

logger = logging.getLogger(__name__)

LEASE_NAME = "glm5-operator"
DURATION_SECONDS = 30
RENEW_SECONDS = 8
_ASK_SECONDS = 2


class LostError(Exception):
    """Another replica holds the Lease."""


class Leader:
    """The claim of one process on the Lease."""

    def __init__(self, cluster: Cluster, settings: Settings, clock: Callable[[], datetime.datetime]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._renewed: float | None = None
        self._seen: tuple[Any, float] = (None, 0.0)

    def holds(self) -> bool:
        """Whether this process may act now. False as well while the API server has not been reached for too long."""
        return self._renewed is not None and time.monotonic() - self._renewed < DURATION_SECONDS

    async def acquire(self) -> None:
        """Waits until this process holds the Lease, and tells of each holder that it waits for once."""
        begun = time.monotonic()
        told = ""
        while not await self._try():
            lease = self._seen[0]
            if lease is not None and self._holder(lease) not in ("", self._identity, told):
                told = self._holder(lease)
                self._tell_of_wait(told)
            await asyncio.sleep(_ASK_SECONDS)
        waited = time.monotonic() - begun
        logger.info(
            "this process acts: it holds Lease %s/%s, after %.0f s", self._settings.namespace, LEASE_NAME, waited
        )

    async def keep(self) -> None:
        """Renews for ever. Raises LostError when another process has taken the Lease."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            if not await self._try() and self._seen[0] is not None and self._holder(self._seen[0]) != self._identity:
                self._renewed = None
                raise LostError(f"Lease {LEASE_NAME} is now held by {self._holder(self._seen[0])}")

    async def release(self) -> None:
        """Gives the Lease up, so that another replica need not wait for it to expire."""
        if not self.holds():
            return
        self._renewed = None
        try:
            await self._cluster.replace_lease(
                self._settings.namespace, LEASE_NAME, self._seen[0], self._spec(holder="")
            )
        except ApiError as error:
            logger.warning("Lease not released: %s", error)

    @property
    def _identity(self) -> str:
        return self._settings.identity

    async def _try(self) -> bool:
        # The others count from the moment of the write, which the answer may follow late.
        begun = time.monotonic()
        try:
            lease = await self._cluster.get("Lease", self._settings.namespace, LEASE_NAME)
            if lease is not None and not self._free(lease):
                return False
            written = await self._cluster.replace_lease(self._settings.namespace, LEASE_NAME, lease, self._spec())
        except ApiError as error:
            logger.warning("Lease %s/%s: %s", self._settings.namespace, LEASE_NAME, error)
            return False
        self._seen = (written, time.monotonic())
        self._renewed = begun
        return True

    def _free(self, lease: dict[str, Any]) -> bool:
        # Clocks of two machines differ: what counts is how long *we* have seen the Lease unchanged.
        last, _ = self._seen
        if last is None or last["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            self._seen = (lease, time.monotonic())
        if self._holder(lease) in ("", self._identity):
            return True
        return self._seconds_left() < 0

    def _seconds_left(self) -> float:
        """Time until the Lease last seen runs out, if its holder does not renew it."""
        lease, since = self._seen
        return since + float(lease["spec"].get("leaseDurationSeconds") or DURATION_SECONDS) - time.monotonic()

    def _tell_of_wait(self, holder: str) -> None:
        left = max(0.0, self._seconds_left()) + _ASK_SECONDS
        logger.info(
            "this process does not act yet: Lease %s/%s is held by %s. It takes over once %s gives the Lease up, or, "
            "if %s has ended without that and renews it no more, in %.0f s, at %s at the latest",
            self._settings.namespace,
            LEASE_NAME,
            holder,
            holder,
            holder,
            left,
            (self._clock() + datetime.timedelta(seconds=left)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    @staticmethod
    def _holder(lease: dict[str, Any]) -> str:
        return str(lease.get("spec", {}).get("holderIdentity") or "")

    def _spec(self, holder: str | None = None) -> dict[str, Any]:
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._identity if holder is None else holder,
            "leaseDurationSeconds": DURATION_SECONDS if holder is None else 1,
            "renewTime": now,
        }
