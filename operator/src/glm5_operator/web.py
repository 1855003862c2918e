"""The operator's own endpoints: /metrics, /healthz and /readyz."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from .metrics import Metrics


async def serve_metrics(metrics: Metrics, port: int) -> web.AppRunner:
    """Serves /metrics on all addresses."""

    async def show(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", show)
    return await _serve(app, port)


async def serve_health(trouble: Callable[[], str | None], port: int) -> web.AppRunner:
    """Serves /healthz and /readyz: 200, or 503 with the sentence that `trouble` gives."""

    async def show(_: web.Request) -> web.Response:
        sentence = trouble()
        return web.Response(status=503 if sentence else 200, text=f"{sentence or 'ok'}\n")

    app = web.Application()
    app.router.add_get("/healthz", show)
    app.router.add_get("/readyz", show)
    return await _serve(app, port)


async def _serve(app: web.Application, port: int) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner
