"""File systems of URLs, and calls to them: with retries, and several at once.

Every remote call of the package goes through `call`, which retries transient failures and translates errors.

The file systems of fsspec are changed in three ways:

- Keys are literal. s3fs and adlfs cut a key at `?versionId=`, even if no version was requested. adlfs parses a key as
  a URL, which drops line breaks and reorders the parts after `?` and `#`. So the index of `a?versionId=1.jsonl` would
  overwrite the object `a`.
- Small bodies are sent to S3 at once. botocore first asks the server whether it accepts a body (`Expect: 100-continue`,
  RFC 9110, section 10.1.1). This costs a round trip, and saves time only for a large body that is refused.
- Creating an object in memory (`memory://`) is exclusive between threads. fsspec checks for the object, copies the
  content and stores it in separate steps.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ledgerbeam._base.extensions import install_command
from ledgerbeam._base.process import library_logger
from ledgerbeam._base.redaction import register_environment, register_secrets
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io.storage.responses import _first_line, is_transient, seconds_to_wait, storage_error
from ledgerbeam.io.storage.urls import is_local, split_scheme, store_named

if TYPE_CHECKING:
    import tenacity


Options = Mapping[str, Any]  # storage options: keyword arguments of the fsspec file system, passed untouched
CONCURRENCY = 16  # number of requests that one call keeps in flight
ATTEMPTS = 5  # number of attempts of a remote call before its error is final
PAUSE_SECONDS = 0.2  # upper bound of the random pause before the first retry; it doubles with every retry, up to 5 s
LONGEST_WAIT_SECONDS = 300.0  # longest wait before a retry if the server names a time (`Retry-After`), in seconds
SILENT_SECONDS = 2.0  # time of retries before the first warning, in seconds
WARNING_SECONDS = 10.0  # least time between two warnings of retries in one process, in seconds
ASKED_FOR = 1 << 20  # least size of a body for which S3 first confirms that it accepts it, in bytes
_LONG_PAUSE = 5.0  # a longer pause is named in the warning

_VERSIONS = {"s3": "?versionId=", "azure": "?versionid="}  # marker before the version of an object in its name
_IN_URLS = re.compile(r"[\t\r\n?#]")  # characters that have a special meaning in a URL but not in a key
_P = ParamSpec("_P")
_T = TypeVar("_T")
_R = TypeVar("_R")
_log = library_logger(__name__)
_filesystems: dict[tuple[int, str, str], Any] = {}
_silent_until = 0.0
_turn = threading.Lock()


def filesystem(url: str, options: Options | None = None) -> Any:
    """Return the fsspec file system of a URL, one for each process and set of options.

    fsspec itself keeps one instance for each thread, with separate connections. Threads can share an instance, because
    all its calls run on fsspec's event loop.
    """
    import fsspec.utils  # noqa: PLC0415 - a job on local files needs neither this nor tenacity

    scheme = split_scheme(url)[0]
    key = (os.getpid(), scheme, fsspec.utils.tokenize(**options) if options else "")
    if (found := _filesystems.get(key)) is None:
        # A forked child keeps its parent's instance in the table: closing it there could touch its sockets.
        found = _filesystems.setdefault(key, _connect(scheme, options or {}))
    return found


def import_client(scheme: str) -> None:
    """Import the client of a store, so that forked processes need not. A client that starts threads is not imported."""
    if store_named(scheme).imports_quietly:
        import tenacity  # noqa: F401, PLC0415 - of each call

        with contextlib.suppress(ImportError):  # reported when the store is used
            _client(scheme)


def call(url: str, doing: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a remote call and retry it when it fails for a transient reason.

    Time-outs, broken connections and 5xx responses are retried, up to `ATTEMPTS` attempts in all, after exponential,
    jittered pauses or after the time that the server names. Every other error is final at once.

    StorageError: the call failed; the message names the URL and `doing`, such as "read". See `storage_error`.
    """
    try:
        policy = retrying().copy(before_sleep=lambda tries: _warn_of_retry(tries, url, doing))
        return policy(function, *args, **kwargs)
    except LedgerbeamError:
        raise
    except Exception as error:
        raise storage_error(error, url, doing) from error


def retrying() -> tenacity.Retrying:
    """Return the retry policy of remote calls: only transient errors, after random pauses of up to 5 s.

    If the server names a time for the next request, that time applies, up to `LONGEST_WAIT_SECONDS`.
    """
    import tenacity  # noqa: PLC0415

    pause = tenacity.wait_random_exponential(multiplier=PAUSE_SECONDS, max=5.0)
    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=lambda tries: max(pause(tries), seconds_to_wait(_error_of(tries)) or 0.0),
        retry=tenacity.retry_if_exception(
            lambda error: is_transient(error) and (seconds_to_wait(error) or 0.0) <= LONGEST_WAIT_SECONDS
        ),
        reraise=True,
    )


def _error_of(tries: tenacity.RetryCallState) -> BaseException | None:
    return None if tries.outcome is None else tries.outcome.exception()


