"""The server that the page comes from, by default for this machine only."""

import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

# First, as it says what to install where Gradio is missing, which brings the others.
from deepff.app.interface import blocks, gr  # isort: skip
import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware

from deepff.app.exports import archive_path
from deepff.app.workspace import Workspace
from deepff.errors import InputError
from deepff.export.formats import FORMATS

_STATIC = Path(__file__).parent / "static"
_SCRIPTS = ("mend.js", "app.js")
# With this the browser refuses to ask any other server.
_CONTENT_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; frame-ancestors 'self'"
)
# Gradio's routes to files and to other servers, none of which the page uses.
_CLOSED = ("file", "upload", "proxy", "stream", "process_recording", "vibe", "run-history")
_FIRST_PORT, _LAST_PORT = 7860, 7959


def serve(
    workspace: Workspace,
    host: str,
    port: int | None,
    on_start: Callable[[str], None],
    allowed_hosts: Sequence[str] = (),
    root_path: str = "",
) -> None:
    """Serve the page until it is interrupted. The port is by default the first free one from 7860.
    `on_start` gets the page's URL once it can be opened. `allowed_hosts` are more names, without a
    port, for a loopback address: a proxy's or hub's. A proxy serves the page under `root_path`."""
    # Where matplotlib is installed gradio would look for a display's backend, while a page waits.
    os.environ.setdefault("MPLBACKEND", "agg")
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{listening.getsockname()[1]}/"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_start(url)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            # A page keeps a connection open for as long as it is shown. That must not hold up the
            # end, and cutting it off is no error to report.
            self.force_exit = True
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

    app = web_app(workspace, host, allowed_hosts, root_path)
    Server(uvicorn.Config(app, log_level="warning")).run([listening])


def web_app(
    workspace: Workspace,
    host: str = "127.0.0.1",
    allowed_hosts: Sequence[str] = (),
    root_path: str = "",
) -> FastAPI:
    """The page, and the downloads of exports, as one web application; see :func:`serve`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/download/{format}.zip")
    def download(format: str) -> FileResponse:
        path = archive_path(workspace.folder, format)
        if format not in FORMATS or not path.is_file():
            raise HTTPException(404)
        return FileResponse(path, filename=path.name)

    gr.mount_gradio_app(
        app,
        blocks(workspace),
        "/",
        allowed_paths=[],
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        root_path=root_path or None,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=gr.themes.Base(
            primary_hue="blue",
            font=("system-ui", "sans-serif"),
            font_mono=("ui-monospace", "monospace"),
        ),
        css=(_STATIC / "app.css").read_text("utf-8"),
        head="".join(
            f"<script>{(_STATIC / name).read_text('utf-8')}</script>" for name in _SCRIPTS
        ),
    )
    app.add_middleware(_Guard)
    if is_loopback(host):
        # A foreign page whose name was made to resolve to this machine does not get in.
        hosts = ["localhost", "127.0.0.1", "[::1]", host, *allowed_hosts]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    return app


class _Guard:
    """Keeps the browser to this server, and other pages and routes to files out. Gradio lets every
    page of this machine, on any port, read with the user's cookies; the app's own page needs no
    such leave."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["content-security-policy"] = _CONTENT_POLICY
                for name in [name for name in headers if name.startswith("access-control-")]:
                    del headers[name]
            await send(message)

        if any(scope["path"].startswith(f"/gradio_api/{name}") for name in _CLOSED):
            await Response(status_code=403)(scope, receive, send)
        else:
            await self._app(scope, receive, with_policy)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason = ""
    for candidate in range(_FIRST_PORT, _LAST_PORT + 1) if port is None else (port,):
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            return listening
        except OSError as error:
            listening.close()
            reason = error.strerror or str(error)
    ports = f"{_FIRST_PORT} to {_LAST_PORT}" if port is None else str(port)
    raise InputError(
        f"cannot listen on {host}, port {ports} ({reason}); choose another --host or --port"
    )
