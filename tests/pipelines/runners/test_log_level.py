"""What functions log in workers reaches the console from the level on that the user asks for, without secrets."""

from __future__ import annotations

import pytest

from tests.pipelines.conftest import Workspace

FUNCTION = """
import logging

log = logging.getLogger("corpus.cleaning")

def chatty(record):
    log.debug("debug %d", record["id"])
    log.info("info %d of s3://me:hunter2@host/x, token=%s", record["id"], "by-option-hunter2")
    log.warning("warning %d", record["id"])
    return record
"""

SECRET = '{"token": "by-option-hunter2"}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "level", "shown"),
    [
        ("1", None, {"warning"}),
        ("1", "info", {"info", "warning"}),
        ("2", None, {"warning"}),
        ("2", "debug", {"debug", "info", "warning"}),
        ("2", "error", set()),
    ],
)
def test_a_function_is_heard_from_the_level_asked_for(
    workspace: Workspace, workers: str, level: str | None, shown: set[str]
) -> None:
    (workspace.root / "chat.py").write_text(FUNCTION)
    for name in "ab":
        workspace.jsonl(f"in/{name}.jsonl", 2)
    asked = () if level is None else ("--log-level", level)
    ran = workspace.run(
        *("map", "chat:chatty", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--audit=off"),
        *("--workers", workers, "--storage-options", SECRET, *asked),
    )
    assert ran.status == 0, ran.err
    said = ran.out + ran.err
    assert "hunter2" not in said
    for one in ("debug", "info", "warning"):
        assert said.count(f"{one.upper()} corpus.cleaning: {one} ") == (4 if one in shown else 0), said
    if "info" in shown:
        assert "INFO corpus.cleaning: info 1 of s3://me:***@host/x, token=***" in said
    if level in (None, "error"):
        assert "apache_beam" not in said
