"""Redaction of secrets in URLs, messages and command lines before they are printed, logged or stored.

Secrets are found by their position, as in `scheme://user:password@host` and `?X-Amz-Signature=...`, and by their text:
the values of storage options, and of environment variables that the clients of stores read. All text passes
`without_secrets`. Commands apply it to their standard streams (`redact_streams`); code that stores text calls it.

Credentials are recognised by their names and values (`is_credential`). A name is split into words: ``HF_TOKEN``,
``X-Amz-Signature``, ``accountKey``. Some words occur only in names of credentials. Other words have a second meaning in
data and language models (``pad_token``, ``sort_key``, ``minhash_signature``). As the last word of a name, alone or
after a word of access such as ``api`` or ``hf``, they show a credential. After any other word, the value decides.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise, zip_longest
from types import TracebackType
from typing import Any, TextIO
from urllib.parse import quote, quote_plus

from ledgerbeam.errors import UsageError

HIDDEN = "***"  # replacement of a secret
REMEDY = "give credentials as --storage-options or in the environment of the store's client"

_SHORTEST = 6
_SHORTEST_OTHER = 16  # for options without the name of a secret: a shorter value may be any word
_USERINFO = re.compile(r"([a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/]+@", re.IGNORECASE)
_BARE_USERINFO = re.compile(r"(https?://)[^\s/:@]+@", re.IGNORECASE)
_QUERY = re.compile(r"([?&#;]([\w.-]+)=)([^&\s'\"]+)")
_AUTHORIZATION = re.compile(r"(authorization\W{1,4}(?:basic|bearer|digest|negotiate|token)\s+)[^\s'\"]+", re.IGNORECASE)
_ASSIGNED = re.compile(r"((?:--)?[\w.-]+)(=|:\s+)(.+)", re.DOTALL)
_OF_CLIENTS = re.compile(r"(?:AWS|AZURE|GOOGLE|GCS|GCLOUD|HF|FSSPEC|S3)_.+", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_STORAGE_OPTIONS = "--storage-options"
# Storage options that are not secret: they name a place or a mode of access.
_PLAIN = frozenset(
    {
        *("endpoint_url", "endpoint", "region_name", "region", "project", "project_id", "location", "default_location"),
        *("account_name", "accountname", "account_host", "account_url", "blobendpoint", "endpointsuffix", "host"),
        *("defaultendpointsprotocol", "protocol", "profile", "signature_version", "addressing_style", "consistency"),
        *("access", "type", "verify", "acl", "serversideencryption", "storageclass", "auth_uri", "token_uri"),
    }
)

_secrets_registered: set[str] = set()
_pattern: re.Pattern[str] | None = None


def register_secrets(options: Mapping[str, Any]) -> None:
    """Register the values of storage options as secrets, which are hidden in all text from now on."""
    _register(secret for name, value in options.items() for secret in _secrets(str(name), value))


def register_environment() -> None:
    """Register the secrets in the environment variables of the clients of stores."""
    given = ((name, value) for name, value in os.environ.items() if _OF_CLIENTS.fullmatch(name))
    named = ((name, value) for name, value in given if is_credential(name, value))
    _register(secret for name, value in named for secret in _secrets(name.partition("_")[2], value))


def register_credentials(values: Mapping[str, Any]) -> None:
    """Register the values that have names of credentials, at any depth."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            register_credentials(value)
        elif holds_credential(str(name), value):
            register_secrets({name: value})


def _register(secrets: Iterable[str]) -> None:
    register_texts({form for secret in secrets for form in _forms(secret)})


def registered_texts() -> frozenset[str]:
    """Return the texts that are hidden, for `register_texts` in another process."""
    return frozenset(_secrets_registered)


def register_texts(texts: Iterable[str]) -> None:
    """Register all spellings of secrets."""
    global _pattern  # noqa: PLW0603 - one for each process, as the file systems that the options open
    fresh = set(texts) - _secrets_registered
    if fresh:
        _secrets_registered.update(fresh)
        _pattern = re.compile("|".join(re.escape(text) for text in sorted(_secrets_registered, key=len, reverse=True)))


