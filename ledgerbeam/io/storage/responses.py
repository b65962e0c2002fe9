"""Responses of stores: HTTP status, error codes, byte ranges, and the errors that failed calls raise."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime

from ledgerbeam._base.disk import NO_ROOM, REMEDIES
from ledgerbeam.errors import DiskFullError, LedgerbeamError, SourceNotFoundError, StorageError
from ledgerbeam.io.storage.urls import is_local, split_scheme, store_of

_UNREACHABLE_ERRNOS = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT})
_TRANSIENT_ERRNOS = _UNREACHABLE_ERRNOS | {errno.EBUSY, errno.ECONNABORTED, errno.ECONNRESET, errno.EIO, errno.EPIPE}
# Named, not imported: the client libraries behind them are optional extras.
_TRANSIENT_NAMES = frozenset(
    {
        *("ClientConnectionError", "ClientPayloadError", "EndpointConnectionError", "HTTPClientError"),
        *("IncompleteRead", "IncompleteReadError", "ServiceRequestError", "ServiceResponseError"),
        "TransportError",  # httpx
    }
)
_UNREACHABLE_NAMES = frozenset(
    {
        *("ClientConnectorError", "ConnectError", "ConnectTimeout", "ConnectTimeoutError", "ConnectionTimeoutError"),
        *("EndpointConnectionError", "ServiceRequestError"),
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
_PARTIAL, _UNAUTHORIZED, _FORBIDDEN, _SERVER_FAULT = 206, 401, 403, 500
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
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
_OFFLINE = ("OfflineModeIsEnabled",)  # huggingface_hub: its client sends no requests
# huggingface_hub: what contains the file does not exist.
_NO_REPOSITORY = {
    "BucketNotFoundError": "there is no such bucket on the Hub, or it is private",
    "RepositoryNotFoundError": "there is no such repository on the Hub, or it is private",
    "RevisionNotFoundError": "its repository has no such branch, tag or commit",
}


def seconds_to_wait(error: BaseException | None) -> float | None:
    """Return the seconds after which the server accepts the next request, None if its response names none."""
    for cause in () if error is None else _chain(error):
        if isinstance(response := getattr(cause, "response", None), Mapping):  # botocore
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders")
        else:
            headers = getattr(response, "headers", None) or getattr(cause, "headers", None)
        if not isinstance(headers, Mapping):
            continue
        return seconds_of_headers(headers)
    return None


def seconds_of_headers(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the headers of a response name, None if they name none."""
    fields = {str(name).lower(): str(value) for name, value in headers.items()}
    if (milliseconds := fields.get("retry-after-ms", "")).isdecimal():  # of OpenAI
        return int(milliseconds) / 1000
    if (after := fields.get("retry-after")) is not None:
        return _seconds(after)
    reset = re.search(r"\br=0\s*;\s*t=(\d+)", fields.get("ratelimit", ""))  # of the Hub
    return None if reset is None else float(reset[1])


def _seconds(after: str) -> float | None:
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", after):
        return float(after)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - few servers name a time

    try:
        moment = parsedate_to_datetime(after)
    except ValueError:
        return None
    return max(0.0, (moment.astimezone(UTC) - datetime.now(UTC)).total_seconds())


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed when it is repeated.

    The HTTP status decides if there is one; otherwise time-outs and broken connections are transient.
    """
    if isinstance(error, LedgerbeamError):
        return False
    if error_code(error) in _TRANSIENT_CODES:
        return True
    if (status := http_status(error)) is not None:
        return status in _TRANSIENT_STATUS
    if _is_named(error, _OFFLINE) or distrusts_certificate(error):
        return False
    return _is_named(error, _TRANSIENT_NAMES) or any(
        isinstance(cause, (ConnectionError, TimeoutError))
        or (isinstance(cause, OSError) and cause.errno in _TRANSIENT_ERRNOS)
        for cause in _chain(error)
    )


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of any object store client, None if it has none."""
    for cause in _chain(error):
        if any(kind.__name__ == "PayloadEncodingError" for kind in type(cause).__mro__):
            continue  # aiohttp: a truncated body; its code is not an HTTP status
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
    """Return the error code that S3 or Azure sent, such as `SlowDown`; None without one."""
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


def _is_named(error: BaseException, names: Collection[str]) -> bool:
    """Return whether the class of an error, or of a cause of it, has one of these names, or a base class with one."""
    return any(kind.__name__ in names for cause in _chain(error) for kind in type(cause).__mro__)


