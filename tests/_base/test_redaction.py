"""Redaction of texts; `pipelines.test_redaction` checks the output of commands."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from ledgerbeam._base import redaction
from ledgerbeam._base.redaction import (
    command_without_secrets,
    plain_value,
    printable,
    redact_streams,
    refuse_secrets,
    register_environment,
    register_secrets,
    without_secrets,
)
from ledgerbeam.errors import UsageError

SECRET = 'p4"ss/w+rd é\\'


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_secrets_registered", set())
    monkeypatch.setattr(redaction, "_pattern", None)


def is_hidden(secret: str) -> bool:
    return without_secrets(f"a {secret} b") == "a *** b"


def unescaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def quoted_whole(text: str) -> str:
    return quote(text, safe="")


@pytest.mark.parametrize("write", [str, repr, json.dumps, unescaped, quote, quoted_whole, quote_plus])
def test_a_secret_is_hidden_however_it_is_written(write: Callable[[str], str]) -> None:
    register_secrets({"secret": SECRET})
    shown = without_secrets(f"<{write(SECRET)}>")
    assert "***" in shown
    assert "p4" not in shown


def test_a_secret_that_another_begins_with_hides_no_less_of_that() -> None:
    register_secrets({"secret": "abcdef"})
    register_secrets({"token": "abcdef-ghijkl", "password": "abc"})
    assert is_hidden("abcdef")
    assert is_hidden("abcdef-ghijkl")
    assert without_secrets("abc") == "abc"


@pytest.mark.parametrize(
    "options",
    [
        {"secret": "abcdef"},
        {"aws_secret_access_key": "abcdef"},
        {"client_kwargs": {"headers": {"Cookie": "abcdef"}}},
        {"client_kwargs": {"passwords": ["x", "abcdef"]}},
        {"tokens": ("abcdef",)},
        {"PASSWORD": "abcdef"},
        {"sas": "abcdef"},
        {"connection_string": "AccountName=me;AccountKey=abcdef;"},
        {"other": "AccountName=me;AccountKey=abcdef"},
    ],
)
def test_what_is_named_after_a_secret_is_one(options: dict[str, object]) -> None:
    register_secrets(options)
    assert is_hidden("abcdef")


def test_numbers_may_be_secrets() -> None:
    register_secrets({"password": 123456, "token": 12.3456789, "secret": True, "port": 80808080808080808080})
    assert is_hidden("123456")
    assert is_hidden("12.3456789")
    assert without_secrets("True 80808080808080808080") == "True 80808080808080808080"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("secret", "abcde"),
        ("endpoint_url", "https://storage.example.com"),
        ("region", "a-region-of-some-length"),
        ("some_option", "fifteen-letters"),
        ("token", "/run/secrets/token"),
        ("credentials", "/home/me/credentials.json"),
        ("aws_access_key_id", "AKIASHORT"),
        ("use_ssl", "yes"),
    ],
)
def test_what_says_where_and_how_is_told(name: str, value: str) -> None:
    register_secrets({name: value, "client_kwargs": {name.upper(): value}})
    assert without_secrets(value) == value


@pytest.mark.parametrize(
    ("name", "value"), [("some_option", "sixteen-letters-"), ("aws_access_key_id", "AKIA4567890123456789")]
)
def test_what_is_long_may_be_a_secret_by_any_name(name: str, value: str) -> None:
    register_secrets({name: value})
    assert is_hidden(value)


def test_a_connection_string_is_hidden_whole_and_in_parts() -> None:
    text = "DefaultEndpointsProtocol=https;AccountName=somebody;AccountKey=c2VjcmV0;EndpointSuffix=core.windows.net"
    register_secrets({"connection_string": text})
    assert is_hidden(text)
    assert is_hidden("c2VjcmV0")
    assert without_secrets("somebody core.windows.net https") == "somebody core.windows.net https"


@pytest.mark.parametrize("text", ["some;words;without;equals", "a=b"])
def test_what_is_no_connection_string_is_one_value(text: str) -> None:
    register_secrets({"password": text.ljust(8, "=")})
    assert without_secrets("words") == "words"
    assert is_hidden(text.ljust(8, "="))


def test_secrets_of_the_environment_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-aws")
    monkeypatch.setenv("HF_TOKEN", "from-hub")
    monkeypatch.setenv("MY_SECRET", "of-nobody")
    monkeypatch.setenv("AWS_REGION", "a-region-of-some-length")
    register_environment()
    assert is_hidden("from-aws")
    assert is_hidden("from-hub")
    assert without_secrets("of-nobody a-region-of-some-length") == "of-nobody a-region-of-some-length"


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "https://token@host/x", "https://host/x?sig=abc"])
def test_a_url_with_credentials_is_refused_without_telling_them(url: str) -> None:
    with pytest.raises(UsageError, match=r"\*\*\*.*: expected an output without credentials") as refused:
        refuse_secrets(url, "an output")
    for secret in (":secret@", "token@", "=abc"):
        assert secret not in str(refused.value)
    with pytest.raises(UsageError, match="expected a URL without"):
        refuse_secrets(url)


@pytest.mark.parametrize("url", ["s3://bucket/x", "/data/a://b:c@d?sig=x", "a:b@c", "https://host/x?page=1"])
def test_other_urls_are_given_back(url: str) -> None:
    assert refuse_secrets(url) == url


def test_a_secret_that_is_known_does_not_make_a_url_one_with_credentials() -> None:
    register_secrets({"secret": "bucket"})
    assert refuse_secrets("s3://bucket/x") == "s3://bucket/x"


def test_the_word_after_an_option_for_a_secret_is_hidden_and_no_other() -> None:
    words = ["--storage-options", "--token", "x", "--api-key", "k", "--to", "jsonl", "--set", "password=x", "--token"]
    shown = ["--storage-options", "***", "x", "--api-key", "***", "--to", "jsonl", "--set", "password=***", "--token"]
    assert command_without_secrets(words) == shown
    register_secrets({"secret": "abcdef"})
    assert command_without_secrets([]) == []  # of `python -c`
    assert command_without_secrets(["map", "in/abcdef", "--token=1=2", "--x=1"]) == [
        "map",
        "in/***",
        "--token=***",
        "--x=1",
    ]


def test_values_for_json_are_hidden_at_every_depth() -> None:
    register_secrets({"secret": "abcdef"})
    value = {"abcdef": ["abcdef", ("x abcdef", 1)], "n": None, "f": {"g": "abcdef"}, "t": True}
    assert plain_value(value) == {"abcdef": ["***", ["x ***", 1]], "n": None, "f": {"g": "***"}, "t": True}


def test_line_ends_and_tabs_are_printed_as_they_are() -> None:
    assert printable("a\tb\nc") == "a\tb\nc"
    assert printable("\0\x0b\r\x7f\ud800\u2066") == "\\x00\\x0b\\r\\x7f\\ud800\\u2066"


def test_all_that_a_process_prints_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    redact_streams()
    first = sys.stdout
    redact_streams()
    assert sys.stdout is first
    register_secrets({"secret": "abcdef"})
    assert sys.stdout.write("x abcdef") == 8
    sys.stdout.writelines(["abcdef\n", "y\n"])
    print("abcdef", file=sys.stderr)
    try:
        raise ValueError("abcdef")
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)
    assert streams["stdout"].getvalue() == "x ******\ny\n"
    said = streams["stderr"].getvalue()
    assert said.startswith("***\nTraceback (most recent call last):\n")
    assert said.endswith("ValueError: ***\n")
    streams["stdout"].seek(0)
    assert list(sys.stdout) == ["x ******\n", "y\n"]
    assert sys.stdout.seekable()


def test_a_stream_that_is_closed_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    redact_streams()
    assert sys.stdout is None
