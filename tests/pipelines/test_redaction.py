"""No secret leaves a process by way of a ledger, a report or a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerbeam._base.redaction import command_without_secrets, printable, without_secrets
from ledgerbeam.ledger import Job, Output, Source
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.ledger.opening import open_local_store
from tests.cases import each
from tests.pipelines.conftest import Workspace


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


def test_text_that_steers_a_terminal_is_escaped() -> None:
    assert printable("a\x1b[2Jb\x9b\u202ec\udcff\n\td\u00e9") == "a\\x1b[2Jb\\x9b\\u202ec\\udcff\n\td\u00e9"


def test_storage_options_are_in_no_file_of_the_ledger_and_in_no_output_of_a_command(
    failed_job: Workspace, tmp_path: Path
) -> None:
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
        *(["status", "L", *more] for more in ([], ["--json"])),
        *(["failures", "L", *more] for more in ([], ["--json"])),
        *(["outputs", "L", *more] for more in ([], ["--json"])),
        ["verify", "L", "--sizes-only"],
        ["export", "L", "--output", "exported"],
    ):
        looked = workspace.run("ledger", *words)
        assert looked.out
        assert "hunter2" not in looked.out + looked.err, words
    assert b"me:***@host" in workspace.files("exported")["sources.jsonl"]
    assert not any(b"hunter2" in content for content in workspace.files("exported").values())
