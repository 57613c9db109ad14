"""What an operator asks: does it live, is it ready, how is it doing."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from servelib.server.loop import EngineLoop
from servelib.server.metrics import CONTENT_TYPE


def add_probes(app: FastAPI, loop: EngineLoop) -> None:
    """Add ``/health``, ``/ready`` and ``/metrics``."""

    @app.get("/health")
    async def health() -> JSONResponse:
        """200 while the engine lives, 503 with the reason when not. Needs no API key."""
        return _verdict("ok", loop.failure)

    @app.get("/ready")
    async def ready() -> JSONResponse:
        """200 when a request would be taken, 503 with the reason when not: a dead engine, a shut-down."""
        return _verdict("ready", loop.not_ready)

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """The signals, in Prometheus's text format."""
        return Response(loop.metrics.text(), headers={"content-type": CONTENT_TYPE})


def _verdict(good: str, trouble: str | None) -> JSONResponse:
    if trouble is None:
        return JSONResponse({"status": good})
    return JSONResponse({"status": "failed", "reason": trouble}, status_code=503)
