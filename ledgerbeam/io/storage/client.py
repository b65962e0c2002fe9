"""How a URL reaches its file system: canonical names, fsspec instances, retries and errors.

Every remote call of the package goes through `call`, which decides what is retried, how often, and which error the
caller sees.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ledgerbeam._base.disk import NO_ROOM, REMEDIES
from ledgerbeam._base.extras import install_command
from ledgerbeam._base.logger import library_logger
from ledgerbeam._base.redaction import know_environment, know_secrets
from ledgerbeam.errors import DiskFullError, LedgerbeamError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.storage.clients import creating_in_turn, sending_at_once, with_literal_keys
from ledgerbeam.io.storage.stores import store_named
from ledgerbeam.io.storage.urls import is_local, split_scheme, store_of

if TYPE_CHECKING:
    import tenacity

Options = Mapping[str, Any]
"""Storage options: keyword arguments of the fsspec file system, passed untouched."""

ATTEMPTS = 5
"""Number of attempts of a remote call before its error is final."""

PAUSE_SECONDS = 0.2
"""Upper bound of the random pause before the first retry; it doubles with every retry, up to 5 s."""

CONCURRENCY = 16
"""Number of requests that one call keeps in flight."""

LONGEST_WAIT_SECONDS = 300.0
"""Longest wait before a retry when the server names a time (`Retry-After`)."""

SILENT_SECONDS = 2.0
"""How long a call is retried before the first warning."""

WARNING_SECONDS = 10.0
"""Least time between two warnings of retries in one process."""

_LONG_PAUSE = 5.0  # a longer pause is named in the warning

_P = ParamSpec("_P")
_T = TypeVar("_T")

_log = library_logger(__name__)

_TRANSIENT_ERRNOS = frozenset(
    {
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ETIMEDOUT,
    }
)
# Named, not imported: the client libraries behind them are optional extras.
_TRANSIENT_NAMES = frozenset(
    {
        "ClientConnectionError",
        "ClientPayloadError",
        "EndpointConnectionError",
        "HTTPClientError",
        "IncompleteRead",
        "IncompleteReadError",
        "ServiceRequestError",
        "ServiceResponseError",
        "TransportError",  # httpx
    }
)
_UNREACHABLE_ERRNOS = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT})
_UNREACHABLE_NAMES = frozenset(
    {
        "ClientConnectorError",
        "ConnectError",
        "ConnectTimeout",
        "ConnectTimeoutError",
        "ConnectionTimeoutError",
        "EndpointConnectionError",
        "ServiceRequestError",
    }
)
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# S3 returns these (Azure the first one) with a status that is otherwise final. NoSuchUpload: the response to a
# completion was lost, and the upload is completed a second time. InvalidBlockList: another upload of the same blob
# ended first. The next attempt writes the object from the beginning.
_TRANSIENT_CODES = frozenset({"InvalidBlockList", "NoSuchUpload", "OperationAborted", "RequestTimeout"})
_EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_THROTTLED_CODES = frozenset({"SlowDown", "ServiceUnavailable", "Throttling", "TooManyRequests"})
_THROTTLED_STATUS = frozenset({429, 503})
_MISSING_STATUS = frozenset({404, 410})
_UNAUTHORIZED, _FORBIDDEN, _SERVER_FAULT = 401, 403, 500
# botocore, google-auth and azure-identity: there are no credentials, or they do not work.
_CREDENTIALS_NAMES = frozenset(
    {"ClientAuthenticationError", "DefaultCredentialsError", "NoCredentialsError", "RefreshError"}
)

_ACCESS_REMEDIES = {
    "file": "check the permissions of the file and its folders",
    "hf": "the Hub also answers this for a repository that does not exist: check its name, or set HF_TOKEN to a token "
    "that may {doing} it",
    "http": "check the address, or give credentials as storage options",
    "https": "check the address, or give credentials as storage options",
}
# huggingface_hub: what contains the file does not exist.
_NO_REPOSITORY = {
    "BucketNotFoundError": "there is no such bucket on the Hub, or it is private",
    "RepositoryNotFoundError": "there is no such repository on the Hub, or it is private",
    "RevisionNotFoundError": "its repository has no such branch, tag or commit",
}

_filesystems: dict[tuple[int, str, str], Any] = {}
_silent_until = 0.0


def filesystem(url: str, options: Options | None = None) -> Any:
    """Return the fsspec file system of a URL, one for each process and set of options.

    fsspec itself keeps one instance for each thread, each with connections of its own; sharing one across
    threads is safe because its calls all run on fsspec's event loop.

    Args:
        url: Any URL of the file system.
        options: Storage options, passed untouched.

    Raises:
        UsageError: No such scheme, or the extra that brings it is not installed.
    """
    import fsspec.utils  # noqa: PLC0415 - a job on local files needs neither this nor tenacity

    scheme = split_scheme(url)[0]
    key = (os.getpid(), scheme, fsspec.utils.tokenize(**options) if options else "")
    found = _filesystems.get(key)
    if found is None:
        # A forked child keeps its parent's instance in the table: closing it there could touch its sockets.
        found = _filesystems.setdefault(key, _connect(scheme, options or {}))
    return found


def _connect(scheme: str, options: Options) -> Any:
    know_environment()  # before the client can print its credentials
    know_secrets(options)
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


def import_client(scheme: str) -> None:
    """Import the client of a store for processes that will be forked from this one; nothing is made that uses it.

    Args:
        scheme: The canonical scheme of its URLs. Of stores whose clients begin threads, nothing is imported.
    """
    if store_named(scheme).imports_quietly:
        with contextlib.suppress(ImportError):  # an error of who uses the store, if anybody does
            _client(scheme)


def call(url: str, doing: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a remote call and retry it when it fails for a transient reason.

    Time-outs, broken connections and 5xx responses are retried, up to `ATTEMPTS` attempts in all, after exponential,
    jittered pauses or after the time that the server names. Every other error is final at once.

    Args:
        url: URL of the object, for the message.
        doing: A verb for the message: `read`, `write`, `list`.
        function: The call.
        *args: Its positional arguments.
        **kwargs: Its keyword arguments.

    Returns:
        What the call returns.

    Raises:
        StorageError: The call failed; the cause is kept. See `storage_error` for its subclasses.
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


def seconds_to_wait(error: BaseException | None) -> float | None:
    """Return the seconds after which the server accepts the next request, None if its response names none."""
    for cause in () if error is None else _chain(error):
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):  # botocore
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
        else:
            headers = getattr(response, "headers", None) or getattr(cause, "headers", None)
        if not isinstance(headers, Mapping):
            continue
        fields = {str(name).lower(): str(value) for name, value in headers.items()}
        if (after := fields.get("retry-after")) is not None:
            return _seconds(after)
        if (reset := re.search(r"\br=0\s*;\s*t=(\d+)", fields.get("ratelimit", ""))) is not None:  # of the Hub
            return float(reset[1])
    return None


def _seconds(after: str) -> float | None:
    if after.strip().isdecimal():
        return float(after)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - few servers name a time

    try:
        moment = parsedate_to_datetime(after)
    except ValueError:
        return None
    return max(0.0, (moment.astimezone(UTC) - datetime.now(UTC)).total_seconds())


def _warn_of_retry(tries: tenacity.RetryCallState, url: str, doing: str) -> None:
    """Warn of a retry, if the call is already slow and the last warning is some time ago.

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


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed when it is repeated.

    The HTTP status decides if there is one; otherwise time-outs and broken connections are transient.
    """
    if isinstance(error, LedgerbeamError):
        return False
    if error_code(error) in _TRANSIENT_CODES:
        return True
    status = http_status(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    if is_offline(error) or distrusts_certificate(error):
        return False
    for cause in _chain(error):
        if isinstance(cause, (ConnectionError, TimeoutError)):
            return True
        if isinstance(cause, OSError) and cause.errno in _TRANSIENT_ERRNOS:
            return True
        if any(kind.__name__ in _TRANSIENT_NAMES for kind in type(cause).__mro__):
            return True
    return False


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of any object store client, None if it has none."""
    for cause in _chain(error):
        if any(kind.__name__ == "PayloadEncodingError" for kind in type(cause).__mro__):
            continue  # aiohttp: the body broke off; its code is no status of a response
        response = getattr(cause, "response", None)  # botocore
        if isinstance(response, Mapping):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if isinstance(status, int):
                return status
        status = getattr(response, "status_code", None)  # huggingface_hub, requests
        if isinstance(status, int):
            return status
        for name in ("status_code", "status", "code"):  # adlfs, aiohttp, gcsfs
            status = getattr(cause, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status
            if status is not None and name == "status":  # aiohttp: `code` is the same, but deprecated
                break
    return None


def error_code(error: BaseException) -> str | None:
    """Return the error code that S3 or Azure sent, such as `SlowDown`; None if there is none."""
    for cause in _chain(error):
        code = getattr(cause, "error_code", None)  # adlfs
        if isinstance(code, str):
            return str(getattr(code, "value", code))
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):
            code = response.get("Error", {}).get("Code")
            if isinstance(code, str) and not code.isdecimal():  # a HEAD response has no body: botocore uses the status
                return code
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def is_unreachable(error: BaseException) -> bool:
    """Return whether no connection to the host could be made, so the object may exist or not."""
    for cause in _chain(error):
        if isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno in _UNREACHABLE_ERRNOS):
            return True
        if any(kind.__name__ in _UNREACHABLE_NAMES for kind in type(cause).__mro__):
            return True
    return False


