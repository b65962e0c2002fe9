from __future__ import annotations

from pathlib import Path

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.lmdb import files as lmdb_opening
from ledgerbeam.ledger.lmdb.files import filesystem_type, refuse_network_filesystem
from ledgerbeam.ledger.lmdb.store import LmdbStore
from tests.cases import each

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /mnt/home rw shared:9 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /mnt/home/local rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/with\\040space rw - fuse.sshfs host:/ rw
33 22 0:43 / /mnt/over rw - lustre mds:/fs rw
34 22 0:44 / /mnt/over rw - tmpfs tmpfs rw
broken line
"""


@each(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/mnt/homework", "ext4"),
        ("/mnt/home", "nfs4"),
        ("/mnt/home/me/ledger", "nfs4"),
        ("/mnt/home/local/ledger", "xfs"),
        ("/mnt/with space/x", "fuse.sshfs"),
        ("/mnt/over/x", "tmpfs"),
    ],
)
def test_the_innermost_and_newest_mount_decides(path: str, kind: str) -> None:
    assert filesystem_type(path, MOUNTS) == kind


def test_the_innermost_mount_decides_in_whatever_order_they_are_listed() -> None:
    lines = MOUNTS.splitlines()[:2]
    assert {filesystem_type("/mnt/home/x", "\n".join(order)) for order in (lines, lines[::-1])} == {"nfs4"}


def test_no_mount_means_unknown() -> None:
    assert filesystem_type("/x", "") is None


@each(
    ("line", "kind"),
    [
        ("1 2 3:4 / / rw - nfs4 server", "nfs4"),
        ("1 2 3:4 / / - nfs4 server", "nfs4"),
        ("1 2 3:4 / - nfs4 server", None),
        ("- nfs4 server", None),
        ("1 2 3:4 / / rw nfs4 server", None),
    ],
)
def test_a_line_that_does_not_say_what_is_mounted_where_is_passed_over(line: str, kind: str | None) -> None:
    assert filesystem_type("/x", line) == kind


@pytest.mark.parametrize("path", ["/mnt/home/me/ledger", "/mnt/with space/x"])
def test_a_network_filesystem_is_refused_with_advice(path: str) -> None:
    with pytest.raises(UsageError, match=r"network filesystem \(.*local disk"):
        refuse_network_filesystem(path, MOUNTS)


def test_a_local_filesystem_is_accepted() -> None:
    refuse_network_filesystem("/mnt/home/local/ledger", MOUNTS)
    refuse_network_filesystem("/tmp/ledger")


def test_where_nothing_says_what_is_mounted_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_opening, "MOUNTINFO", str(tmp_path / "mountinfo"))
    refuse_network_filesystem("/")
    (tmp_path / "mountinfo").write_text("22 1 0:40 / / rw - nfs4 server:/ rw\n", encoding="utf-8")
    with pytest.raises(UsageError, match="nfs4"):
        refuse_network_filesystem("/")
    with pytest.raises(UsageError, match=f"ledger {tmp_path}/ledger: it is on a network filesystem"):
        LmdbStore(str(tmp_path / "ledger")).open(create=True)
    assert not (tmp_path / "ledger").exists()
