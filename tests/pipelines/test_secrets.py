"""Secrets that a command was given are in nothing that it prints or writes, however it ends."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ledgerbeam._base.redaction import refuse_secrets
from ledgerbeam.errors import UsageError
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import wait_for

pytestmark = pytest.mark.long

PLANTED = {
    "password": "option-hunter2",
    "client_kwargs": {"aws_secret_access_key": "nested hunter2 with 'quotes' \"and\" ü", "verify": False},
    "connection_string": "AccountName=me;AccountKey=connected-hunter2==;BlobEndpoint=http://h/me",
    "anything": "a-long-value-hunter2",
}
ENVIRONMENT = {"AWS_SECRET_ACCESS_KEY": "environment-hunter2", "AZURE_STORAGE_ACCOUNT_KEY": "azure-hunter2"}
SMALL = ("--task-bytes", "100")
OPTIONS = ("--storage-options", json.dumps(PLANTED))
LEAKS = """
import json, logging, os, sys, time, warnings

SECRETS = ["option-hunter2", "nested hunter2 with 'quotes' \\"and\\" ü", "connected-hunter2==", "a-long-value-hunter2",
           "environment-hunter2", "azure-hunter2"]

def say(record):
    for secret in SECRETS:
        print("said", secret, repr(secret), json.dumps(secret))
        print("said", secret, file=sys.stderr)
        logging.getLogger("theirs").warning("logged %s", secret)
        warnings.warn(secret)
    if record["id"] % 3 == 0:
        raise ValueError("raised " + " ".join(SECRETS) + " https://me:url-hunter2@host/a?X-Amz-Signature=url-hunter2")
    return record

def slow(record):
    time.sleep(0.02)
    return record

def kill(record):
    raise KeyboardInterrupt("option-hunter2")

def leave(record):
    import ledgerbeam.errors
    raise ledgerbeam.errors.LedgerDamagedError("left " + " ".join(SECRETS))
