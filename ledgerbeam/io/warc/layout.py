"""How archives of web crawls are compressed: each record separately, as crawlers do, or all in one stream."""

from __future__ import annotations

import zlib

from ledgerbeam.io.formats.registry import FileType
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo

_REQUEST = 256 * 1024


def why_not_by_record(kind: FileType, listed: FileInfo, options: Options | None, first: int) -> str | None:
    """Return the warning for a gzip archive whose first member does not end with its first record; else None.

    Args:
        kind: Format and compression of the file.
        listed: The listed properties of the file.
        options: Storage options.
        first: Decompressed bytes of the first record.

    Raises:
        ChangedSourceError: The file changed since it was listed; also StorageError.
    """
    if kind.format.name != "warc" or kind.compression is None or kind.compression.name != "gzip":
        return None
    member, made = zlib.decompressobj(wbits=31), 0
    with RangeReader(listed.url, options, listed=listed) as reader:
        for block in reader.blocks(_REQUEST):
            data = block
            while data and not member.eof and made <= first:
                made += len(member.decompress(data, _REQUEST))
                data = member.unconsumed_tail
            if member.eof or made > first:
                break
    if made <= first:
        return None
    return (
        "one worker reads it from its beginning, since its records are not compressed separately; to use all workers, "
        f"compress it by record: fastwarc recompress {listed.url} NEW.warc.gz, then ledgerbeam index NEW.warc.gz"
    )
