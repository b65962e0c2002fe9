"""Redaction of texts; `pipelines.test_secrets` checks the output of commands."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import io
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import quote, quote_plus

import pytest

import ledgerbeam
from ledgerbeam._base import redaction
from ledgerbeam._base.redaction import (
    command_without_secrets,
    is_credential,
    plain_value,
    printable,
    redact_streams,
    refuse_secrets,
    register_environment,
    register_secrets,
    without_secrets,
)
from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.cli.parser import build_parser

SECRET = 'p4"ss/w+rd é\\'


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_secrets_registered", set())
    monkeypatch.setattr(redaction, "_pattern", None)


def is_hidden(secret: str) -> bool:
    return without_secrets(f"a {secret} b") == "a *** b"


unescaped, quoted_whole = partial(json.dumps, ensure_ascii=False), partial(quote, safe="")


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
    hidden = ["map", "in/***", "--token=***", "--x=1"]
    assert command_without_secrets(["map", "in/abcdef", "--token=1=2", "--x=1"]) == hidden


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


OF_THE_FIELD = (
    *("max_tokens", "max_new_tokens", "num_tokens", "tokens", "tokens_per_second", "token_budget", "token_count"),
    *("pad_token", "eos_token", "bos_token", "unk_token", "sep_token", "cls_token", "mask_token", "stop_token"),
    *("image_token", "end_of_text_token", "fim_prefix_token", "pad_token_id", "token_id", "token_ids", "token_type"),
    *("tokenizer", "tokenizer_path", "tokenizer_name", "detokenize", "pretokenized", "add_special_tokens"),
    *("key", "keys", "sort_key", "primary_key", "foreign_key", "join_key", "dedup_key", "text_key", "key_field"),
    *("keyword", "keywords", "monkey", "public_key", "author", "authors", "author_id", "authority", "authored_by"),
    *("passage", "passages", "pass", "n_passes", "bypass", "compass", "signature_size", "num_signatures"),
    *("minhash_signature", "secretary", "privacy", "session_id", "access_count", "cookie_banner", "account_name"),
    *("api_version", "auth_method", "credits", "sasquatch", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "HF_HOME"),
    *("OMP_NUM_THREADS", "VLLM_MAX_TOKENS", "SSH_AUTH_SOCK", "AWS_REGION", "api_key_env", "password_file"),
)
CREDENTIALS = (
    *("api_key", "api-key", "apikey", "apiKey", "OPENAI_API_KEY", "WANDB_API_KEY", "X-Api-Key", "hf_token", "HF_TOKEN"),
    *("access_token", "accessToken", "auth_token", "github_token", "refresh_token", "session_token", "bearer_token"),
    *("token", "id_token", "secret", "secrets", "client_secret", "password", "db_password", "PGPASSWORD", "passwd"),
    *("passphrase", "pwd", "DB_PASS", "AWS_SECRET_ACCESS_KEY", "aws_access_key_id", "AWS_SESSION_TOKEN", "AccountKey"),
    *("connection_string", "SharedAccessSignature", "private_key", "credential", "credentials", "Authorization"),
    *("proxy_auth", "cookie", "jwt", "sig", "signature", "X-Amz-Signature", "X-Amz-Security-Token", "X-Amz-Credential"),
    *("X-Goog-Signature", "AWSAccessKeyId", "AZURE_STORAGE_SAS_TOKEN", "storage_key"),
)


def options() -> Iterator[str]:
    """Yield all options of the command line."""
    waiting: list[argparse.ArgumentParser] = [build_parser()]
    while waiting:
        for action in waiting.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            yield from (word for word in action.option_strings if word.startswith("--"))


def parameters() -> Iterator[str]:
    """Yield the names of all parameters of calls in Python."""
    for name in ledgerbeam.__all__:
        call = getattr(ledgerbeam, name)
        if inspect.isfunction(call) or dataclasses.is_dataclass(call):
            yield from inspect.signature(call).parameters  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["2048", "<|end|>", "[SEP]", "true", "body.content", "./bpe.json", "s3://b/bpe.json"])
def test_names_of_the_field_are_shown(value: str) -> None:
    hidden = [name for name in OF_THE_FIELD if is_credential(name, value)]
    assert hidden == []
    for name in OF_THE_FIELD:
        pair = f"{name}={value}"
        for words in (["--set", pair], [f"--set={pair}"], [f"--{name}", value], [pair]):
            assert command_without_secrets(words) == words


def test_every_option_and_parameter_of_our_own_is_shown() -> None:
    for name in {*options(), *parameters()} - {"--storage-options", "storage_options"}:
        for words in ([name, "value", "word"], [f"{name}=value"], ["--set", f"{name.strip('-')}=value"]):
            assert command_without_secrets(words) == words
    assert command_without_secrets(["--storage-options", "value"]) == ["--storage-options", "***"]


def test_credentials_are_hidden_in_commands_and_urls() -> None:
    for name in CREDENTIALS:
        assert is_credential(name), name
        for words in (["--set", f"{name}=hunter2"], [f"--set={name}=hunter2"], [f"--{name}", "hunter2"]):
            assert "hunter2" not in str(command_without_secrets(words)), name
        assert without_secrets(f"https://host/a?x=1&{name}=hunter2&y=2") == f"https://host/a?x=1&{name}=***&y=2"


@pytest.mark.parametrize(
    "words",
    [
        ["--header", "Authorization: Bearer hunter2hunter2"],
        ["--header", "X-Api-Key: hunter2"],
        ["--set", 'client={"headers": {"Authorization": "hunter2"}}'],
        ["--headers", '{"api_key": "hunter2"}'],
        ["--set", 'keys=[{"password": "hunter2"}]'],
        ["--set", "model=sk-hunter2hunter2hunter2"],
        ["--set", "company_token=f00dhunter2cafe0123456789"],
        ["python", "job.py", "hf_hunter2hunter2hunter2"],
    ],
)
def test_credentials_are_hidden_wherever_they_stand_in_a_command(words: list[str]) -> None:
    assert "hunter2" not in str(command_without_secrets(words))


def test_a_name_with_two_meanings_is_judged_by_its_value() -> None:
    for name, value in (("company_token", "<company>"), ("shard_key", "meta.url_normalized_v2"), ("signature", "128")):
        assert not is_credential(name, value)
    assert is_credential("shard_key", "Zm9vYmFyYmF6MTIzNDU2Nzg5")


def test_a_header_in_a_message_is_hidden() -> None:
    assert without_secrets("sent Authorization: Bearer abc.def") == "sent Authorization: Bearer ***"
    assert without_secrets("{'authorization': 'Basic YTpi'}") == "{'authorization': 'Basic ***'}"
    assert without_secrets("authorization failed: see the log") == "authorization failed: see the log"


def test_a_known_secret_within_a_longer_token_hides_the_whole_token() -> None:
    register_secrets({"password": "hunter7hunter7"})
    assert without_secrets("use hf_hunter7hunter7hunter7, then hunter7hunter7hunter7") == "use ***, then ***hunter7"
