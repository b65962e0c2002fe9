"""Keys of records in an exchange, and the division of records into parts by key.

A key comes from fields, from a user's function, from the content, or from the position. Its scheme (`Scheme`) names
the bytes by which the records are ordered: such a key, or a hash of it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

import orjson

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError, LedgerbeamError, RecordError
from ledgerbeam.io import Format
from ledgerbeam.io.conversion import find_conversion
from ledgerbeam.io.exchange.order import By, KeyOrder, Scheme, key_fields, key_function
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.json_values import dumps, json_form, loads
from ledgerbeam.io.lines.fields import find_field
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.tar.sample import KEY, Sample
from ledgerbeam.results import Route
from ledgerbeam.sources.forms import PlacedPart, PlacedRecords
from ledgerbeam.transforms.mapping.function import MapWithin
from ledgerbeam.user_code.functions import reference_of
from ledgerbeam.user_code.guards import describe_error, is_interrupt
from ledgerbeam.user_code.loading import Reference
from ledgerbeam.user_code.objects import ReadyObject, UserObject

if TYPE_CHECKING:
    import pyarrow as pa

WITHOUT_KEY = "records without a key"  # name of the statistic that counts records whose key is null
HASH_BYTES = 8  # size of the hash before a key, which decides the bucket
DIGEST_BYTES = 16  # size of the hash that replaces a key, or the content of a record
_MISSING = object()


@dataclass(frozen=True)
class RecordKeys:
    """Rules that give each record a key, as bytes that sort in the order of the keys. Picklable."""

    scheme: Scheme  # the order of the records
    fields: tuple[str, ...] = ()  # names of the key fields, ``a.b`` for a nested field. A missing field is null
    # ``module:function`` or the function itself: takes a record and returns the key. Instead of fields.
    function: Reference | None = None
    order: KeyOrder = field(default_factory=KeyOrder)  # order of the keys
    seed: int = 0  # seed of a shuffle
    base: str | None = None  # prefix of the URLs of files that a shuffle ignores; None for no prefix

    @classmethod
    def of_user(cls, by: By, scheme: Scheme, order: KeyOrder | None = None) -> Self:
        """Return the rules for keys of the user, by fields or by a function. Raises UsageError for an invalid field."""
        fields = key_fields(by)
        function = None if fields else reference_of(key_function(by))
        return cls(scheme, fields, function, order or KeyOrder())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_call"}

    def set_up(self) -> None:
        """Import the function, once in each process. Raises FunctionError if it cannot be imported."""
        _ = self._call

    def of(self, records: PlacedRecords) -> ByteRows:
        """Return the key of each record.

        With the schemes ``digest`` and ``match``, the key null is empty bytes. Raises FunctionError if the user's
        function raises, RecordError if a record cannot be decoded or has no key. The message names the record.
        """
        return ByteRows.concatenated([ByteRows.of(self._of_part(part)) for part in records.parts])

    @cached_property
    def null(self) -> bytes | None:
        """The key of a record whose key fields are all null; None for schemes by content or position."""
        if self.scheme in ("digest", "match"):
            return b""
        if self.scheme not in ("key", "hash"):
            return None
        key = self.order.encode((None,) * len(self.fields) if len(self.fields) > 1 else None)
        return key if self.scheme == "key" else self._hashed(key)

    def value(self, record: Any) -> Any:
        """Return the value of a record's key field, a tuple of several values, or the result of the user's function."""
        return self._call(record)

    def _of_part(self, part: PlacedPart) -> Iterable[bytes]:
        if self.scheme == "shuffle":
            return self._shuffled(part)
        if self.scheme == "place":
            url = self.order.encode(part.url)
            return [url + number for number in _big_endian(part)]
        if self.fields:
            # Encoding all together is faster. It is not possible for a function, which may reuse its result.
            with suppress(RecordError):  # raised again below, with the record
                return self._of_fields(part)
        found: list[bytes] = []
        try:
            found.extend(map(self.key, part.records()))
        except (RecordError, FunctionError) as error:
            if str(error).startswith(part.url):
                raise
            raise type(error)(f"{part.url}: record {int(part.numbers[len(found)])}: {error}") from error
        return found

    def _of_fields(self, part: PlacedPart) -> Iterable[bytes]:
        found = [] if part.lines is None else [find_field(part.lines, name) for name in self.fields]
        fields = [field for field in found if field is not None]
        values: Iterable[Any]
        if len(fields) < len(self.fields):
            values = map(self._call, part.records())
        elif len(fields) > 1:
            values = zip(*[field.values() for field in fields], strict=True)
        elif fields[0].is_plain:
            texts = self.order.encode_texts(fields[0].texts())
            return texts if self.scheme == "key" else list(map(self._hashed, texts))
        else:
            values = fields[0].values()
        if self.scheme in ("digest", "match"):
            return list(map(self._key_of, values))
        keys = self.order.encode_all(list(values))
        return keys if self.scheme == "key" else list(map(self._hashed, keys))

    def key(self, record: Any) -> bytes:
        """Return the key of one record; see `of`, also for its errors."""
        if self.scheme == "content":
            return blake2b(_content(record), digest_size=DIGEST_BYTES, person=b"lb.content").digest()
        return self._key_of(self._call(record))

    def _key_of(self, value: Any) -> bytes:
        if self.scheme in ("digest", "match"):
            nulls = [part is None for part in (value if type(value) is tuple else (value,))]
            matches_nothing = all(nulls) if self.scheme == "digest" else any(nulls)
            if matches_nothing:
                return b""
        key = self.order.encode(value)
        return key if self.scheme == "key" else self._hashed(key)

    def _hashed(self, key: bytes) -> bytes:
        """Return the hash of an encoded key, followed by the key unless the scheme is ``digest``."""
        if self.scheme == "digest":
            return blake2b(key, digest_size=DIGEST_BYTES, person=b"lb.digest").digest()
        return blake2b(key, digest_size=HASH_BYTES, person=b"lb.key").digest() + key

    def place_key(self, url: str, number: int) -> bytes:
        """Return the key of a record with the scheme ``place``."""
        return self.order.encode(url) + number.to_bytes(8, "big")

    def _shuffled(self, part: PlacedPart) -> Iterator[bytes]:
        name = part.url.removeprefix(self.base or "")
        seeded = blake2b(digest_size=HASH_BYTES, key=b"%d" % self.seed, person=b"lb.shuffle")
        seeded.update(name.encode("utf-8", "surrogateescape") + b"\0")
        for number in _big_endian(part):
            hasher = seeded.copy()
            hasher.update(number)
            yield hasher.digest()

    @cached_property
    def _call(self) -> Callable[[Any], Any]:
        if self.function is not None:
            return _Called(UserObject(self.function).ready().call, str(self.function))
        if len(self.fields) == 1:
            return _Field(self.fields[0])
        fields = [_Field(name) for name in self.fields]
        return lambda record: tuple([find(record) for find in fields])


class SplitRecords(MapWithin):
    """A function of one task, for `ProcessTask`, that writes each record to the part of its key.

    `keys` have the scheme ``hash``. `parts` are pairs of a name and a share; the part gets this share of the sum of all
    shares. `conversion` is a name in `io.conversion`. With `mark`, it writes a column with the name of the part.
    """

    def __init__(
        self,
        keys: RecordKeys,
        parts: Sequence[tuple[str, int]],
        conversion: str,
        output_format: str | Format,
        *,
        mark: bool = False,
    ) -> None:
        super().__init__("split", output_format, per_record=mark)
        self._keys = keys
        self._names = [name for name, _ in parts]
        self._shares = [share for _, share in parts]
        self._conversion = conversion

    def _load(self) -> tuple[ReadyObject, ...]:
        self._keys.set_up()
        key, null, names, shares, mark = self._keys.key, self._keys.null, self._names, self._shares, self.per_record
        convert = find_conversion(self._conversion)

        def divided(record: Any) -> Route | dict[str, str]:
            found = key(record)
            if found == null:
                stats.count(WITHOUT_KEY)
            part = names[part_of(found, shares)]
            return {"part": part} if mark else Route(part, convert(record))

        return (ReadyObject(divided),)


def part_column() -> pa.Schema:
    """Return the schema of the column of `SplitRecords`."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs of columns import it

    return pa.schema([("part", pa.string())])


