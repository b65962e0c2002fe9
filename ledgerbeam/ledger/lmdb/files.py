"""The LMDB files of a ledger: creating, opening, and refusing other content of the folder."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import sys
import time

import lmdb

from ledgerbeam._base.disk import make_folders, nearest_above, sync_folder
from ledgerbeam._base.process import hold_standard_descriptors
from ledgerbeam.errors import LedgerDamagedError, LedgerNotFoundError, LedgerVersionError, StorageError, UsageError
from ledgerbeam.ledger.lmdb.errors import NO_PERMISSION, translated
from ledgerbeam.ledger.lmdb.tables import FORMAT, KEY_FORMAT, KEY_ID, META, TABLES, StoredTable, Tables, Transaction

DATA_FILE = "data.mdb"  # the file in a ledger's folder that holds the rows
LOCK_FILE = "lock.mdb"  # the file through which processes share LMDB's locks

INITIAL_MAP_BYTES = 1 << 30
"""Address space of a new environment. The file grows only with its content; the space doubles when it is full."""

TEMPORARY_SUFFIX = ".lbtmp"  # suffix of the name of a data file while it is created

_FOLDERS = ("run", "work")
_TEMPORARY = re.compile(rf"\.{re.escape(DATA_FILE)}\.[0-9a-f]{{12}}{re.escape(TEMPORARY_SUFFIX)}")
_SHOWN_NAMES = 5
_ENGINE = 0  # LMDB 0.9; py-lmdb also bundles 1.0, whose files 0.9 cannot read
_LOCK_FILE_BYTES = 1 << 16
_MAX_READERS = 1000  # of 64 bytes each: they fit in the lock file
_PATIENCE = 2.0  # seconds
_GROWTHS = 64  # of the map by another process while it is opened; each doubles it


def open_environment(path: str, *, read_only: bool, create: bool, map_bytes: int) -> tuple[lmdb.Environment, Tables]:
    """Open a ledger's environment and its tables.

    Raises:
        UsageError: The folder is on a network filesystem, or one of the files is a link.
        LedgerNotFoundError: There is no ledger, and `create` is false.
        LedgerVersionError: Another version of ledgerbeam wrote it.
        LedgerDamagedError: The folder holds something else, or the ledger is damaged.
        StorageError: Permission is missing.
        DiskFullError: The disk has no room for a new ledger.
    """
    hold_standard_descriptors()
    _look(path, create=create)
    for name in (DATA_FILE, LOCK_FILE):  # processes that use the path of the target would not see the lock
        file = os.path.join(path, name)
        if os.path.islink(file):
            raise UsageError(
                f"ledger {path}: expected {file} to be a regular file, found a link to {os.readlink(file)}; nothing "
                "was changed. Remove the link. If its target is the file of the ledger, move the target here, or give "
                "the folder of the target as --ledger. A link to a whole folder is allowed"
            )
    refuse_network_filesystem(path)
    with translated(path):
        if create:
            _make_files(path, map_bytes)
        if not read_only:
            _reserve_lock_file(path)
        environment = _open(path, read_only=read_only, map_bytes=map_bytes)
        try:
            for _ in range(_GROWTHS):
                try:
                    _require_whole(environment, path)
                    if not read_only:
                        environment.reader_check()
                    return environment, _open_tables(environment, path, read_only=read_only, create=create)
                except lmdb.MapResizedError:
                    environment.set_mapsize(0)  # another process has just grown it: adopt its size
            raise LedgerDamagedError(
                f"ledger {path}: the first pages of {DATA_FILE} disagree on the size of this file; restore the file "
                "from a copy, or give another --ledger"
            )
        except BaseException:
            environment.close()
            raise


def require_room(path: str) -> None:
    """Refuse to create a ledger in a folder with other files: their owner would be unclear.

    Files that a killed creation has left are allowed, and empty folders that belong to a ledger.
    """
    with translated(path):
        try:
            names = os.listdir(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        others = sorted(name for name in names if not _is_ours(path, name))
        # Another process may have created the ledger meanwhile.
        if not others or os.path.lexists(os.path.join(path, DATA_FILE)):
            return
    some = ", ".join(others[:_SHOWN_NAMES]) + (", ..." if len(others) > _SHOWN_NAMES else "")
    raise UsageError(
        f"ledger {path}: expected a ledger or an empty folder, found a folder without {DATA_FILE} that holds {some}; "
        f"give a new folder, for instance --ledger {os.path.join(path, 'ledger')}. If a ledger was here, restore its "
        f"{DATA_FILE} from a copy"
    )


def _is_ours(path: str, name: str) -> bool:
    """Return whether an existing file or folder may stay in the folder in which a ledger is created."""
    if name in (DATA_FILE, LOCK_FILE) or _TEMPORARY.fullmatch(name):
        return True
    folder = os.path.join(path, name)
    return name in _FOLDERS and not os.path.islink(folder) and os.path.isdir(folder) and not os.listdir(folder)


def _look(path: str, *, create: bool) -> None:
    there = nearest_above(path)
    if not os.path.isdir(there):
        is_link = os.path.islink(there)
        found = "a link that leads to no folder" if is_link else "a file"
        remedy = "give another path, or restore the target of the link" if is_link else "give another path"
        raise LedgerDamagedError(f"ledger {path}: a ledger is a folder, found {found} at {there}; {remedy}")
    if create:
        return
    try:
        size = os.path.getsize(os.path.join(path, DATA_FILE))
    except FileNotFoundError:
        size = 0
    except OSError:
        return  # no permission: opening reports it
    if not size:
        raise _not_found(path)


def _not_found(path: str) -> LedgerNotFoundError:
    return LedgerNotFoundError(
        f"ledger {path}: it does not exist; check the path, or run the job that creates it with --ledger {path}"
    )


def _make_files(path: str, map_bytes: int) -> None:
    """Create the folder and the data file with its tables if they do not exist; after a power cut, all or none exist.

    LMDB writes the first pages of a new file in place and does not sync the folder. So a power cut could leave a file
    that cannot be opened, or remove the name of a file with commits.
    """
    file = os.path.join(path, DATA_FILE)
    try:
        make_folders(path)
    except OSError as error:
        if error.errno not in NO_PERMISSION:
            raise
        raise StorageError(
            f"ledger {path}: no permission to create it ({error}); give a folder that you can write to as --ledger"
        ) from error
    if not os.path.exists(file):
        aside = os.path.join(path, f".{DATA_FILE}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}")
        try:
            _make_tables(aside, path, map_bytes)
            # On a filesystem without hard links this fails with PermissionError. Then LMDB creates the file in place.
            with contextlib.suppress(FileExistsError, PermissionError):
                os.link(aside, file)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)
    sync_folder(path)  # also needed if another process created the file and was killed before this line


def _make_tables(file: str, path: str, map_bytes: int) -> None:
    """Create a data file that no other process knows yet; it needs no lock."""
    environment = lmdb.open(
        file, map_size=map_bytes, subdir=False, mode=0o644, max_dbs=len(TABLES), lock=False, lib_version=_ENGINE
    )
    try:
        _open_tables(environment, path, read_only=False, create=True)
    finally:
        environment.close()


def _reserve_lock_file(path: str) -> None:
    """Allocate all blocks of the lock file.

    LMDB maps it, and a write to a page for which the disk has no block kills the process (SIGBUS).
    """
    name = os.path.join(path, LOCK_FILE)
    try:
        found = os.stat(name)
    except FileNotFoundError:
        found = None
    if found is not None and found.st_size and found.st_blocks * 512 >= found.st_size:
        return
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, max(_LOCK_FILE_BYTES, found.st_size if found else 0))
    finally:
        os.close(descriptor)


def _open(path: str, *, read_only: bool, map_bytes: int) -> lmdb.Environment:
    last = time.monotonic() + _PATIENCE
    while True:
        try:
            return lmdb.open(
                path,
                map_size=map_bytes,
                readonly=read_only,
                sync=True,
                metasync=True,
                create=False,
                mode=0o644,
                max_readers=_MAX_READERS,
                max_dbs=len(TABLES),
                lock=True,
                lib_version=_ENGINE,
            )
        except lmdb.LockError:
            # Another process is opening or closing it at the same time (py-lmdb 309, 340).
            if time.monotonic() > last:
                raise
            time.sleep(0.02)


def _require_whole(environment: lmdb.Environment, path: str) -> None:
    """Refuse a truncated data file: LMDB maps it, and a read past its end kills the process (SIGBUS).

    A file without its last pages is still whole if they are unused. So a child process first tries to read all rows.
    """
    expected = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    found = os.path.getsize(os.path.join(path, DATA_FILE))
    if found >= expected:
        return
    tried = subprocess.run(
        [sys.executable, "-I", "-c", _READ_ALL, path], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if tried.returncode:
        raise LedgerDamagedError(
            f"ledger {path}: its {DATA_FILE} was cut short: expected {expected:,} bytes, found {found:,}; restore it "
            "from a copy, or give another --ledger"
        )


_READ_ALL = f"""
import lmdb, sys
environment = lmdb.open(sys.argv[1], readonly=True, lock=False, max_dbs={len(TABLES)}, lib_version={_ENGINE})
with environment.begin() as reading:
    for name in list(reading.cursor().iternext(values=False)):
        for _ in reading.cursor(environment.open_db(name, reading, create=False)):
            pass
