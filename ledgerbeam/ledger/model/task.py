"""The elements of a pipeline: sources, tasks, and markers in the place of filtered and failed tasks.

Many small sources are packed into one unit of restart and one output shard. Packs are cut by content, like
content-defined chunking of a byte stream. Whether a member ends its pack depends on the member alone: on the hash of
its URL and on its share of the target size. So adding, removing or changing a member moves only the boundaries of its
own pack, and of its nearest neighbours if a size limit had cut them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any
from zlib import compress, decompress

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.model.accounts import NOTHING, RecordCounts, Statistic, read_shares
from ledgerbeam.ledger.model.identity import Lineage, node_id, pack_id, source_id, url_key
from ledgerbeam.ledger.model.values import decode, encode, integer, shown, text


@dataclass(frozen=True, slots=True)
class Source:
    """One unit of restart: an input object, or a pack of small ones.

    Attributes:
        url: Canonical URL; for a pack the URL of its first member.
        size: Bytes; for a pack the sum over its members.
        version: ETag, generation, or modification time in nanoseconds as decimal text. For an output of another job
            `content_version` of its recorded checksum; for a pack empty.
        members: The packed sources, in order; empty for a plain source. Packs do not nest.
        changed_ns: The last change of the file's inode (ctime), as the file system reported it at planning, in
            nanoseconds since 1970; 0 if not requested. Not part of the identity.
        stored: The store's name for the content, such as an ETag, if the source is identified by its content. Found at
            planning, together with the content; empty before. Not part of the identity.
    """

    url: str
    size: int
    version: str
    members: tuple[Source, ...] = ()
    changed_ns: int = field(default=0, compare=False)
    stored: str = field(default="", compare=False)
    _id: bytes | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            text(self.url)
            integer(self.size)
            text(self.version)
        except ValueError as error:
            raise UsageError(f"source {shown(self.url)} cannot be recorded: {error}") from None
        if self.members and any(member.members for member in self.members):
            raise UsageError(f"source {shown(self.url)}: a pack cannot contain a pack; pass plain sources")

    @classmethod
    def pack(cls, members: Sequence[Source]) -> Source:
        """Pack small sources into one.

        Args:
            members: At least one plain source, in the order in which their records are read.

        Raises:
            UsageError: There is no member, or a member is itself a pack.
        """
        if not members:
            raise UsageError("a pack needs at least one member")
        return cls(members[0].url, sum(member.size for member in members), "", tuple(members))

    @property
    def id(self) -> bytes:
        """The 16 bytes of `identity.source_id`, or of `identity.pack_id` for a pack. Computed once."""
        known = self._id
        if known is None:
            known = (
                pack_id(member.id for member in self.members)
                if self.members
                else source_id(self.url, self.size, self.version)
            )
            object.__setattr__(self, "_id", known)
        return known

    @property
    def urls(self) -> tuple[str, ...]:
        """The URL of every input object, in order: one URL for a plain source."""
        return tuple(member.url for member in self.members) or (self.url,)

    def __reduce__(self) -> tuple[Callable[..., Source], tuple[Any, ...]]:
        if not self.members:
            return Source, (self.url, self.size, self.version, (), self.changed_ns, self.stored)
        # A pack of tiny files travels between workers and engines; uncompressed, its names are larger than its files.
        rows = [[member.url, member.size, member.version, member.changed_ns, member.stored] for member in self.members]
        return _pack_of, (self.url, self.size, self.version, compress(encode(rows), 1), self.changed_ns)


def _pack_of(url: str, size: int, version: str, rows: bytes, changed_ns: int) -> Source:
    members = tuple(Source(name, length, of, (), *found) for name, length, of, *found in decode(decompress(rows)))
    return Source(url, size, version, members, changed_ns)


@dataclass(frozen=True, slots=True)
class Task:
    """The unit of work: a span of a source, later the records in it.

    Attributes:
        source: The source of the task.
        start: First record of the span, or first byte where a source is cut by bytes.
        stop: One past the last, >= start.
        lineage: Path of fan-outs from the source to this task; see `identity.Lineage`.
        records: The records of the span, as earlier steps returned them; None until it is read.
        started: Time at which reading began, by `time.monotonic`; 0 until then.
        raw: Function that reads the bytes from which the records were decoded, a `sources.RawRecord` for each; None
            until the records are read. The children of a fan-out have None.
        statistics: Statistics of earlier steps, by name. After a fan-out, only the first child has them: they are
            recorded once.
        read: Number of records that were read for the task; None if it is not known, or if the function counts them
            itself. After a fan-out the children have shares of it, so that each record counts once.
    """

    source: Source
    start: int
    stop: int
    lineage: Lineage = ()
    records: Any = None
    started: float = 0.0
    raw: Callable[[], Sequence[Any]] | None = field(default=None, compare=False, repr=False)
    statistics: Mapping[str, Statistic] = field(default_factory=dict)
    read: int | None = field(default=None, compare=False)

    @property
    def node(self) -> bytes:
        """The 16 bytes of `identity.node_id`."""
        return node_id(self.source.id, self.lineage)

    @property
    def name(self) -> str:
        """A name for people: ``url[start:stop]``, then ``#ordinal/count`` for each fan-out below the first."""
        deeper = "".join(f"#{ordinal}/{count}" for ordinal, count in self.lineage[1:])
        return f"{self.source.url}[{self.start}:{self.stop}]{deeper}"

    def split(self, spans: Sequence[tuple[int, int]]) -> list[Task]:
        """Fan this task out into one child for each span.

        Args:
            spans: Half-open ``(start, stop)`` pairs, in order. Their number is part of the children's identity: the
                same task must always be split into the same number of spans.
        """
        return self._children([(start, stop, self.records) for start, stop in spans])

    def fan_out(self, batches: Iterable[Any]) -> list[Task]:
        """Fan this task out into one child for each batch of records; the children keep the span.

        Args:
            batches: The records of each child, in order.

        Returns:
            Children in order. Empty for no batches: then emit `NoneTask` of this task, or its source stays open.
        """
        return self._children([(self.start, self.stop, records) for records in batches])

    def _children(self, parts: Sequence[tuple[int, int, Any]]) -> list[Task]:
        shares: list[int | None] = [None] * len(parts)
        if self.read is not None and parts:
            shares = [*read_shares(self.read, [length_hint(records) for *_, records in parts])]
        return [
            Task(
                self.source,
                start,
                stop,
                (*self.lineage, (ordinal, len(parts))),
                records,
                self.started,
                statistics={} if ordinal else self.statistics,
                read=shares[ordinal],
            )
            for ordinal, (start, stop, records) in enumerate(parts)
        ]

    def replace(self, **changes: Any) -> Task:
        """Copy this task with some attributes changed; the lineage is normally kept."""
        return dataclasses.replace(self, **changes)

    def __reduce__(self) -> tuple[type[Task], tuple[Any, ...]]:
        plain = (self.source, self.start, self.stop, self.lineage, self.records, self.started, self.raw)
        return Task, (*plain, self.statistics, self.read) if self.statistics or self.read is not None else plain


