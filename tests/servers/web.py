"""A web server of files on the loopback: with ranges, and with as many or as few headers as a test wants."""

from __future__ import annotations

import hashlib
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from html import escape
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

from tests.servers.process import QuietHandler, serving


@dataclass
class WebServer:
    """What the server holds, and what it tells of it."""

    files: dict[str, bytes] = field(default_factory=dict)  # content of each path, without the slash in front
    modified: int = 1_700_000_000  # time of the last change of all, in seconds since 1970
    etag: str | None = "strong"  # "strong", "weak", or None for none
    tells_modified: bool = True  # whether it gives `Last-Modified`
    tells_size: bool = True  # whether it gives `Content-Length`; else the body comes in one chunk
    has_ranges: bool = True  # whether it looks at `Range`
    status: int | None = None  # of every answer, in place of the right one
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # status and headers of the next answers
    cuts: list[int] = field(default_factory=list)  # bytes of the next whole files after which the connection breaks
    moved: dict[str, str] = field(default_factory=dict)  # where paths lead to now
    pages: str | None = None  # whose pages of folders it makes, "nginx" or "apache"; None for none
    links: list[str] = field(default_factory=list)  # what these pages link to besides
    paths: list[str] = field(default_factory=list)  # of each request so far
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # method and `Range` of each request so far
    url: str = ""

    def page(self, folder: str) -> bytes | None:
        """Return the page of a folder, whose name ends with a slash; None if there is no such folder."""
        below = [path[len(folder) :] for path in self.files if path.startswith(folder)]
        if self.pages is None or not below or (folder and not folder.endswith("/")):
            return None
        names = sorted({name.partition("/")[0] + ("/" if "/" in name else "") for name in below})
        up = "../" if self.pages == "nginx" else "/" + folder.rstrip("/").rpartition("/")[0]
        sorts = [] if self.pages == "nginx" else ["?C=N;O=D", "?C=M;O=A"]
        links = [*sorts, up, *map(quote, names), *self.links]
        rows = "".join(f'<a href="{escape(link)}">{escape(unquote(link))}</a> 01-Jan-2026 10:00 12\n' for link in links)
        return f"<html><head><title>Index of /{folder}</title></head><body><pre>{rows}</pre></body></html>".encode()

    def heads(self, data: bytes) -> dict[str, str]:
        """Return the headers that tell a version."""
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        etag = {"strong": f'"{digest}"', "weak": f'W/"{digest}"', None: None}[self.etag]
        found = {"ETag": etag, "Last-Modified": formatdate(self.modified, usegmt=True) if self.tells_modified else None}
        return {name: value for name, value in found.items() if value}


@contextmanager
def web_server(tls: ssl.SSLContext | None = None, **settings: Any) -> Iterator[WebServer]:
    """Serve until the body ends, by TLS if its context is given."""
    web = WebServer(**settings)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"web": web}))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with serving(server) as url:
        web.url = url if tls is None else url.replace("http", "https")
        yield web


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over connections that the client closes when it has read what it wants."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(QuietHandler):
    web: WebServer

    def do_GET(self) -> None:
        web, wanted = self.web, self.headers.get("Range")
        path = unquote(self.path.lstrip("/"))
        web.asked.append((self.command, wanted))
        web.paths.append(path)
        if web.refusals:
            status, refused = web.refusals.pop(0)
            self._send(status, refused, b"no")
            return
        if path in web.moved:
            self._send(302, {"Location": web.moved[path]}, b"")
            return
        if (page := web.page(path)) is not None:
            self._send(200, {"Content-Type": "text/html; charset=utf-8"}, page)
            return
        data = web.files.get(path)
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
        most = None
        if self.web.cuts and self.command == "GET" and status == 200:
            most, self.close_connection = self.web.cuts.pop(0), True
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
            self.wfile.write(body[:most])

    do_HEAD = do_GET  # noqa: N815