"""


def _open_tables(environment: lmdb.Environment, path: str, *, read_only: bool, create: bool) -> Tables:
    if not environment.stat()["entries"] and not create:
        raise _not_found(path)
    # A handle stays valid if its transaction commits. py-lmdb commits only its own and write transactions.
    # An unchanged write transaction waits for the write lock, but costs no flush.
    with contextlib.nullcontext() if read_only else environment.begin(write=True) as txn:
        is_new = txn is not None and not txn.stat()["entries"]
        try:
            meta = StoredTable.of(META, environment.open_db(META.encode(), txn=txn, create=is_new), b"")
            if txn is not None and is_new:
                rows = Transaction(txn, {META: meta})
                rows.put(META, KEY_FORMAT, str(FORMAT).encode())
                rows.put(META, KEY_ID, secrets.token_hex(16).encode())
            with contextlib.nullcontext(txn) if txn is not None else environment.begin() as reading:
                _check_format(reading.get(KEY_FORMAT, db=meta.handle), meta, path)
                # All rows: a row hidden by a damaged page would otherwise look as if it had never been written.
                ledger = dict(Transaction(reading, {META: meta}).rows(META, b"")).get(KEY_ID, b"")
            handles = {name: environment.open_db(name.encode(), txn=txn, create=is_new) for name in TABLES}
        except lmdb.NotFoundError:
            raise _foreign(path) from None
    return {name: StoredTable.of(name, handle, ledger) for name, handle in handles.items()}


def _check_format(found: bytes | None, meta: StoredTable, path: str) -> None:
    """Refuse a ledger of another format. Older versions stored the format number without a checksum."""
    if found is not None and not found.isdigit():
        found = meta.value(KEY_FORMAT, found)
    if found is None or not found.isdigit():
        raise _foreign(path)
    if int(found) > FORMAT:
        raise LedgerVersionError(
            f"ledger {path}: it has format {int(found)}, and this ledgerbeam reads format {FORMAT}; install the "
            "version of ledgerbeam that wrote it, or a newer one"
        )
    if int(found) < FORMAT:
        raise LedgerVersionError(
            f"ledger {path}: an older version of ledgerbeam created it, with format {int(found)}; this version reads "
            f"format {FORMAT}. Use the older version, or start again with another --ledger and --existing replace"
        )


def _foreign(path: str) -> LedgerDamagedError:
    return LedgerDamagedError(
        f"ledger {path}: this folder holds an LMDB database of another program, not a ledger; give another folder"
    )


_FUSE = (
    *("ceph", "ceph-fuse", "gcsfuse", "glusterfs", "goofys", "juicefs", "mount-s3", "mountpoint-s3", "rclone", "s3fs"),
    "sshfs",
)

NETWORK_FILESYSTEMS = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "dvs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs"),
        *(f"fuse.{name}" for name in _FUSE),
    )
)
"""Filesystem types, as in ``/proc/self/mountinfo``, on which a ledger is refused."""

MOUNTINFO = "/proc/self/mountinfo"


def filesystem_type(path: str, mountinfo: str) -> str | None:
    """Return the type of the filesystem of a path, for instance ``ext4``; None if no mount covers the path.

    The path is absolute, without symbolic links, and need not exist. `mountinfo` is a text of /proc/PID/mountinfo.
    """
    best, found = -1, None
    for line in mountinfo.splitlines():
        fields, separator, rest = line.partition(" - ")
        words = fields.split(" ")
        if not separator or len(words) < 5:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[4])
        covers = path == mount or path.startswith(mount.rstrip("/") + "/")
        # Of two mounts at one path, the later one hides the earlier one.
        if covers and len(mount) >= best:
            best, found = len(mount), rest.split(" ", 1)[0]
    return found


def refuse_network_filesystem(path: str, mountinfo: str | None = None) -> None:
    """Refuse a ledger folder, which need not exist, on one of `NETWORK_FILESYSTEMS`. Raises UsageError.

    If the system has no mountinfo, nothing is refused.
    """
    if mountinfo is None:
        try:
            with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
                mountinfo = file.read()
        except OSError:
            return  # not Linux, or no /proc: the type is unknown
    kind = filesystem_type(os.path.realpath(path), mountinfo)
    if kind in NETWORK_FILESYSTEMS:
        raise UsageError(
            f"ledger {path}: it is on a network filesystem ({kind}), where LMDB's locks and shared memory do not work; "
            "give a folder on a local disk, for instance --ledger /tmp/ledger (sources and outputs may stay where they "
            "are)"
        )