def part_of(key: bytes, shares: Sequence[int]) -> int:
    """Return the number of the part to which a key of the scheme ``hash`` belongs."""
    ends = list(accumulate(shares))
    return bisect_right(ends, int.from_bytes(key[:HASH_BYTES], "big") * ends[-1] >> 8 * HASH_BYTES)


def field_of(name: str) -> Callable[[Any], Any]:
    """Return a function that returns a field of a record, a.b for a nested value; None for a missing field."""
    return _Field(name)


def with_field(record: Any, name: str, value: str) -> Any:
    """Return a record with another text in a field that it has, as `field_of` finds it.

    RecordError: the record is no JSON object, sample or row with this field.
    """
    parts = name.split(".")
    if isinstance(record, Sample):
        for cut in range(len(parts), 0, -1):
            if (member := ".".join(parts[:cut])) in record:
                rest = ".".join(parts[cut:])
                data = dumps(with_field(loads(record[member]), rest, value)) if rest else value.encode()
                return Sample(record.key, {**record, member: data})
    elif isinstance(record, dict):
        return {**record, name: value} if name in record else _with_inside(record, parts, value)
    raise RecordError(f"expected the field {name!r}, found none")


def _with_inside(record: Any, parts: Sequence[str], value: str) -> Any:
    if not parts:
        return value
    if not isinstance(record, dict) or parts[0] not in record:
        raise RecordError(f"expected the field {'.'.join(parts)!r}, found none")
    return {**record, parts[0]: _with_inside(record[parts[0]], parts[1:], value)}


