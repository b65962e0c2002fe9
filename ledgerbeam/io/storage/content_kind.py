"""Kinds of content that the first bytes of a file show, for files whose names say otherwise."""

from __future__ import annotations

import re

from ledgerbeam.errors import SourceError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo

HEAD = 4096  # first bytes of a file that show its kind, if it has so many

_MAGICS = (  # first bytes, kind of content, and the suffix of its names; empty if this kind is not read
    (b"\x1f\x8b", "gzip data", ".gz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data", ".zst"),
    (b"\xfd7zXZ\0", "xz data", ".xz"),
    (b"\x04\x22\x4d\x18", "LZ4 data", ".lz4"),
    (b"PK\x03\x04", "a ZIP archive", ""),
    (b"PK\x05\x06", "an empty ZIP archive", ""),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", ""),
    (b"PAR1", "a Parquet file", ".parquet"),
    (b"ARROW1", "an Arrow file", ".arrow"),
    (b"WARC/", "a WARC archive", ".warc"),
    (b"\xff\xfe\0\0", "text in UTF-32", ""),
    (b"\0\0\xfe\xff", "text in UTF-32", ""),
    (b"\xff\xfe", "text in UTF-16", ""),
    (b"\xfe\xff", "text in UTF-16", ""),
    (b"%PDF-", "a PDF document", ""),
    (b"SQLite format 3\0", "an SQLite database", ""),
    (b"\x89HDF\r\n", "an HDF5 file", ""),
    (b"\x93NUMPY", "a NumPy array", ""),
    (b"Obj\x01", "an Avro file", ""),
)