def is_offline(error: BaseException) -> bool:
    """Return whether the client of the Hub is in offline mode."""
    return any(type(cause).__name__ == "OfflineModeIsEnabled" for cause in _chain(error))


def distrusts_certificate(error: BaseException) -> bool:
    """Return whether the TLS certificate of the host is not trusted."""
    import ssl  # noqa: PLC0415 - a job on local files does not need it

    # httpcore keeps the cause of an error in its arguments.
    return any(
        isinstance(what, ssl.SSLCertVerificationError) for cause in _chain(error) for what in (cause, *cause.args)
    )


def is_full(error: BaseException) -> bool:
    """Return whether an error means that a disk, a quota or an object store is full."""
    return http_status(error) == 507 or (isinstance(error, OSError) and error.errno in NO_ROOM)


def storage_error(error: BaseException, url: str, doing: str) -> StorageError:
    """Translate an error of a client or of the operating system.

    Args:
        error: What the operating system or the client library raised.
        url: URL of the object.
        doing: A verb: `read`, `write`, `list`.

    Returns:
        `SourceNotFoundError` if there is no such object, `DiskFullError` if there is no space, else
        `StorageError`, with a remedy where one is known.
    """
    detail = _first_line(error)
    code, status = error_code(error), http_status(error)
    if code in _EXPIRED_CODES:
        remedy = "renew them and run again"
        return StorageError(f"{url}: cannot {doing}, the credentials have expired ({code}: {detail}); {remedy}")
    if code in _THROTTLED_CODES or status in _THROTTLED_STATUS:
        wait = seconds_to_wait(error)
        when = "" if wait is None else f" in {wait:.0f} s, as it requests"
        remedy = f"run again{when}, with fewer workers if this continues"
        return StorageError(
            f"{url}: cannot {doing}, the store rejects requests since they are too many ({detail}); {remedy}"
        )
    if status == 400 and code is None and not store_of(url).explains_refusals:
        remedy = "it does so for a HEAD request when the credentials have expired; check them"
        return StorageError(f"{url}: cannot {doing}, the store gave no reason ({detail}); {remedy}")
    if is_offline(error):
        remedy = "unset it, or name local files"
        return StorageError(f"{url}: cannot {doing}, HF_HUB_OFFLINE is set, so no request is sent to the Hub; {remedy}")
    if distrusts_certificate(error):
        remedy = "check the address, or name the certificate file of its authority in SSL_CERT_FILE"
        return StorageError(f"{url}: cannot {doing}, the certificate of its host is not trusted ({detail}); {remedy}")
    if any(type(cause).__name__ == "TooManyRedirects" for cause in _chain(error)):
        remedy = "check the address in a browser"
        return StorageError(f"{url}: cannot {doing}, its server redirects in a circle; {remedy}")
    if status is None and not is_local(url) and is_unreachable(error):
        remedy = "check the address and the network, then run again"
        return StorageError(f"{url}: cannot {doing}, its host cannot be reached ({detail}); {remedy}")
    if status is None and isinstance(error, ValueError) and store_of(url).api == "hub":
        name = "hf://datasets/OWNER/NAME[@REVISION]/PATH"
        return SourceNotFoundError(f"{url}: cannot {doing}, no file of the Hub has such a name ({detail}); use {name}")
    # fsspec reports every failed request to a web server as a missing file; the cause is more exact.
    missing = status in _MISSING_STATUS or (status is None and isinstance(error, FileNotFoundError))
    if isinstance(error, ValueError) and is_local(url):  # it holds a zero byte, or is not text
        return SourceNotFoundError(f"{url!r}: cannot {doing}, no file can have this name ({detail}); correct it")
    if missing and (what := _missing_repository(error)) is not None:
        return SourceNotFoundError(f"{url}: cannot {doing}, {what}; check the name, or set HF_TOKEN")
    if missing and doing == "write":
        return StorageError(f"{url}: cannot write, its bucket or folder does not exist; create it first")
    if missing:
        return SourceNotFoundError(f"{url}: cannot {doing}, there is no such file or object; check the name")
    if is_full(error):
        return DiskFullError(f"{url}: cannot {doing}, no space is left ({detail}); free some and run again")
    if status == _UNAUTHORIZED:
        remedy = _access_remedy(url, doing)
        return StorageError(f"{url}: cannot {doing}, the credentials are missing or refused ({detail}); {remedy}")
    if any(type(cause).__name__ == "GatedRepoError" for cause in _chain(error)):
        remedy = "accept its conditions on its page of the Hub, and set HF_TOKEN"
        return StorageError(f"{url}: cannot {doing}, its repository is gated; {remedy}")
    if isinstance(error, PermissionError) or status == _FORBIDDEN or _lacks_credentials(error):
        return StorageError(f"{url}: cannot {doing}, permission denied ({detail}); {_access_remedy(url, doing)}")
    if status is not None and status >= _SERVER_FAULT:
        return StorageError(f"{url}: cannot {doing}, its server failed ({detail}); run again later")
    known = REMEDIES.get(error.errno or 0) if isinstance(error, OSError) and is_local(url) else None
    return StorageError(f"{url}: cannot {doing} ({detail})" + (f"; {known}" if known else ""))