def _warn_of_retry(tries: tenacity.RetryCallState, url: str, doing: str) -> None:
    """Warn of a retry that starts `SILENT_SECONDS` or more after the call, at most once in `WARNING_SECONDS`.

    A store that throttles rejects some of many requests, which succeed a moment later; these need no warning.
    """
    global _silent_until  # noqa: PLW0603 - one for the process
    now = time.monotonic()
    error, pause = _error_of(tries), tries.upcoming_sleep
    if error is None or now < _silent_until or now - tries.start_time + pause < SILENT_SECONDS:
        return
    _silent_until = now + WARNING_SECONDS
    _log.warning(
        "%s: cannot %s yet, attempt %d of %d failed (%s); it will be retried%s",
        *(url, doing, tries.attempt_number, ATTEMPTS, _first_line(error)),
        f" in {pause:.0f} s" if pause > _LONG_PAUSE else "",
    )


def map_ahead(function: Callable[[_T], _R], items: Iterable[_T], threads: int, waiting: int = 0) -> Iterator[_R]:
    """Apply a function to items in threads and yield the results in the order of the items; raise its first exception.

    Items are read lazily. At most `threads + waiting + 1` results exist at a time; `waiting` of them may be complete
    before a slow earlier one. Closing the iterator cancels the calls that have not started.
    """
    pool = ThreadPoolExecutor(threads, "ledgerbeam-ahead")
    running: deque[Future[_R]] = deque()
    try:
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) > threads + waiting:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def ask_each(ask: Callable[[str], _T], urls: Sequence[str]) -> list[_T]:
    """Call a function for each URL, in order: for local ones in turn, else up to `CONCURRENCY` calls at once."""
    if len(urls) < 2 or all(map(is_local, urls)):
        return [ask(url) for url in urls]
    return list(map_ahead(ask, urls, CONCURRENCY))


def _connect(scheme: str, options: Options) -> Any:
    register_environment()  # before the client can print its credentials
    register_secrets(options)
    try:
        return _client(scheme)(skip_instance_cache=True, **options)
    except ImportError as error:
        store = store_named(scheme)
        remedy = f"pip install {store.package}" if store.package else str(error)
        remedy = install_command(store.extra) if store.extra else remedy
        raise UsageError(f"{scheme}:// needs a package that is not installed: {remedy}") from error
    except ValueError as error:
        raise UsageError(f"{scheme}:// is not a file system that fsspec knows: {error}") from error


def _client(scheme: str) -> Any:
    import fsspec  # noqa: PLC0415

    found = fsspec.get_filesystem_class(scheme)
    if store_named(scheme).api == "hub":
        from ledgerbeam.io.storage.hub import HubFileSystem  # noqa: PLC0415 - an optional package

        return HubFileSystem
    # The default class of gcsfs asks for the type of every bucket, uses gRPC for zonal ones, where an object is visible
    # while it is being written, and does not survive a fork. Its base class uses the HTTP API.
    plain = (kind for kind in found.__mro__ if (kind.__module__, kind.__name__) == ("gcsfs.core", "GCSFileSystem"))
    named = with_literal_keys(next(plain, found), store_named(scheme).api)
    if scheme == "memory":
        return creating_in_turn(named)
    return sending_at_once(named) if store_named(scheme).api == "s3" else named


def with_literal_keys(client: Any, api: str | None) -> Any:
    """Return a class of file systems with literal keys; the same class if it has them already."""
    if api not in _VERSIONS:
        return client
    mark = _VERSIONS[api]

    class LiteralKeys(client):
        @classmethod
        def _strip_protocol(cls, path: Any) -> Any:
            odd = _IN_URLS.search(path) if api == "azure" and isinstance(path, str) else None
            if odd is None:
                return super()._strip_protocol(path)
            return super()._strip_protocol(path[: odd.start()]) + path[odd.start() :]

        def split_path(self, path: str, *args: Any, **kwargs: Any) -> tuple[str, str, str | None]:
            cut = path.find(mark)
            if cut < 0 or self.version_aware:
                bucket, key, version = super().split_path(path, *args, **kwargs)
                return bucket, key, version
            bucket, key, _ = super().split_path(path[:cut], *args, **kwargs)
            return bucket, key + path[cut:], None

    return LiteralKeys


def sending_at_once(client: Any) -> Any:
    """Return a class of file systems that sends bodies of less than `ASKED_FOR` bytes to S3 without asking first."""

    class AtOnce(client):
        async def set_session(self, *args: Any, **kwargs: Any) -> Any:
            found = await super().set_session(*args, **kwargs)
            found.meta.events.register_last("before-call.s3", _ask_for_large_only, unique_id="ledgerbeam-ask")
            return found

    return AtOnce


def _ask_for_large_only(params: dict[str, Any], **_: Any) -> None:
    """Remove the header `Expect` from a request with a small body."""
    from botocore.utils import determine_content_length  # noqa: PLC0415 - an optional package

    if (length := determine_content_length(params.get("body"))) is not None and length < ASKED_FOR:
        params["headers"].pop("Expect", None)


def creating_in_turn(client: Any) -> Any:
    """Return a class of file systems that lets only one thread at a time write a whole object."""

    class InTurn(client):
        def pipe_file(self, *args: Any, **kwargs: Any) -> Any:
            with _turn:
                return super().pipe_file(*args, **kwargs)

    return InTurn