_LEAST = 8  # bytes that show whether content is text
_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)", re.DOTALL)
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)
_TAR, _TAR_AT = b"ustar", 257
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype|html|head|\?xml|error)[\s>]", re.IGNORECASE)
_PRETTY = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:\[\s*\{?|\{)[ \t\r]*\n\s*\S")
_JSON_NAME = re.compile(r"\.json(\.|$)", re.IGNORECASE)
_ONE_ARRAY = re.compile(rb"\s*\[\s*\{")
_COLUMNS = re.compile(rb"""[^\s{\["][^{}\[\]]*[,\t;][^{}\[\]]*""")
_NAMES = {"jsonl": "JSON lines", "text": "lines of text in UTF-8", "tar": "a tar archive", "warc": "a WARC archive"}
_OF_COMPRESSION = {"gzip": ".gz", "bzip2": ".bz2", "xz": ".xz", "zstd": ".zst", "lz4": ".lz4"}
_TABLE = "a table of CSV or the like; convert it to JSON lines, or to Parquet"
_ONE_LINE_EACH = "write one value in each line, for example with `jq -c '.[]' FILE` for an array or `jq -c . FILE`"


def kind_of(head: bytes) -> tuple[str, str] | None:
    """Return the kind of content and the suffix of its files, "" if no format reads them; None for text or unknown."""
    for magic, kind, suffix in _MAGICS:
        if head.startswith(magic):
            return kind, suffix
    if _BZIP2.match(head):
        return "bzip2 data", ".bz2"
    if _SKIPPABLE.match(head):
        return "Zstandard data", ".zst"
    return ("a tar archive", ".tar") if head[_TAR_AT:].startswith(_TAR) else None


def require_kind(head: bytes, url: str, name: str) -> None:
    """Raise SourceError if content is of another kind than the format that the name of its file shows.

    Args:
        head: The first `HEAD` bytes, decompressed, or all bytes.
        name: Name of the format. Formats other than JSONL, text, tar and WARC are not checked.
    """
    expected = _NAMES.get(name)
    if expected is None or (name == "text" and _is_text(head)):
        return
    kind, suffix = kind_of(head) or ("", "")
    if kind in ("", expected):
        if name == "jsonl" and (fault := _json_fault(head)):
            raise SourceError(f"{url}: expected {expected}, as its name says, found {fault}")
        return
    if suffix:
        remedy = f"give it a name that ends with {suffix}"
    elif kind.startswith("text in"):
        remedy = f"convert it to UTF-8, for example with `iconv -f {kind.rpartition(' ')[2]} -t UTF-8`"
    else:
        remedy = "extract or convert it, or leave it out"
    raise SourceError(f"{url}: expected {expected}, as its name says, found {kind}; {remedy}")


def _json_fault(head: bytes) -> str | None:
    """Return the kind of a text that cannot be JSON lines, and the remedy; None for text that can be JSON lines."""
    if _PAGE.match(head):
        return "a page of HTML or XML, as a server may send in place of a file; download it again, or leave it out"
    if _PRETTY.match(head):
        return f"JSON values over several lines; {_ONE_LINE_EACH}"
    first, *others = head.split(b"\n")[:4]
    for mark in (b",", b"\t", b";"):
        count = first.count(mark)
        if (
            count
            and _COLUMNS.fullmatch(first.strip())
            and others[:-1]
            and {row.count(mark) for row in others[:-1]} == {count}
        ):
            return _TABLE
    return None


def _is_text(head: bytes) -> bool:
    try:
        head[: len(head) - 3 if len(head) >= HEAD else None].decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


def line_fault(line: bytes) -> str | None:
    """Return the probable kind of a first line that is not JSON, and the remedy; None if it is unknown."""
    if fault := _json_fault(line + b"\n-"):
        return fault
    if found := kind_of(line):
        kind, suffix = found
        return f"{kind}; " + (f"give it a name that ends with {suffix}" if suffix else "convert it to JSON lines")
    if line.lstrip()[:1] in (b"{", b"["):
        return f"a part of a value, perhaps of JSON over several lines; correct it, or {_ONE_LINE_EACH}"
    return _TABLE if _COLUMNS.fullmatch(line.strip()) else None


def require_lines(head: bytes, url: str) -> None:
    """Raise SourceError if the only line of a file `x.json` is an array of records, not a record.

    In JSON lines, an array is one record. But an array that is a whole `.json` file is probably a list of records.
    """
    if _ONE_ARRAY.match(head) and _JSON_NAME.search(url.rpartition("/")[2]):
        raise SourceError(
            f"{url}: expected JSON lines, found one JSON array; {_ONE_LINE_EACH}. If the array is one record, give "
            "the file a name that ends with .jsonl"
        )


def require_head(url: str, options: Options | None, listed: FileInfo | None, name: str) -> None:
    """After a failed read: raise SourceError if the first bytes show content of another kind; see `require_kind`."""
    with RangeReader(url, options, listed=listed) as reader:
        require_kind(reader.read(0, min(HEAD, reader.size)), reader.url, name)


def require_compressed(head: bytes, url: str, name: str) -> None:
    """Raise SourceError if content is empty, or has another compression than the name of its file shows."""
    if not head:
        raise SourceError(f"{url}: expected {name} data, as its name says, found an empty file; write it again")
    kind, suffix = kind_of(head) or ("", "")
    if suffix == _OF_COMPRESSION[name]:
        return
    if kind:
        remedy = f"give it a name that ends with {suffix}" if suffix else "extract or convert it"
    elif len(head) < _LEAST or not _is_text(head):
        return  # truncated or damaged data, which the decompression reports
    else:
        page = _json_fault(head)
        kind = "text that is not compressed" if page is None else page.partition(";")[0]
        remedy = "give it a name without the suffix of a compression" if page is None else page.partition("; ")[2]
    raise SourceError(f"{url}: expected {name} data, as its name says, found {kind}; {remedy}")


def require_columns(head: bytes, url: str, magic: bytes) -> None:
    """Raise SourceError if a file without `magic` at its end has no `magic` at its start, and is of a known kind."""
    kind, suffix = kind_of(head) or ("", "")
    if head and not kind and not head.startswith(magic) and b"\0" not in head:
        page = _json_fault(head)
        kind = "text" if page is None else page.partition(";")[0]
        suffix = ".jsonl" if page is None and head.lstrip()[:1] == b"{" else ""
    if kind and not head.startswith(magic):
        remedy = f"give it a name that ends with {suffix}" if suffix else "convert it, or leave it out"
        raise SourceError(f"{url}: expected a file of columns, as its name says, found {kind}; {remedy}")
