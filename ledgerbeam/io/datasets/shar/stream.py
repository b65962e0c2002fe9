"""Shar from its beginning to its end, without indexes, also compressed as lhotse writes its cuts by default."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from ledgerbeam.errors import SourceError
from ledgerbeam.io.datasets.shar.reader import put_field
from ledgerbeam.io.datasets.shar.rows import CUTS
from ledgerbeam.io.formats.format import OffsetFormat
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.formats.streamed import stream_each
from ledgerbeam.io.lines.jsonl_format import JsonlFormat
from ledgerbeam.io.lines.jsonl_reader import stream_records
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.pipes import is_pipe
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.io.tar.format import TarFormat

_SUFFIX = re.compile(r"\.(jsonl|tar)\b")


def stream_shar(
    shards: Mapping[str, Sequence[str]],
    options: Options | None = None,
    listed: Mapping[str, FileInfo] | None = None,
) -> Iterator[dict[str, Any]]:
    """Read the cuts of a Shar dataset with their fields; memory is a block and a record of each field.

    Args:
        shards: The shards of each field, `cuts` among them, as `find_shar` returns them. A pipe is one too: a command
            that prints JSONL for cuts, and what the name of a file in it says for a field.
        options: Storage options.
        listed: The listed properties of the shards by URL; see `RangeReader`. Default: they are read as they are.

    Yields:
        The cuts in order, as `SharReader` returns them.

    Raises:
        ChangedSourceError: A shard is not what was listed.
        RecordError: The record of a field is of another cut; also the errors of `stream_records` and `scan_stream`.
        SourceError: A shard of a field has another number of records than its cuts.
    """
    known = listed or {}
    fields = [field for field in shards if field != CUTS]
    for number, url in enumerate(shards[CUTS]):
        urls = {field: shards[field][number] for field in fields}
        with ExitStack() as stack:
            beside = {field: stack.enter_context(closing(_records(urls[field], options, known))) for field in fields}
            count = 0
            for count, cut in enumerate(stream_records(url, options, known.get(url)), 1):
                for field, records in beside.items():
                    record = next(records, None)
                    if record is None:
                        raise _other_count(urls[field], url, f"only {count - 1}")
                    put_field(cut, field, record, urls[field], count - 1)
                yield cut
            for field, records in beside.items():
                if next(records, None) is not None:
                    raise _other_count(urls[field], url, f"more than {count}")


def _records(url: str, options: Options | None, listed: Mapping[str, FileInfo]) -> Generator[Any, None, None]:
    kind = _kind_of_pipe(url) if is_pipe(url) else recognize(url, [TarFormat("pairs")]).in_one_pass()
    if kind.name == "jsonl":
        yield from stream_records(url, options, listed.get(url))
    else:
        yield from stream_each(url, options, kind, listed.get(url))


def _kind_of_pipe(url: str) -> OffsetFormat:
    """Return the format of a pipe, by the names of files in its command."""
    suffixes = set(_SUFFIX.findall(url))
    if suffixes == {"tar"}:
        return TarFormat("pairs")
    if suffixes == {"jsonl"}:
        return JsonlFormat()
    raise SourceError(
        f"{url}: expected a command that names files in either tar or jsonl, found {sorted(suffixes) or 'none'}; name "
        "the file in the command, such as 'pipe:zcat audio.000000.tar.gz'"
    )


def _other_count(url: str, cuts: str, found: str) -> SourceError:
    return SourceError(f"{url}: expected a record for each cut of {cuts}, found {found}; write the shard again")
