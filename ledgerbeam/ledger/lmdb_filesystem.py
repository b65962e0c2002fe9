"""Refusing folders in which LMDB cannot keep its promises.

LMDB shares memory and locks between processes. Network filesystems give it neither reliably, even to one host.
"""

from __future__ import annotations

import os
import re

from ledgerbeam.errors import UsageError

NETWORK_FILESYSTEMS = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "dvs",
        "fuse.ceph",
        "fuse.ceph-fuse",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.juicefs",
        "fuse.mount-s3",
        "fuse.mountpoint-s3",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "wekafs",
    }
)
"""Filesystem types, as in ``/proc/self/mountinfo``, on which a ledger is refused."""

MOUNTINFO = "/proc/self/mountinfo"


def filesystem_type(path: str, mountinfo: str) -> str | None:
    """Find the type of the filesystem that a path lies on.

    Args:
        path: absolute, without symbolic links; it need not exist.
        mountinfo: text in the format of ``/proc/self/mountinfo`` (proc(5)).

    Returns:
        For instance ``ext4``; None if no mount covers the path.
    """
    best, found = -1, None
    for line in mountinfo.splitlines():
        fields, separator, rest = line.partition(" - ")
        words = fields.split(" ")
        if not separator or len(words) < 5:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[4])
        covers = path == mount or path.startswith(mount.rstrip("/") + "/")
        # Of two mounts on one place the later hides the earlier.
        if covers and len(mount) >= best:
            best, found = len(mount), rest.split(" ", 1)[0]
    return found


def refuse_network_filesystem(path: str, mountinfo: str | None = None) -> None:
    """Refuse a ledger folder on a network filesystem.

    Args:
        path: of the folder; it need not exist yet.
        mountinfo: see `filesystem_type`; None reads the system's. Where there is none, nothing is refused.

    Raises:
        UsageError: the folder lies on one of `NETWORK_FILESYSTEMS`.
    """
    if mountinfo is None:
        try:
            with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
                mountinfo = file.read()
        except OSError:
            return  # not Linux, or no /proc: there is nothing to judge by
    kind = filesystem_type(os.path.realpath(path), mountinfo)
    if kind in NETWORK_FILESYSTEMS:
        raise UsageError(
            f"ledger {path}: it lies on a network filesystem ({kind}), where LMDB's locks and shared memory do not "
            "hold; give a folder on a local disk, for instance --ledger /tmp/ledger (sources and outputs may stay "
            "where they are)"
        )