"""
URLS = (
    "https://me:hunter2@host/a.jsonl",
    "https://hunter2@host/a.jsonl",
    "ftp://me:hun@ter2hunter2@host/a.jsonl",
    "https://host/a.jsonl?X-Amz-Algorithm=A&X-Amz-Signature=hunter2",
    "https://host/a.jsonl?sv=1&sig=hunter2",
    "s3://bucket/a.jsonl?token=hunter2",
)


@pytest.fixture
def planted(workspace: Workspace) -> Workspace:
    (workspace.root / "leaks.py").write_text(LEAKS)
    workspace.jsonl("in/a.jsonl", 9)
    workspace.env.update(ENVIRONMENT)
    return workspace


def leaked(workspace: Workspace, *texts: str) -> list[str]:
    """Return where a planted secret is: in what was printed, or in what was written."""
    found = [text for text in texts if "hunter2" in text]
    for path in workspace.root.rglob("*"):
        if path.is_file() and path.name != "leaks.py" and b"hunter2" in path.read_bytes():
            found += [str(path)]
    return found


@pytest.mark.parametrize("more", [("--debug",), ("--json", "--workers", "2")])
def test_a_job_that_fails_leaves_no_secret(planted: Workspace, more: tuple[str, ...]) -> None:
    job = ("map", "leaks:say", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L", *SMALL)
    ran = planted.run(*job, *OPTIONS, *more, status=3, err=("raised ***", "said ***"))
    assert leaked(planted, ran.out, ran.err) == []
    for words in (["status"], ["failures"], ["outputs"], ["export", "--output", "t"], ["report", "--output", "r.html"]):
        looked = planted.run("ledger", words[0], "L", *words[1:], status=0)
        assert leaked(planted, looked.out, looked.err) == []
    failures = planted.run("ledger", "failures", "L", "--json").json
    assert "--storage-options '***'" in failures["groups"][0]["retry"]


@pytest.mark.parametrize("function", ["leave", "kill"])
def test_an_error_that_ends_a_job_has_no_secret(planted: Workspace, function: str) -> None:
    ran = planted.run("map", f"leaks:{function}", "in/*.jsonl", "--output", "out", "--to", "jsonl", *OPTIONS, "--debug")
    assert ran.status != 0
    assert leaked(planted, ran.out, ran.err) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_says_how_to_go_on_and_no_secret(planted: Workspace, number: signal.Signals) -> None:
    planted.jsonl("in/b.jsonl", 2000)
    job = ("map", "leaks:slow", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L", *SMALL)
    process = planted.start(*job, *OPTIONS)
    wait_for(lambda: len(planted.files("out")) > 4, process)
    process.send_signal(number)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130, said
    for text in ("ledgerbeam map", "--storage-options '***'", "put your own in place of ***"):
        assert text in said
    assert leaked(planted, said) == []


@pytest.mark.parametrize("url", URLS)
def test_no_url_with_credentials_is_taken(url: str) -> None:
    with pytest.raises(UsageError, match="without credentials") as refused:
        refuse_secrets(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket/a@b:c/d?x=1", "abfs://container@account.dfs.core.windows.net/a", "https://host:8080/a?page=2"),
        *("/data/a?sig=1.jsonl", "/data/https://a:b@c", "sftp://me@host/a", "gs://bucket/token=1/a.jsonl"),
    ],
)
def test_urls_without_credentials_are_taken(url: str) -> None:
    assert refuse_secrets(url) == url


def test_no_command_takes_a_url_with_credentials(planted: Workspace) -> None:
    url = URLS[0]
    (planted.root / "list").write_text(f"in/a.jsonl\n{url}\n")
    to = ("--to", "jsonl", "--ledger", "L")
    for words in (
        ("map", "functions:keep", url, "--output", "out", *to),
        ("map", "functions:keep", "--sources-from", "list", "--output", "out", *to),
        ("convert", "--sources-from", url, "--output", "out", *to),
        ("convert", "in/*.jsonl", "--output", url, *to),
        ("convert", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", url),
        ("convert", "in/*.jsonl", "--output", "out", "--base", url, *to),
        ("index", "in/*.jsonl", "--index-root", url),
        ("tokenize", "in/*.jsonl", "--tokenizer", url, "--output", "t"),
        *(("verify", url), ("show", url), ("merge", url, "--output", "m"), ("ledger", "status", url)),
        ("publish", url, "--as", "webdataset"),
    ):
        ran = planted.run(*words, "--debug", status=2, err=("without credentials", "--storage-options"))
        assert leaked(planted, ran.out, ran.err) in ([], [str(planted.root / "list")])
    assert not (planted.root / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--storage-options", '{"password": "hunter2'),
        ("--storage-options=hunter2",),
        ("--storage-option", '{"password": "hunter2-hunter2"}'),
        ("--no-such", '{"secret": "hunter2-hunter2"}'),
        ("--workers", "many", "--storage-options", '{"secret": "hunter2-hunter2"}'),
    ],
)
def test_an_error_in_the_arguments_shows_no_secret(planted: Workspace, words: tuple[str, ...]) -> None:
    ran = planted.run("convert", "in/*.jsonl", "--output", "out", "--to", "jsonl", *words, "--debug", status=2)
    assert leaked(planted, ran.out, ran.err) == []


def test_data_is_not_redacted(planted: Workspace, tmp_path: Path) -> None:
    (planted.root / "in/a.jsonl").write_text('{"text": "option-hunter2 https://me:hunter2@host"}\n')
    assert planted.run("index", "in/a.jsonl").status == 0
    for more in ((), ("--json",)):
        shown = planted.run("show", "in/a.jsonl", "0", *OPTIONS, *more)
        assert "option-hunter2 https://me:hunter2@host" in shown.out
    planted.run("convert", "in/*.jsonl", "--output", "out", "--to", "jsonl", *OPTIONS, status=0)
    assert planted.records("out") == [{"text": "option-hunter2 https://me:hunter2@host"}]