def is_unreachable(error: BaseException) -> bool:
    """Return whether no connection to the host could be made, so the object may exist or not."""
    return _is_named(error, _UNREACHABLE_NAMES) or any(
        isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno in _UNREACHABLE_ERRNOS)
        for cause in _chain(error)
    )


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

    Returns:
        `SourceNotFoundError` if the object does not exist, `DiskFullError` if there is no space, else `StorageError`.
        The message has a remedy if there is one.
    """
    detail = _first_line(error)
    code, status = error_code(error), http_status(error)

    def failed(why: str, kind: type[StorageError] = StorageError) -> StorageError:
        return kind(f"{url}: cannot {doing}, {why}")

    if code in _EXPIRED_CODES:
        return failed(f"the credentials have expired ({code}: {detail}); renew them and run again")
    if code in _THROTTLED_CODES or status in _THROTTLED_STATUS:
        wait = seconds_to_wait(error)
        when = "" if wait is None else f" in {wait:.0f} s, as it requests"
        remedy = f"run again{when}, with fewer workers if this continues"
        return failed(f"the store rejects requests since they are too many ({detail}); {remedy}")
    if status == 400 and code is None and not store_of(url).explains_refusals:
        remedy = "a store does this when the credentials have expired; check them"
        return failed(f"the store gave no reason ({detail}); {remedy}")
    if _is_named(error, _OFFLINE):
        return failed("HF_HUB_OFFLINE is set, so no request is sent to the Hub; unset it, or name local files")
    if distrusts_certificate(error):
        remedy = "check the address, or name the certificate file of its authority in SSL_CERT_FILE"
        return failed(f"the certificate of its host is not trusted ({detail}); {remedy}")
    if _is_named(error, ["TooManyRedirects"]):
        return failed("its server redirects in a circle; check the address in a browser")
    if status is None and not is_local(url) and is_unreachable(error):
        return failed(f"its host cannot be reached ({detail}); check the address and the network, then run again")
    if status is None and isinstance(error, ValueError) and store_of(url).api == "hub":
        remedy = "use hf://datasets/OWNER/NAME[@REVISION]/PATH"
        return failed(f"no file of the Hub has such a name ({detail}); {remedy}", SourceNotFoundError)
    # fsspec reports every failed request to a web server as a missing file; the cause is more exact.
    missing = status in _MISSING_STATUS or (status is None and isinstance(error, FileNotFoundError))
    if isinstance(error, ValueError) and is_local(url):  # it holds a zero byte, or is not text
        return SourceNotFoundError(f"{url!r}: cannot {doing}, no file can have this name ({detail}); correct it")
    if missing and (what := _missing_repository(error)) is not None:
        return failed(f"{what}; check the name, or set HF_TOKEN", SourceNotFoundError)
    if missing and doing == "write":
        return failed("its bucket or folder does not exist; create it first")
    if missing:
        return failed("there is no such file or object; check the name", SourceNotFoundError)
    if is_full(error):
        return failed(f"no space is left ({detail}); free some and run again", DiskFullError)
    if status == _UNAUTHORIZED:
        return failed(f"the credentials are missing or refused ({detail}); {_access_remedy(url, doing)}")
    if _is_named(error, ["GatedRepoError"]):
        return failed("its repository is gated; accept its conditions on its page of the Hub, and set HF_TOKEN")
    # gcsfs raises an OSError without the status for a response 403.
    lacks_credentials = type(error).__name__ in _CREDENTIALS_NAMES or str(error).startswith("Forbidden: ")
    if isinstance(error, PermissionError) or status == _FORBIDDEN or lacks_credentials:
        return failed(f"permission denied ({detail}); {_access_remedy(url, doing)}")
    if status is not None and status >= _SERVER_FAULT:
        return failed(f"its server failed ({detail}); run again later")
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
    """Return the first line of an error, since an error of Azure continues with the whole response.

    An error of fsspec for web servers, or of an upload to the Hub, hides its cause; the line is then of the cause.
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


def byte_range(start: int | None, stop: int | None) -> str | None:
    """Return the value of the header `Range` for the bytes `[start, stop)`; None for the whole file."""
    return None if start is None or stop is None else f"bytes={start}-{stop - 1}"


def require_range(url: str, wanted: str | None, status: int, headers: Mapping[str, str], remedy: str) -> None:
    """Raise StorageError if a response has another range than `wanted`; no check for None, the whole file."""
    if not wanted:
        return
    if status == _PARTIAL and (match := _RANGE.match(headers.get("Content-Range", ""))) is not None:
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        end = last if match[3] == "*" else min(last, int(match[3]) - 1)  # cut at the end of the file
        if (int(match[1]), int(match[2])) == (first, end):
            return
    raise StorageError(no_ranges_message(url, wanted, status, remedy))


def no_ranges_message(url: str, wanted: str | None, status: int, remedy: str) -> str:
    """Return the message of an error for a server that ignored a range."""
    return (
        f"{url}: the server does not support byte ranges, so records cannot be read by position (requested {wanted}, "
        f"the response has status {status}); {remedy}"
    )
