"""Records of WARC, as crawlers write them."""

from __future__ import annotations

import gzip
from typing import Any


def page(number: int, body: bytes | None = None) -> dict[str, Any]:
    """Return a response."""
    body = b"<p>page %d</p>" % number * (number % 40) if body is None else body
    http = {"Content-Type": "text/html; charset=utf-8", "Set-Cookie": [f"a={number}", "b=2"]}
    head = sum(len(f"{name}: {value}\r\n") for name, value in _flat(http)) + len("HTTP/1.1 200 OK\r\n\r\n")
    url, identity = f"http://example.org/{number}", f"<urn:uuid:{number:032x}>"
    return {
        "type": "response",
        "url": url,
        "date": "2024-05-01T00:00:00Z",
        "id": identity,
        "mime": "text/html",
        "headers": {
            "WARC-Type": "response",
            "WARC-Target-URI": url,
            "WARC-Date": "2024-05-01T00:00:00Z",
            "WARC-Record-ID": identity,
            "Content-Type": "application/http; msgtype=response",
            "Content-Length": str(head + len(body)),
        },
        "http": {"line": "HTTP/1.1 200 OK", "status": 200, "headers": http},
        "payload": body,
    }


def text(number: int) -> dict[str, Any]:
    """Return a text as it was taken out of a page."""
    found = page(number)
    payload = f"páge {number}\r\n\r\n".encode() * (number % 7)
    headers = {**found["headers"], "WARC-Type": "conversion", "Content-Type": "text/plain"}
    headers["Content-Length"] = str(len(payload))
    return {**found, "type": "conversion", "mime": "text/plain", "headers": headers, "http": None, "payload": payload}


def records(count: int) -> list[dict[str, Any]]:
    return [text(number) if number % 3 else page(number) for number in range(count)]


def by_record(parts: list[bytes]) -> bytes:
    """Compress each record by itself, as crawlers do."""
    return b"".join(gzip.compress(part, mtime=0) for part in parts)


def _flat(headers: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, values in headers.items()
        for value in (values if isinstance(values, list) else [values])
    ]
