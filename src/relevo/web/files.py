"""Static files: those of one folder, each read once, nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
}


class _File(NamedTuple):
    body: bytes
    kind: str
    mark: str


class Files:
    """An ASGI app with the files of a folder under a prefix: `Files(folder, "/static")`.

    What was there at the start is all that is ever served: a path is looked up in a table and
    never joined to a folder, so there is nothing to climb out of.
    """

    def __init__(self, folder: Path, prefix: str = "/static") -> None:
        self._prefix = prefix.rstrip("/")
        self._files = {
            path.name: _read(path)
            for path in sorted(folder.iterdir())
            if path.is_file() and path.suffix in _TYPES
        }

    def address(self, name: str) -> str:
        """The path of a file; it changes with the file, so that browsers may keep it for long."""
        return f"{self._prefix}/{name}?v={self._files[name].mark}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await self._answer(scope)(scope, receive, send)

    def _answer(self, scope: Scope) -> Response:
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        file = self._files.get(path.removeprefix(f"{self._prefix}/"))
        if file is None or path == path.removeprefix(f"{self._prefix}/"):
            return PlainTextResponse("there is no such file\n", 404)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("only GET\n", 405, {"allow": "GET, HEAD"})
        is_marked = scope.get("query_string", b"") == f"v={file.mark}".encode()
        headers = {
            "etag": f'"{file.mark}"',
            "cache-control": "public, max-age=31536000, immutable" if is_marked else "no-cache",
        }
        asked = dict(scope["headers"]).get(b"if-none-match", b"").decode("latin-1")
        if asked == headers["etag"]:
            return Response(None, 304, headers)
        return Response(file.body, 200, headers, media_type=file.kind)


def _read(path: Path) -> _File:
    body = path.read_bytes()
    return _File(body, _TYPES[path.suffix], hashlib.sha256(body).hexdigest()[:12])