def _secrets(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner, part in value.items():
            yield from _secrets(str(inner), part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _secrets(name.removesuffix("s"), part)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        text = str(value)
        pairs = [part.partition("=") for part in text.split(";")]
        if len(pairs) > 1 and all(equals for _, equals, _ in filter(any, pairs)):  # a connection string
            yield text
            for inner, _, part in pairs:
                yield from _secrets(inner, part)
        # The ID of a key is private but not a secret. IDs of cloud keys have 20 letters.
        is_secret = not name.lower().endswith("key_id") and is_credential(name, text)
        is_long = len(text) >= (_SHORTEST if is_secret else _SHORTEST_OTHER)
        may_be_one = is_secret or (isinstance(value, str) and not os.path.isabs(text))
        if is_long and name.lower() not in _PLAIN and may_be_one:
            yield text


def _forms(secret: str) -> set[str]:
    """Return the spellings of a secret in messages, JSON and URLs."""
    escaped = {repr(secret)[1:-1], json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return {secret, *escaped, quote(secret), quote(secret, safe=""), quote_plus(secret)}


def without_secrets(text: str) -> str:
    """Hide passwords in URLs, values of signed query parameters, tokens of known services and registered secrets."""
    patterns = (LOOKS_SECRET,) if _pattern is None else (_pattern, LOOKS_SECRET)
    spans = sorted(found.span() for pattern in patterns for found in pattern.finditer(text))
    parts: list[str] = []
    end = -1
    for first, last in spans:  # overlapping ones are hidden as one: a registered secret may be a part of a longer token
        if first > end:
            parts += [text[max(end, 0) : first], HIDDEN]
        end = max(end, last)
    return _hide_places("".join([*parts, text[max(end, 0) :]]))


def _hide_places(text: str) -> str:
    if "@" in text:
        text = _BARE_USERINFO.sub(rf"\1{HIDDEN}@", _USERINFO.sub(rf"\1:{HIDDEN}@", text))
    if "=" in text:
        text = _QUERY.sub(lambda found: f"{found[1]}{HIDDEN}" if is_credential(found[2], found[3]) else found[0], text)
    return LOOKS_SECRET.sub(HIDDEN, _AUTHORIZATION.sub(rf"\1{HIDDEN}", text))


def refuse_secrets(url: str, what: str = "a URL") -> str:
    """Return a URL. If it has credentials, raise UsageError without showing them: URLs are recorded and printed."""
    if "://" in url and not url.startswith("/") and _hide_places(url) != url:
        raise UsageError(
            f"{without_secrets(url)}: expected {what} without credentials, because it is recorded and printed; "
            f"{REMEDY}, and remove them from the URL"
        )
    return url


def command_without_secrets(words: Iterable[str]) -> list[str]:
    """Hide storage options, credentials and the secrets of `without_secrets` in the words of a command line."""
    given = list(words)
    shown: list[str] = []
    option = ""  # whose value is the next word
    for word, after in zip_longest(given, given[1:]):
        if option:
            value = _read(word)
            is_hidden = is_credential(option, value) if isinstance(value, str) else holds_credential(option, value)
            shown.append(HIDDEN if is_hidden or option == _STORAGE_OPTIONS else _shown_word(word))
            option = ""
        else:
            shown.append(_shown_word(word))
            is_option = word.startswith("--") and "=" not in word and len(word) > len("--")
            hides = word == _STORAGE_OPTIONS or is_credential(word)
            option = word if is_option and after is not None and (hides or not after.startswith("--")) else ""
    return shown


def _shown_word(word: str) -> str:
    """Return a word without secrets. It may contain a name and its value, as after `--set`."""
    assigned = _ASSIGNED.fullmatch(word)
    if assigned is None:
        return without_secrets(word)
    name, equals, value = assigned.groups()
    if name == _STORAGE_OPTIONS or holds_credential(name, _read(value)):
        return f"{name}{equals}{HIDDEN}"
    return f"{name}{equals}{_shown_word(value)}"


def _read(value: str) -> Any:
    """Return the value of a text that is a JSON object or array, else the text."""
    if value.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def plain_value(value: Any) -> Any:
    """Return a JSON value with the secrets hidden in all of its texts."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping):
        return {name: plain_value(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(part) for part in value]
    return value


def printable(text: str) -> str:
    """Replace control characters and surrogates by Python escapes; keep line ends and tabs."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def redact_streams() -> None:
    """Redact all text of the standard streams, and the traceback of an uncaught exception. Bytes are not changed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Redacted):
            setattr(sys, name, _Redacted(stream))
    sys.excepthook = _print_exception


def _print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception through `sys.stderr`; the default hook of Python bypasses it."""
    print("".join(traceback.format_exception(kind, error, trace)), end="", file=sys.stderr)


class _Redacted:
    """A text stream that redacts all text written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(without_secrets(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_STRONG = (
    *("secret", "password", "passwd", "passphrase", "credential", "connectionstring", "sharedaccesssignature"),
    *("apikey", "accesskey", "accountkey", "privatekey", "secretkey", "customerkey", "authkey", "signingkey"),
    *("accesstoken", "authtoken", "apitoken", "sessiontoken", "bearertoken", "refreshtoken", "sastoken"),
)
"""Ends of words that only credentials have."""

_KEYS = frozenset(
    {
        *("api", "access", "account", "private", "secret", "auth", "encryption", "decryption", "signing", "ssh"),
        *("master", "shared", "subscription", "storage", "service", "license", "deploy"),
    }
)
"""Words before ``key`` in names of credentials."""

_LAST = frozenset({"auth", "authorization", "cookie", "jwt", "pwd", "sas"})  # last words of names of credentials

_AMBIGUOUS = frozenset({"pass", "sig", "signature", "token"})
"""Last words of credentials after a word of access; some also alone, see `_ALONE`."""

_ALONE = (["sig"], ["signature"], ["token"], ["id", "token"])  # names of credentials without a word of access

_ACCESS = frozenset(
    {
        *("access", "account", "api", "app", "auth", "authentication", "bearer", "bot", "client", "csrf", "deploy"),
        *("hub", "identity", "jwt", "login", "oauth", "personal", "private", "refresh", "registry", "request"),
        *("sas", "security", "service", "session", "shared", "signed", "vault", "web", "xsrf"),
        *("amz", "anthropic", "aws", "azure", "cohere", "databricks", "dropbox", "gcp", "gcs", "gemini", "git"),
        *("github", "gitlab", "goog", "google", "groq", "hf", "huggingface", "kaggle", "mistral", "neptune", "npm"),
        *("openai", "openrouter", "pypi", "replicate", "s3", "sentry", "slack", "wandb"),
        *("admin", "db", "ftp", "mysql", "pg", "postgres", "proxy", "redis", "sftp", "smtp"),
    }
)
"""Words of access, and names of services that grant it."""

_REFERENCES = frozenset(
    {
        *("column", "env", "expiration", "expiry", "field", "file", "filename", "length", "name", "path", "ref", "ttl"),
        *("uri", "url", "var", "variable"),
    }
)
"""Last words of names that refer to a credential, such as its file or its expiry."""

_WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*")
_SWITCH = re.compile(r"(?:true|false|yes|no|on|off|null|none)", re.IGNORECASE)
_FILE = re.compile(r"(?:/[\w.@ -]+){2,}")  # absolute paths of files that hold credentials

_PLAIN_VALUE = re.compile(r"-?\d{1,6}(?:\.\d{0,6})?|<[^>]*>|\[[^\]]*\]")
"""Numbers, and tokens of vocabularies such as ``<pad>`` and ``[SEP]``."""

_OPAQUE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=_-]{20,}")
_SPELLED = re.compile(r"/?(?:[A-Za-z]+\d{0,2}|\d{1,4})(?:[-_/](?:[A-Za-z]+\d{0,2}|\d{1,4}))+")

LOOKS_SECRET = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|"
    r"glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}|ASIA[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|"
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,})|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]*-----END [A-Z ]*PRIVATE KEY-----)?"
)
"""Values in the form of credentials: tokens of known services, and private keys."""


def is_credential(name: str, value: Any = None) -> bool:
    """Return whether a value is a credential, by its name and, for ambiguous names, by its text.

    `name` names an option, parameter, environment variable, header or URL parameter. If `value` is None, only the name
    decides.
    """
    words = [found[0].lower().rstrip("0123456789") for found in _WORD.finditer(name)]
    text = "" if value is None else str(value)
    is_file = _FILE.fullmatch(text) is not None and not is_opaque(text)
    if not words or words[-1] in _REFERENCES or "from" in words or _SWITCH.fullmatch(text) or is_file:
        return False
    is_count = words == ["tokens"]
    words = [word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word for word in words]
    has_pair = any(
        (one in _KEYS and other == "key") or (one, other) == ("connection", "string") for one, other in pairwise(words)
    )
    if any(word.endswith(_STRONG) for word in words) or has_pair or words[-1] in _LAST:
        return True
    if words[-1] not in {*_AMBIGUOUS, "key"} or _PLAIN_VALUE.fullmatch(text):
        return False
    of_access = words in _ALONE or not _ACCESS.isdisjoint(words[:-1])
    return is_opaque(text) or (of_access and words[-1] != "key" and not is_count)


def holds_credential(name: str, value: Any) -> bool:
    """Return whether a value is a credential, or a mapping or list with a credential at any depth."""
    if isinstance(value, Mapping):
        return any(holds_credential(str(inner), part) for inner, part in value.items())
    if isinstance(value, (list, tuple)):
        return any(holds_credential(name, part) for part in value)
    return is_credential(name, value) or (isinstance(value, str) and LOOKS_SECRET.search(value) is not None)


def is_opaque(text: str) -> bool:
    """Return whether a text looks like a generated key: a long word of letters and digits that spells nothing."""
    return _OPAQUE.fullmatch(text) is not None and _SPELLED.fullmatch(text) is None
