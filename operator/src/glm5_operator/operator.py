"""The operator's process: endpoints, the Lease, watches, workers, the reader and the sweep, side by side."""

import asyncio
import datetime
import json
import logging
import signal
import sys

from . import handlers, web
from .api import names
from .cluster import ApiError, Cluster
from .controller import Controller
from .decode_reader import DecodeReader
from .leader import Leader, LostError
from .metrics import Metrics
from .settings import Settings

logger = logging.getLogger(__name__)

# A pass takes milliseconds, one that waits for a slow API server half a minute.
_STUCK_SECONDS = 180.0

_DEFINITION_SECONDS = 3.0


def utc_now() -> datetime.datetime:
    """The time, to the second: as Kubernetes keeps it."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        entry = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def set_up_logging(level: str) -> None:
    """JSON logs on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


async def run(settings: Settings) -> int:
    """Runs until SIGTERM or SIGINT (returns 0) or until the Lease is lost (returns 1). Raises where a part fails."""
    metrics = Metrics()
    cluster = await Cluster.connect(metrics, utc_now)
    controller = Controller(cluster, settings, metrics, utc_now)
    leader = Leader(cluster, settings, utc_now)

    def trouble() -> str | None:
        stalled = controller.queue.stalled_seconds
        if stalled > _STUCK_SECONDS:
            return f"objects wait, and for {stalled:.0f} s no worker has taken one"
        return None

    runners = [
        await web.serve_metrics(metrics, settings.metrics_port),
        await web.serve_health(trouble, settings.health_port),
    ]
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    acting = asyncio.create_task(_act(controller, leader, cluster, settings, metrics))
    try:
        await asyncio.wait({stopping, acting}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return 0
        acting.result()  # Kopf takes the signals over and returns once it has stopped
        return 0
    except LostError as lost:
        logger.error("%s: this process ends and waits its turn", lost)
        return 1
    finally:
        for task in (stopping, acting):
            task.cancel()
        await asyncio.gather(stopping, acting, return_exceptions=True)
        if settings.leader_election:
            await leader.release()
        for runner in runners:
            await runner.cleanup()
        await cluster.close()


async def _act(controller: Controller, leader: Leader, cluster: Cluster, settings: Settings, metrics: Metrics) -> None:
    """Waits for the Lease, then does the operator's work until the watches stop. Raises where a part of it fails."""
    if settings.leader_election:
        await leader.acquire()
        controller.may_act = leader.holds
    metrics.leader.set(1)
    keep = [asyncio.create_task(leader.keep())] if settings.leader_election else []
    parts = [
        _watch(controller, cluster, settings),
        DecodeReader(controller, settings, metrics).run(),
        _sweep(controller, settings),
        *(controller.queue.work(controller.handle) for _ in range(settings.workers)),
    ]
    tasks = keep + [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(controller: Controller, cluster: Cluster, settings: Settings) -> None:
    """Watches once the CustomResourceDefinition is there: a watch started before would see nothing."""
    while not await _defined(cluster):
        logger.warning("the cluster has no %s: apply manifests/crd.yaml, or install the chart", names.KIND)
        await asyncio.sleep(_DEFINITION_SECONDS)
    await handlers.watch(controller, settings)


async def _defined(cluster: Cluster) -> bool:
    try:
        return await cluster.has_api(names.API_VERSION, names.PLURAL)
    except ApiError as error:
        logger.warning("%s", error)
        return False


async def _sweep(controller: Controller, settings: Settings) -> None:
    """Looks at every object now and then: what no event told is found within this time."""
    while True:
        await asyncio.sleep(settings.sweep_seconds)
        await controller.sweep()
