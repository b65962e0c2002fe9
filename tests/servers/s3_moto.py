"""An S3 server in Python for machines without MinIO: moto, made exact for concurrent writers and any key.

A command line: `s3_moto.py ADDRESS PORT`. It keeps the objects in memory, and serves until a signal ends it.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from moto.moto_server import werkzeug_app
from moto.moto_server.utilities import RegexConverter
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class OneAtATime:
    """A WSGI application whose requests do not overlap.

    moto looks whether an object is there and stores it in two steps, without a lock. Of two requests that create one
    object exclusively, both could succeed.
    """

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        # The whole body first: the next request of the connection begins behind it, and a slow client holds no lock.
        length = -1 if environ.get("wsgi.input_terminated") else int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self._lock:
            return [b"".join(self._application(environ, start_response))]


class AnyKey(RegexConverter):
    """A part of a route that may hold line breaks, as a key may; moto finds no route for such a key."""

    def __init__(self, url_map: Any, *items: Any) -> None:
        super().__init__(url_map, *items)
        self.regex = f"(?s:{items[0]})"


class Handler(MotoRequestHandler):
    """A handler of requests that keeps connections open, and is silent."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_expect_100(self) -> bool:
        """Leave the answer to werkzeug, which sends it too."""
        return True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Write nothing: only failures belong into the log."""


def main(address: str, port: int) -> None:
    """Serve until the process ends."""
    werkzeug_app.RegexConverter = AnyKey
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    make_server(address, port, application, threaded=True, request_handler=Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
