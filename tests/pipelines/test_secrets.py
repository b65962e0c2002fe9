"""Secrets that a command was given are in nothing that it prints or writes, however it ends."""

from __future__ import annotations

import json
import pickle
import signal
import time
from pathlib import Path

import pytest

from ledgerbeam._base.redaction import command_without_secrets, refuse_secrets, without_secrets
from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import Job, Output, Source
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.ledger.opening import open_local_store, open_store
from tests.cases import each
from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import wait_for
from tests.pipelines.stores.test_remote_ledger import Bucket
from tests.servers.s3 import PASSWORD

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


def leaked(workspace: Workspace, *texts: str, secret: str = "hunter2") -> list[str]:
    """Return where a secret is: in what was printed, or in what was written."""
    files = [path for path in workspace.root.rglob("*") if path.is_file() and path.name != "leaks.py"]
    found = [str(path) for path in files if secret.encode() in path.read_bytes()]
    return [text for text in texts if secret in text] + found


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("function", ["leave", "kill"])
def test_an_error_that_ends_a_job_has_no_secret(planted: Workspace, function: str) -> None:
    ran = planted.run("map", f"leaks:{function}", "in/*.jsonl", "--output", "out", "--to", "jsonl", *OPTIONS, "--debug")
    assert ran.status != 0
    assert leaked(planted, ran.out, ran.err) == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_says_how_to_go_on_and_no_secret(planted: Workspace, number: signal.Signals) -> None:
    planted.jsonl("in/b.jsonl", 2000)
    job = ("map", "leaks:slow", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L", *SMALL)
    process = planted.start(*job, *OPTIONS)
    wait_for(lambda: len(planted.files("out")) > 4, process)
    process.send_signal(number)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130, said
    for text in ("ledgerbeam map", "--storage-options '***'", "replace *** with your own"):
        assert text in said
    assert leaked(planted, said) == []


@each("url", URLS)
def test_no_url_with_credentials_is_taken(url: str) -> None:
    with pytest.raises(UsageError, match="without credentials") as refused:
        refuse_secrets(url)
    assert "hunter2" not in str(refused.value)


@each(
    "url",
    [
        *("s3://bucket/a@b:c/d?x=1", "abfs://container@account.dfs.core.windows.net/a", "https://host:8080/a?page=2"),
        *("/data/a?sig=1.jsonl", "/data/https://a:b@c", "sftp://me@host/a", "gs://bucket/token=1/a.jsonl"),
    ],
)
def test_urls_without_credentials_are_taken(url: str) -> None:
    assert refuse_secrets(url) == url


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_data_is_not_redacted(planted: Workspace, tmp_path: Path) -> None:
    (planted.root / "in/a.jsonl").write_text('{"text": "option-hunter2 https://me:hunter2@host"}\n')
    assert planted.run("index", "in/a.jsonl").status == 0
    for more in ((), ("--json",)):
        shown = planted.run("show", "in/a.jsonl", "0", *OPTIONS, *more)
        assert "option-hunter2 https://me:hunter2@host" in shown.out
    planted.run("convert", "in/*.jsonl", "--output", "out", "--to", "jsonl", *OPTIONS, status=0)
    assert planted.records("out") == [{"text": "option-hunter2 https://me:hunter2@host"}]


@each(
    ("text", "shown"),
    [
        ("ftp://user:hunter2@host/a.jsonl", "ftp://user:***@host/a.jsonl"),
        ("s3://:hunter2@bucket/a", "s3://:***@bucket/a"),
        ("cannot read https://u:hunter2@h/x: 403, nor HTTP://u:hunter2@h/y", None),
        ("https://h/a?X-Amz-Signature=hunter2&x=1", "https://h/a?X-Amz-Signature=***&x=1"),
        ("https://h/a?sv=1&sig=hunter2", "https://h/a?sv=1&sig=***"),
        ("https://h/a?X-Amz-Security-Token=hunter2&access_token=hunter2", None),
        ("s3://bucket/a@b:c/d", "s3://bucket/a@b:c/d"),
        ("/data/a=b&c@d.jsonl", "/data/a=b&c@d.jsonl"),
        ("https://host:8080/a?page=2", "https://host:8080/a?page=2"),
    ],
)
def test_passwords_and_signatures_in_urls_are_hidden_and_nothing_else(text: str, shown: str | None) -> None:
    assert "hunter2" not in without_secrets(text)
    if shown is not None:
        assert without_secrets(text) == shown


def test_a_command_line_keeps_its_words_but_not_its_secrets() -> None:
    words = ["map", "f:g", "--storage-options", '{"secret": "hunter2"}', "--storage-options={hunter2}", "--to", "jsonl"]
    words += ["--", "--s3_secret_access_key=hunter2", "--s3_secret_access_key", "hunter2", "--runner=PrismRunner"]
    shown = command_without_secrets(words)
    assert "hunter2" not in " ".join(shown)
    assert len(shown) == len(words)
    assert [shown[i] for i in (0, 1, 2, 5, 6, 7, 10 + 1)] == [words[i] for i in (0, 1, 2, 5, 6, 7, 10 + 1)]


def test_storage_options_are_in_no_ledger_and_in_no_output_of_a_command(failed_job: Workspace, tmp_path: Path) -> None:
    printed = []
    export = ["export", "L", "--output", str(tmp_path)]
    for words in (["status", "L"], ["status", "L", "--json"], ["failures", "L"], export):
        looked = failed_job.run("ledger", *words, status=0)
        printed += [looked.out, looked.err]
    written = [*failed_job.files("L").values(), *(path.read_bytes() for path in tmp_path.iterdir())]
    assert not any("hunter2" in text for text in printed)
    assert not any(b"hunter2" in content for content in written)
    assert any(b"--storage-options" in content for content in written), "the command is not recorded"


@pytest.mark.slow
def test_a_password_in_a_url_is_in_no_output_of_a_command(workspace: Workspace) -> None:
    url = "ftp://me:hunter2@host/in/a.jsonl"
    source = Source(url, 1, "v")
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job("map", {"output": str(workspace.root), "base": "ftp://me:hunter2@host/in/"}))
    store.register([source])
    output = Output("a.jsonl-0000000000.jsonl", 1, "x", 1)
    store.commit(
        [Leaf(source.id, ((0, 2),), outputs=(output,))], [Failure(source.id, ((1, 2),), url, "E", f"{url}: E")]
    )
    store.close()
    (workspace.root / output.name).touch()  # of another size
    for words in (
        *([action, "L", *more] for action in ("status", "failures", "outputs") for more in ([], ["--json"])),
        ["verify", "L", "--sizes-only"],
        ["export", "L", "--output", "exported"],
    ):
        looked = workspace.run("ledger", *words)
        assert looked.out
        assert "hunter2" not in looked.out + looked.err, words
    assert b"me:***@host" in workspace.files("exported")["sources.jsonl"]
    assert not any(b"hunter2" in content for content in workspace.files("exported").values())


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.parametrize("remote", [False, True])
def test_credentials_are_written_nowhere(workspace: Workspace, s3: S3Server, remote: bool) -> None:
    bucket = Bucket(s3)
    env = {"LEDGERBEAM_CACHE": str(workspace.root / "cache")}
    ledger = f"{bucket.url}/L" if remote else "L"
    options = ("--storage-options", json.dumps(s3.options))
    command = [*bucket.map("out", "L"), *options]
    command[command.index("--ledger") + 1] = ledger
    process = workspace.start(*command, env=env)
    wait_for(lambda: bucket.has("out"), process)
    assert leaked(workspace, secret=PASSWORD) == []  # while it runs: the run's own folder too
    process.kill()
    said = process.communicate()[0]
    ran = workspace.run(*command, env=env, status=0)
    time.sleep(0.2)
    looks = [ran, workspace.run("ledger", "status", f"{bucket.url}/none", *options, env=env, status=1)]
    for action, *more in (
        *(("status",), ("status", "--json"), ("failures",), ("outputs", "--json")),
        *(("export", "--output", "tables"), ("report", "--output", "report.html")),
    ):
        looks.append(workspace.run("ledger", action, ledger, *more, *options, env=env))
    assert leaked(workspace, said, *(look.out + look.err for look in looks), secret=PASSWORD) == []
    if remote:
        assert [name for name, data in bucket.contents("L").items() if PASSWORD.encode() in data] == []


@pytest.mark.s3
@pytest.mark.slow
def test_a_store_travels_with_the_options_that_it_needs(workspace: Workspace, s3: S3Server) -> None:
    """What is pickled goes to a worker's memory, and has to hold what the worker connects with; nothing stores it."""
    bucket = Bucket(s3)
    env = {"LEDGERBEAM_CACHE": str(workspace.root / "cache"), **s3.env}
    assert workspace.run(*bucket.map("out", "L", "functions:keep"), env=env).status == 0
    store = open_store(f"{bucket.url}/L", s3.options, create=False, read_only=True)
    assert pickle.loads(pickle.dumps(store)).status()["complete"]
    store.close()
