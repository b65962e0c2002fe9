"""A web server of files on the loopback: with ranges, and with as many or as few headers as a test wants."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class WebServer:
    """What the server holds, and what it tells of it.

    Attributes:
        files: Content of each path, without the slash in front.
        modified: Time of the last change of all, in seconds since 1970.
        etag: `"strong"`, `"weak"`, or None for none.
        tells_modified: Whether it gives `Last-Modified`.
        tells_size: Whether it gives `Content-Length`; else the body comes in one chunk.
        has_ranges: Whether it looks at `Range`.
        status: Of every answer, in place of the right one.
        asked: Method and `Range` of each request so far.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    modified: int = 1_700_000_000
    etag: str | None = "strong"
    tells_modified: bool = True
    tells_size: bool = True
    has_ranges: bool = True
    status: int | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def heads(self, data: bytes) -> dict[str, str]:
        """Return the headers that tell a version."""
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        etag = {"strong": f'"{digest}"', "weak": f'W/"{digest}"', None: None}[self.etag]
        found = {"ETag": etag, "Last-Modified": formatdate(self.modified, usegmt=True) if self.tells_modified else None}
        return {name: value for name, value in found.items() if value}


@contextmanager
def web_server(**settings: Any) -> Iterator[WebServer]:
    """Serve until the body ends."""
    web = WebServer(**settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"web": web}))
    web.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    web: WebServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        web, wanted = self.web, self.headers.get("Range")
        web.asked.append((self.command, wanted))
        data = web.files.get(self.path.lstrip("/"))
        if web.status is not None or data is None:
            self._send(web.status or 404, {}, b"no")
            return
        heads = web.heads(data)
        if wanted is None or not web.has_ranges:
            self._send(200, heads, data)
            return
        first, last = (int(word) for word in wanted.removeprefix("bytes=").split("-"))
        if first >= len(data):
            self._send(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
            return
        part = data[first : last + 1]
        heads["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        self._send(206, heads, part)

    def _send(self, status: int, heads: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in heads.items():
            self.send_header(name, value)
        if self.web.tells_size or status != 200:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