class _Field:
    def __init__(self, name: str) -> None:
        self._name = name
        self._parts = name.split(".")

    def __call__(self, record: Any) -> Any:
        if type(record) is dict:
            value = record.get(self._name, _MISSING)
            if value is not _MISSING:
                return value
            return self._inside(record) if len(self._parts) > 1 else None
        if isinstance(record, Sample):
            return self._of_sample(record)
        value = json_value(record)
        return self(dict(value)) if isinstance(value, dict) else None

    def _inside(self, value: Any) -> Any:
        for part in self._parts:
            if not isinstance(value, dict):
                return None
            value = value.get(part)
        return value

    def _of_sample(self, sample: Sample) -> Any:
        """Return the value of the field: the sample's key, the bytes of a member, or a field in a member with JSON."""
        if self._name == KEY:
            return sample.key
        for cut in range(len(self._parts), 0, -1):
            data = sample.get(".".join(self._parts[:cut]))
            if data is not None:
                if cut == len(self._parts):
                    return data
                try:
                    return _Field(".".join(self._parts[cut:]))(loads(data))
                except orjson.JSONDecodeError as error:
                    raise RecordError(f"expected JSON in the member {self._parts[cut - 1]!r}, found {error}") from error
        return None


class _Called:
    """A user's function that returns the key of a record. Its errors become FunctionError."""

    def __init__(self, call: Callable[[Any], Any], name: str) -> None:
        self._call, self._name = call, name

    def __call__(self, record: Any) -> Any:
        try:
            key = self._call(record)
        except LedgerbeamError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise FunctionError(f"{self._name} raised {describe_error(error)}") from error
        return tuple(key) if type(key) is list else key


def _content(record: Any) -> bytes:
    """Return bytes that are equal for equal records: the members of a sample, or JSON with sorted keys."""
    if isinstance(record, Sample):
        parts = [(name.encode("utf-8", "surrogateescape"), record[name]) for name in sorted(record)]
        return b"\0" + b"".join(b"%d:%s%d:%s" % (len(name), name, len(data), data) for name, data in parts)
    value = json_value(record)
    try:
        return dumps(value, orjson.OPT_SORT_KEYS)
    except (RecordError, orjson.JSONEncodeError):  # NaN, infinities, and integers that orjson cannot encode
        return json.dumps(value, sort_keys=True, default=json_form, separators=(",", ":"), ensure_ascii=False).encode()


def _big_endian(part: PlacedPart) -> list[bytes]:
    data = part.numbers.astype(">u8").tobytes()
    return [data[place : place + 8] for place in range(0, len(data), 8)]
