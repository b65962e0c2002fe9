from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledgerbeam._base.extensions import install_command
from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage import client, urls
from tests.cases import each


@each(
    ("given", "canonical"),
    [
        ("/a/b.jsonl", "/a/b.jsonl"),
        ("/a//b/./c/../d", "/a/b/d"),
        ("//a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("local:///a/b", "/a/b"),
        ("/a b/c#d?e%20", "/a b/c#d?e%20"),
        ("s3a://b/k//l/../m", "s3://b/k//l/../m"),
        ("S3://b/K", "s3://b/K"),
        ("gcs://b/k", "gs://b/k"),
        ("memory:///b/k", "memory://b/k"),
        ("hdfs:///b/k", "hdfs:///b/k"),
        ("/data/odd://name", "/data/odd:/name"),
    ],
)
def test_one_source_has_one_name(given: str, canonical: str) -> None:
    assert urls.canonical_url(given) == canonical
    assert urls.canonical_url(canonical) == canonical


def test_relative_paths_are_below_the_working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert urls.canonical_url("a/../b") == f"{tmp_path}/b"


def test_links_keep_their_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert urls.canonical_url(str(tmp_path / "link" / "x")) == f"{tmp_path}/link/x"


@pytest.mark.parametrize("name", ["", "pipe:cat x", "simplecache::s3://b/k"])
def test_names_without_addressable_bytes_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        urls.canonical_url(name)


@each("name", ["s3:/b/k", "S3:/b/k", "s3:", "s3:b/k", "s3a:/b", "gs:/b/k", "https:/host/a", "az:/c"])
def test_a_url_that_lost_a_slash_is_no_local_path(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}: expected {name.partition(':')[0]}://, "):
        urls.canonical_url(name)


@pytest.mark.parametrize("name", ["~", "~/out", "file:~/out"])
def test_a_home_that_no_shell_has_expanded_is_no_folder_of_that_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: expected a path, found ~"):
        urls.canonical_url(name)


def test_a_local_name_may_have_a_colon_or_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("./s3:/b", "a:b", "a/s3:/b", "file:x", "./~/out", "~x", "a/~/b"):
        assert urls.canonical_url(name) == str(tmp_path / name.removeprefix("./").removeprefix("file:"))


def test_an_unknown_scheme_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nowhere://"):
        client.filesystem("nowhere://b/k")


def test_a_missing_extra_is_named() -> None:
    # In a separate process, because an imported module cannot be hidden in this one.
    script = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from ledgerbeam.errors import UsageError\n"
        "from ledgerbeam.io.storage import stat\n"
        "try: stat.stat('s3://b/k')\n"
        "except UsageError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert install_command("s3") in out.stdout


def test_one_instance_serves_a_process() -> None:
    options = {"asynchronous": False}
    assert client.filesystem("memory://a", options) is client.filesystem("memory://b/c", dict(options))


def test_the_command_that_indexes_again_is_as_a_shell_takes_it() -> None:
    assert urls.index_again("s3://bucket/a.jsonl") == "ledgerbeam index --force s3://bucket/a.jsonl"
    assert urls.index_again("/in/a[1] b.jsonl") == "ledgerbeam index --force '/in/a[1] b.jsonl'"
