"""Names of files and objects that are made from the names of others: they stay below their root, and they fit.

A source may have any name that its store takes: `..` in a key, 255 bytes in a part, a thousand in a key. What is named
after it (outputs, indexes, seek points) must lie below the folder that it is meant for, and be short enough for the
endings that are added. Ordinary names stay as they are, and no two sources share a name:

- a part of a path that a folder cannot hold is written with percent signs: an empty one as `%`, `.` as `%2E`, `..` as
  `%2E%2E`; of a part that begins with a percent sign that one is written as `%25`;
- a part, or a whole path, that is too long is cut, and `~` and a hash of all of it follow. So they do on what no store
  can name, such as a zero byte, and on what would look like a part that was cut.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from ledgerbeam.errors import UsageError

ENDINGS_ROOM = 64
"""Bytes of a part that are left for what follows the name of a source in that of an output: up to here all outputs of a
source begin alike. `-0000000000-000000-000000.supervision.jsonl.idx` are 47."""

REJECTS = "_rejects"
"""Folder in an output folder of the records that its job has rejected."""

_PART_BYTES = 255  # NAME_MAX of Linux
_KEY_BYTES = 1024  # of S3 and GCS; Azure's are 1,024 characters
_PATH_BYTES = 4096 - 1 - 64  # PATH_MAX of Linux, less the zero at its end and the marks of a temporary file
_FOLDER_ROOM = 64  # for what outputs of another kind are put below, such as `_rejects/`
_HASH = 16
_MARK_BYTES = 1 + 2 * _HASH

_DOTS = {"": "%", ".": "%2E", "..": "%2E%2E"}
_MARKED = re.compile(r".*~[0-9a-f]{32}", re.DOTALL)
_NO_STORE = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
_NO_OBJECT = re.compile("[\0\ud800-\udfff]")  # what is not UTF-8 is a name on a disk only


def relative_name(path: str, room: int, *, below: str, mark: bool = False) -> str:
    """Return the name that stands for a path below a root.

    Args:
        path: Parts with `/` between them, for example the path of a source below the base of its job.
        room: Length in bytes of the longest ending that is added to the name.
        below: The root, a canonical URL.
        mark: Whether a hash is added anyway.

    Returns:
        Parts with `/` between them. It is a pure function of the arguments, and different paths have different names.

    Raises:
        UsageError: The root, or the ending, leaves no room for a name.
    """
    unfit = _NO_STORE if below.startswith("/") else _NO_OBJECT
    *folders, last = path.split("/")
    kept = [_part(part, 0, unfit) for part in folders]
    last = _part(last, room, unfit)
    name = "/".join([*kept, _marked(last, path, room) if mark else last])
    most = _most_bytes(below)
    if len(_encoded(name)) + room > most:
        folder, slash, last = _cut(name, max(0, most - room - _MARK_BYTES)).rpartition("/")
        name = f"{folder}{slash}{_marked(last, path, room)}"
        if len(_encoded(name)) + room > most:
            raise UsageError(f"{below}: this name leaves no room for those of the files below it; choose a shorter one")
    return name


def beside(url: str, ending: str) -> str:
    """Return the URL of what lies beside a file or object and has its name with an ending: `x.jsonl.idx`.

    Args:
        url: A canonical URL.
        ending: For example `.idx`.

    Returns:
        `url` and the ending; where that is no name, one in the same folder with the last part cut; of an object whose
        key is too long as a whole or has parts `..`, one in the same bucket.
    """
    if url.startswith("/"):
        folder, slash, last = url.rpartition("/")
        return f"{folder}{slash}{_part(last, len(ending), _NO_STORE, plain=True)}{ending}"
    scheme, mark, rest = url.partition("://")
    bucket, slash, key = rest.partition("/")
    folder, last_slash, last = key.rpartition("/")
    name = f"{folder}{last_slash}{_part(last, len(ending), _NO_OBJECT, plain=True)}"
    if ".." in key.split("/") or _NO_OBJECT.search(key) or len(_encoded(name)) + len(ending) > _KEY_BYTES:
        name = relative_name(key, len(ending), below=f"{scheme}{mark}{bucket}", mark=True)
    return f"{scheme}{mark}{bucket}{slash}{name}{ending}"


def check_root(url: str) -> str:
    """Check the URL of a folder that files are named below, and return it back.

    Raises:
        UsageError: It is one of an object store and has a part `..`: stores take that for a name or refuse it.
    """
    if not url.startswith("/") and ".." in url.split("/"):
        raise UsageError(f"{url}: expected a folder without parts '..'; name it by its own place")
    return url


def is_route(name: str) -> bool:
    """Return whether a name can be that of a route."""
    try:
        check_route(name)
    except ValueError:
        return False
    return True


def check_route(name: str) -> str:
    """Check the name of a route, which is that of a folder below the output folder, and return it back.

    Raises:
        ValueError: It is no single part of a path, begins like a folder of ours or a hidden one, or is too long.
    """
    fits = isinstance(name, str) and len(_encoded(name)) < _FOLDER_ROOM
    if not fits or not name or name[0] in "_.%~" or not name.isprintable() or {"/", "\\"} & set(name):
        shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:77]}..."
        raise ValueError(
            f"expected the name of a route: one part of a path of at most {_FOLDER_ROOM - 1} bytes that does not begin "
            f"with '_', '.', '%' or '~', found {shown}"
        )
    return name


def check_name(name: str) -> str:
    """Check what is to be recorded as the name of an output, and return it back.

    Raises:
        ValueError: It is empty, holds a zero byte, or has a part `..`, which may lead out of the output folder.
    """
    if not name or "\0" in name or ".." in name.split("/"):
        shown = repr(name) if len(name) <= 80 else f"{name[:77]!r}..."
        raise ValueError(f"expected the name of an output, without parts '..' and zero bytes, found {shown}")
    return name


def as_unicode(text: str) -> str:
    """Return a text that JSON can hold, with escapes for what is no Unicode: a name on a disk need not be that."""
    return text.encode("utf-8", "backslashreplace").decode()


def _part(part: str, room: int, unfit: re.Pattern[str], *, plain: bool = False) -> str:
    """Return a part of a path as a folder can hold it, with `room` bytes to spare; `plain` leaves percent signs out."""
    name = part if plain else _DOTS.get(part) or ("%25" + part[1:] if part.startswith("%") else part)
    if len(_encoded(name)) + room > _PART_BYTES or unfit.search(part) or _MARKED.fullmatch(part):
        name = _marked(unfit.sub("%", name), part, room)
    return name


def _marked(part: str, whole: str, room: int) -> str:
    """Cut a part so that a hash of `whole` fits behind it: of the part, or of the path, which no part can equal."""
    most = _PART_BYTES - room - _MARK_BYTES
    if most < 0:
        raise UsageError(f"an ending of {room} bytes leaves no room for the name of a file; shorten names and fields")
    digest = blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=_HASH, person=b"lb.cut").hexdigest()
    return f"{_cut(part, most)}~{digest}"


def _cut(text: str, most: int) -> str:
    """Return the characters of a text that fit into so many bytes."""
    size = 0
    for number, character in enumerate(text):
        size += len(_encoded(character))
        if size > most:
            return text[:number]
    return text


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that stand for no byte: nothing has such a name, but it can be asked for
        return text.encode("utf-8", "surrogatepass")


def _most_bytes(root: str) -> int:
    """Return the longest name below a root, in bytes."""
    if root.startswith("/"):
        return _PATH_BYTES - _FOLDER_ROOM - len(_encoded(root))
    key = root.partition("://")[2].partition("/")[2]
    return _KEY_BYTES - _FOLDER_ROOM - len(_encoded(key))


INDEX_ENDING = ".idx"
