"""Credentials: which names and which values are those of passwords, tokens and keys that grant access.

A name is read as words: ``HF_TOKEN``, ``X-Amz-Signature``, ``accountKey``. Words that only a credential has decide
anywhere in a name. Other words have a second meaning in data and language models (``pad_token``, ``sort_key``,
``minhash_signature``): they decide as the last word, alone or beside a word of access such as ``api`` or ``hf``; beside
any other word the value decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

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
"""Words before ``key`` that make it one of access."""

_LAST = frozenset({"auth", "authorization", "cookie", "jwt", "pwd", "sas"})
"""Last words of names of credentials."""

_AMBIGUOUS = frozenset({"pass", "sig", "signature", "token"})
"""Last words that are a credential beside a word of access; some of them alone, see `_ALONE`."""

_ALONE = (["sig"], ["signature"], ["token"], ["id", "token"])
"""Names of ambiguous words that are those of credentials."""

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
"""Last words of names that say where a credential is, or something else about it."""

_WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*")
_SWITCH = re.compile(r"(?:true|false|yes|no|on|off|null|none)", re.IGNORECASE)
_FILE = re.compile(r"(?:/[\w.@ -]+){2,}")
"""Absolute paths of files that hold credentials."""

_PLAIN = re.compile(r"-?\d{1,6}(?:\.\d{0,6})?|<[^>]*>|\[[^\]]*\]")
"""Numbers, and tokens of vocabularies such as ``<pad>`` and ``[SEP]``."""

_OPAQUE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/=_-]{20,}")
_SPELLED = re.compile(r"/?(?:[A-Za-z]+\d{0,2}|\d{1,4})(?:[-_/](?:[A-Za-z]+\d{0,2}|\d{1,4}))+")

LOOKS_SECRET = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|"
    r"glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}|ASIA[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|"
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,})|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]*-----END [A-Z ]*PRIVATE KEY-----)?"
)
"""Values that say themselves that they are credentials: tokens of known services, and private keys."""


def is_credential(name: str, value: Any = None) -> bool:
    """Return whether a value is a credential, by its name and, where the name has several meanings, by the value.

    Args:
        name: Of an option, a parameter, an environment variable, a header, or of a parameter in a URL.
        value: None if it is not known; then only the name decides.
    """
    words = [found[0].lower().rstrip("0123456789") for found in _WORD.finditer(name)]
    text = "" if value is None else str(value)
    is_file = _FILE.fullmatch(text) is not None and not is_opaque(text)
    if not words or words[-1] in _REFERENCES or "from" in words or _SWITCH.fullmatch(text) or is_file:
        return False
    is_count = words == ["tokens"]
    words = [_singular(word) for word in words]
    if any(word.endswith(_STRONG) for word in words) or _has_pair(words) or words[-1] in _LAST:
        return True
    if words[-1] not in {*_AMBIGUOUS, "key"} or _PLAIN.fullmatch(text):
        return False
    of_access = words in _ALONE or not _ACCESS.isdisjoint(words[:-1])
    return is_opaque(text) or (of_access and words[-1] != "key" and not is_count)


def holds_credential(name: str, value: Any) -> bool:
    """Return whether a value is a credential, or a mapping or list that holds one at any depth."""
    if isinstance(value, Mapping):
        return any(holds_credential(str(inner), part) for inner, part in value.items())
    if isinstance(value, (list, tuple)):
        return any(holds_credential(name, part) for part in value)
    return is_credential(name, value) or (isinstance(value, str) and LOOKS_SECRET.search(value) is not None)


def is_opaque(text: str) -> bool:
    """Return whether a text is one long word of letters and digits that spells nothing, as generated keys are."""
    return _OPAQUE.fullmatch(text) is not None and _SPELLED.fullmatch(text) is None


def _singular(word: str) -> str:
    return word.removesuffix("s") if len(word) > 3 and not word.endswith("ss") else word


def _has_pair(words: list[str]) -> bool:
    pairs = pairwise(words)
    return any((one in _KEYS and other == "key") or (one, other) == ("connection", "string") for one, other in pairs)
