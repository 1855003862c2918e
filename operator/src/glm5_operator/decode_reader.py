"""Reads decode figures from the pods' exporters, off the path of reconciliation."""

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .controller import Controller
from .metrics import Metrics
from .reconcile.decode import Reading, parse_reading
from .resources.context import EXPORTER_PORT
from .settings import Settings
from .work_queue import Key

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

# A pod is not trusted: neither with the operator's memory nor with its time.
_MAX_BYTES = 256 * 1024
_TIMEOUT_SECONDS = 2.0
_PARALLEL_READS = 16

# One missed answer is a busy pod; after three the figures are unknown.
_MISSES_UNTIL_UNKNOWN = 3


class DecodeReader:
    """Asks `GET :9408/v1/decode` of every pod that can answer and wakes objects whose figures changed."""

    def __init__(self, controller: Controller, settings: Settings, metrics: Metrics) -> None:
        self._controller = controller
        self._settings = settings
        self._metrics = metrics
        self._limit = asyncio.Semaphore(_PARALLEL_READS)
        self._misses: dict[tuple[Key, str], int] = {}

    async def run(self) -> None:
        """Reads for ever."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        # Not decompressed: a few bytes may unpack to gigabytes.
        plain = {"Accept-Encoding": "identity"}
        async with aiohttp.ClientSession(timeout=timeout, headers=plain, auto_decompress=False) as session:
            while True:
                pods = self._controller.answering_pods()
                self._misses = {miss: count for miss, count in self._misses.items() if miss[1] in pods.get(miss[0], {})}
                await asyncio.gather(*(self._read_object(session, key, found) for key, found in pods.items()))
                await asyncio.sleep(self._settings.decode_read_seconds)

    async def _read_object(self, session: "aiohttp.ClientSession", key: Key, pods: Mapping[str, str]) -> None:
        before = self._controller.readings.get(key, {})
        answers = await asyncio.gather(*(self._read(session, address) for address in pods.values()))
        readings: dict[str, Reading | None] = {}
        for name, answer in zip(pods, answers, strict=True):
            misses = self._misses[key, name] = 0 if answer is not None else self._misses.get((key, name), 0) + 1
            readings[name] = before.get(name) if 0 < misses < _MISSES_UNTIL_UNKNOWN else answer
        if readings != before:
            self._controller.readings[key] = readings
            self._controller.queue.add(key)

    async def _read(self, session: "aiohttp.ClientSession", address: str) -> Reading | None:
        host = f"[{address}]" if ":" in address else address
        try:
            async with (
                self._limit,
                session.get(f"http://{host}:{EXPORTER_PORT}/v1/decode", allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise ValueError(f"HTTP {response.status}")
                body = await response.content.read(_MAX_BYTES + 1)
                while len(body) <= _MAX_BYTES and (more := await response.content.read(_MAX_BYTES + 1 - len(body))):
                    body += more
            if len(body) > _MAX_BYTES:
                raise ValueError(f"answer of more than {_MAX_BYTES} bytes")
            reading = parse_reading(json.loads(body))
        except ValueError as error:
            self._metrics.decode_reads.labels("invalid").inc()
            logger.debug("decode figures of %s: %s", address, error)
            return None
        except Exception as error:  # whatever a network or a pod may do
            self._metrics.decode_reads.labels("error").inc()
            logger.debug("decode figures of %s: %r", address, error)
            return None
        self._metrics.decode_reads.labels("ok" if reading is not None else "invalid").inc()
        return reading