def lacks_repository(error: BaseException) -> bool:
    """Return whether the repository or the revision itself does not exist."""
    is_no_name = http_status(error) is None and any(isinstance(cause, ValueError) for cause in _chain(error))
    return is_no_name or _missing_repository(error) is not None


def _missing_repository(error: BaseException) -> str | None:
    found = (_NO_REPOSITORY.get(type(cause).__name__) for cause in _chain(error))
    return next((what for what in found if what is not None), None)


def _first_line(error: BaseException) -> str:
    """Return the first line of an error.

    An error of Azure continues with the whole response. Errors of fsspec for web servers, and of uploads to the Hub,
    hide their cause.
    """
    while type(error) in (FileNotFoundError, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    said = getattr(error, "server_message", None)  # of the Hub
    return f"{first.rstrip(':')}: {said}" if isinstance(said, str) and said not in first else first


def _access_remedy(url: str, doing: str) -> str:
    scheme = "file" if is_local(url) else split_scheme(url)[0]
    return _ACCESS_REMEDIES.get(
        scheme, "check the credentials (environment or storage options) and the bucket's policy"
    ).format(doing=doing)


def _lacks_credentials(error: BaseException) -> bool:
    # gcsfs raises an OSError without the status for a response 403.
    return type(error).__name__ in _CREDENTIALS_NAMES or str(error).startswith("Forbidden: ")