@dataclass(frozen=True, slots=True)
class NoneTask:
    """Marker of a task that was filtered out: the task is finished and has no output.

    Attributes:
        task: The task that was filtered out.
        message: The reason, as one short category. The ledger counts the task's records as dropped for this reason.
        counts: Counts of its records. Default: all dropped for the reason `message`. If the message is empty and
            `Task.read` is unknown, they stay None: nothing is counted.
        statistics: Statistics of its function, by name.

    Raises:
        UnsupportedShapeError: The message is longer than the name of a reason may be.
    """

    task: Task
    message: str = ""
    counts: RecordCounts | None = None
    statistics: Mapping[str, Statistic] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", without_secrets(self.message))
        read, counts = self.task.read, self.counts
        if counts is None and (self.message or read is not None):
            records = self.task.records
            number = self.task.stop - self.task.start if records is None else length_hint(records)
            number = number if read is None else read
            counts = RecordCounts(number, 0, {self.message or NOTHING: number} if number else {})
        elif counts is not None and read is not None:
            counts = counts.of_read(read)
        object.__setattr__(self, "counts", counts)


@dataclass(frozen=True, slots=True)
class FailedTask:
    """Marker of a failed task: the failure is recorded, and the task runs again in the next run.

    Attributes:
        task: The task that failed.
        reason: One line that groups failures, for instance the name of the exception.
        error: The full message; secrets are removed.
        broke: Whether its function raised something that would have ended the worker, such as `SystemExit`. This counts
            as a worker's death, and `MAX_ATTEMPTS` deaths quarantine the task.
    """

    task: Task
    reason: str
    error: str = ""
    broke: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", without_secrets(self.reason))
        object.__setattr__(self, "error", without_secrets(self.error))


MAX_MEMBERS = 50_000  # largest number of members of a pack. It bounds the memory of a task over empty or tiny sources.

_HASH_RANGE = 2**64


def pack_sources(members: Iterable[Source], target_bytes: int, *, by_folder: bool = False) -> Iterator[Source]:
    """Pack a stream of sources into composite sources, in the given order.

    Args:
        members: Plain sources in a stable order, such as the order of a listing.
        target_bytes: Average size of packs, in bytes; at least 1. No pack exceeds twice this size unless a single
            member does. Only the last pack, and a pack before a large member or (`by_folder`) another folder, can be
            below a quarter of it.
        by_folder: Whether a pack ends with the last of its consecutive members in one folder.

    Yields:
        Composite sources: ``members`` in order, made by `Source.pack`.

    Raises:
        UsageError: `target_bytes` is not positive.
    """
    if target_bytes < 1:
        raise UsageError(f"a pack needs a target size of at least 1 byte, found {target_bytes}")
    pack: list[Source] = []
    size = 0
    for member in members:
        is_apart = by_folder and bool(pack) and _folder(pack[-1]) != _folder(member)
        if pack and (is_apart or size + member.size > 2 * target_bytes or len(pack) == MAX_MEMBERS):
            yield Source.pack(pack)
            pack, size = [], 0
        pack.append(member)
        size += member.size
        # The probability that a member ends its pack is its share of the target size; the URL is the seed.
        draw = int.from_bytes(url_key(member.url)[:8], "big")
        if size >= target_bytes // 4 and draw * target_bytes < member.size * _HASH_RANGE:
            yield Source.pack(pack)
            pack, size = [], 0
    if pack:
        yield Source.pack(pack)


def _folder(member: Source) -> str:
    return member.url.rpartition("/")[0]
