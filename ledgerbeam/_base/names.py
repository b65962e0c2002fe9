"""Names of outputs, indexes and seek points, derived from the names of sources.

A source may have any name that its store accepts: `..` in a key, 255 bytes in a part, 1,000 bytes in a key. A derived
name must stay below its folder and be short enough for the endings that are added. Ordinary names are not changed, and
different sources have different names:

- Parts that a folder cannot hold are escaped: an empty part as `%`, `.` as `%2E`, `..` as `%2E%2E`. A percent sign at
  the start of a part is written as `%25`.
- A part or a path that is too long is cut, and `~` and a hash of the whole follow. Names with characters that no store
  accepts, such as a zero byte, and names that look like a cut name get this hash too.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from ledgerbeam.errors import UsageError

ENDINGS_ROOM = 64
"""Bytes of a part that are reserved for the ending of an output, so that all outputs of a source have the same prefix.
`-0000000000-000000-000000.supervision.jsonl.idx` has 47."""

REJECTS = "_rejects"  # subfolder of an output folder for rejected records
DROPPED = "_dropped"  # subfolder for dropped records, of a job that stores them
ASIDE = (REJECTS, DROPPED)  # in the place of a route, for outputs with the records that are not in a dataset
_PART_BYTES = 255  # NAME_MAX of Linux
_KEY_BYTES = 1024  # limit of S3 and GCS; Azure allows 1,024 characters
_PATH_BYTES = 4096 - 1 - 64  # PATH_MAX of Linux, less the zero at its end and the affixes of a temporary file
_FOLDER_ROOM = 64  # for a folder of other outputs, such as `_rejects/`
_HASH = 16
_MARK_BYTES = 1 + 2 * _HASH

_DOTS = {"": "%", ".": "%2E", "..": "%2E%2E"}
_MARKED = re.compile(r".*~[0-9a-f]{32}", re.DOTALL)
_NO_STORE = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
_NO_OBJECT = re.compile("[\0\ud800-\udfff]")  # only a local disk allows names that are not UTF-8


def relative_name(path: str, room: int, *, below: str, mark: bool = False) -> str:
    """Return a valid name for a path below a root with the URL `below`. Parts of names and paths are separated by `/`.

    The name depends only on the arguments, and different paths have different names. `room` is the length in bytes of
    the longest ending that is added to the name. With `mark`, every name gets a hash. UsageError if no name fits.
    """
    unfit = _NO_STORE if below.startswith("/") else _NO_OBJECT
    *folders, last = path.split("/")
    kept = [_part(part, 0, unfit) for part in folders]
    last = _part(last, room, unfit)
    name = "/".join([*kept, _marked(last, path, room) if mark else last])
    above = below if below.startswith("/") else below.partition("://")[2].partition("/")[2]
    most = (_PATH_BYTES if below.startswith("/") else _KEY_BYTES) - _FOLDER_ROOM - len(_encoded(above))
    if len(_encoded(name)) + room > most:
        folder, slash, last = _cut(name, max(0, most - room - _MARK_BYTES)).rpartition("/")
        name = f"{folder}{slash}{_marked(last, path, room)}"
        if len(_encoded(name)) + room > most:
            raise UsageError(f"{below}: no room for the names of files below it; choose a shorter folder or prefix")
    return name


def beside(url: str, ending: str) -> str:
    """Return the URL of a file in the same folder with an ending added to the name, such as `x.jsonl.idx`.

    If the result is not valid, its last part is cut. If the key of an object would be too long or has parts `..`, the
    file is in the same bucket, but in another folder.
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
    """Return the URL of a folder. UsageError if the URL has a part `..`, which stores refuse or take literally."""
    if not url.startswith("/") and ".." in url.split("/"):
        raise UsageError(f"{url}: expected a folder without parts '..'; write the URL without them")
    return url


def is_route(name: str) -> bool:
    """Return whether a name is valid for a route."""
    try:
        check_route(name)
    except ValueError:
        return False
    return True


def check_route(name: str) -> str:
    """Check the name of a route, which becomes a subfolder of the output folder, and return it.

    Raises ValueError if it is too long, has several parts, or has the prefix of a hidden or reserved folder.
    """
    fits = isinstance(name, str) and len(_encoded(name)) < _FOLDER_ROOM
    if not fits or not name or name[0] in "_.%~" or not name.isprintable() or {"/", "\\"} & set(name):
        shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:77]}..."
        raise ValueError(
            f"expected the name of a route: a folder name of at most {_FOLDER_ROOM - 1} bytes that does not begin with "
            f"'_', '.', '%' or '~', found {shown}"
        )
    return name


def check_name(name: str) -> str:
    """Return the name of an output. ValueError if it is empty, has a zero byte, or could leave its folder (`..`)."""
    if not name or "\0" in name or ".." in name.split("/"):
        shown = repr(name) if len(name) <= 80 else f"{name[:77]!r}..."
        raise ValueError(f"expected the name of an output, without parts '..' and zero bytes, found {shown}")
    return name


def as_unicode(text: str) -> str:
    """Return a text for JSON. Bytes that are not Unicode, as in some names on a disk, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _part(part: str, room: int, unfit: re.Pattern[str], *, plain: bool = False) -> str:
    """Return a valid part of a path to which `room` bytes can be added; with `plain`, no percent signs are used."""
    name = part if plain else _DOTS.get(part) or ("%25" + part[1:] if part.startswith("%") else part)
    if len(_encoded(name)) + room > _PART_BYTES or unfit.search(part) or _MARKED.fullmatch(part):
        name = _marked(unfit.sub("%", name), part, room)
    return name


def _marked(part: str, whole: str, room: int) -> str:
    """Cut a part of a path, and add a hash of `whole`, which is this part or the whole path."""
    most = _PART_BYTES - room - _MARK_BYTES
    if most < 0:
        raise UsageError(f"no room for the name of a file: its ending has {room} bytes; shorten names and fields")
    digest = blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=_HASH, person=b"lb.cut").hexdigest()
    return f"{_cut(part, most)}~{digest}"


def _cut(text: str, most: int) -> str:
    """Return the longest prefix of a text that fits into `most` bytes."""
    size = 0
    for number, character in enumerate(text):
        size += len(_encoded(character))
        if size > most:
            return text[:number]
    return text


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates for no byte: no file has such a name, but a user can give one
        return text.encode("utf-8", "surrogatepass")


INDEX_ENDING = ".idx"
