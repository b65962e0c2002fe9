"""The codecs of LIT: members of samples as Python objects, by extension.

The last part of a modality's name selects the codec: `seg16` for `semantic.seg16`. Pickles are decoded only if `PKL` is
requested by name, because decoding a pickle runs any code in it. No codec allocates memory for a size that only a
header claims.
"""

from __future__ import annotations

import csv
import io
import json
import math
import operator
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ledgerbeam._base.extensions import import_extra
from ledgerbeam.errors import UsageError
from ledgerbeam.io.datasets.audio import as_audio, decode_audio, encode_audio, encode_npy, npy_header

MOST_VALUES = 2**28  # default limit of decoded values, since a few bytes can claim any number of values
_HEAD = 17

MOST_LABELS = 4 * 1032  # most labels for a byte of a PNG: deflate makes up to 1032 bytes, each of up to 4 labels
_MODES = {8: ("L",), 16: ("I;16", "I"), 24: ("RGB",), 32: ("RGBA",)}
_SET_CODES = (b"\x8f", b"\x91")  # in every pickle with a set or a frozenset, and in some others
_AS_NUMPY = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MOST_OF_A_BYTE = 1032  # largest number of bytes that deflate decompresses from one

_MAT_TEXT = b"MATLAB 5.0 MAT-file".ljust(116)  # start of a MAT file, where SciPy would write the time


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found a {type(value).__name__}")
    return value.encode()


def _encode_csv(value: Any) -> bytes:
    """Encode rows of texts, quoted where necessary. ValueError for other values, which would be decoded as texts."""
    rows = list(value)
    for number, row in enumerate(rows):
        if not isinstance(row, list | tuple) or not row or not all(isinstance(cell, str) for cell in row):
            raise ValueError(f"expected rows of texts, found {row!r:.80} as row {number}; convert other values to text")
    target = io.StringIO(newline="")
    csv.writer(target, lineterminator="\n").writerows(rows)
    return target.getvalue().encode()


def _decode_csv(data: bytes) -> list[list[str]]:
    """Decode the rows of a CSV file, without blank lines. The first row is a row like the others, not a header."""
    return [row for row in csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True) if row]


def _encode_pickle(value: Any) -> bytes:
    """Pickle a value. The bytes do not depend on the order of sets, which changes with the hash seed of the process.

    Raises RecursionError if a set has an element that contains the set.
    """
    data = pickle.dumps(value)
    if not any(code in data for code in _SET_CODES):
        return data
    target = io.BytesIO()
    _SortedSets(target).dump(value)
    return target.getvalue()


class _SortedSets(pickle._Pickler):  # noqa: SLF001 - a subclass of the compiled pickler cannot write sets
    """A pickler that writes the elements of each set sorted by the pickles of the elements."""

    def _save_set(self, value: Any) -> None:
        self.save_reduce(type(value), (sorted(value, key=_encode_pickle),), obj=value)  # type: ignore[attr-defined]

    dispatch = pickle._Pickler.dispatch | {set: _save_set, frozenset: _save_set}  # type: ignore[assignment]  # noqa: SLF001


def _encode_mp4(value: Any) -> bytes:
    """Return the bytes of a video unchanged. ValueError if they do not start like MP4."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"expected the bytes of an MP4 file, found a {type(value).__name__}")
    return _decode_mp4(bytes(value))


def _decode_mp4(data: bytes) -> bytes:
    """Return the bytes of a video unchanged; the user decodes them. ValueError if they do not start like MP4."""
    if data[4:8] != b"ftyp":
        raise ValueError(f"expected the header of an MP4 file, found {data[:12]!r}")
    return data


def _decode_npy(data: bytes) -> NDArray[Any]:
    """Decode an array, after a check that the data has the size of its header. Arrays of objects are refused."""
    shape, fortran, dtype, end = npy_header(data, newest=(2, 0))
    flat = np.frombuffer(data, dtype, offset=end).copy() if math.prod(shape) else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _encode_npz(value: Any) -> bytes:
    """Encode arrays by name, uncompressed, like `numpy.savez`."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in _array_mapping(value).items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), encode_npy(array))
    return target.getvalue()


def _decode_npz(data: bytes) -> dict[str, NDArray[Any]]:
    """Decode an archive to arrays by name. ValueError or an error of `zipfile`: damaged, or claims too many bytes."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        for member in members:
            if not member.filename.endswith(".npy") or member.compress_type not in _AS_NUMPY:
                raise ValueError(f"expected arrays as NumPy writes them, found {member.filename!r}")
        if (size := sum(member.file_size for member in members)) > _MOST_OF_A_BYTE * len(data):
            raise ValueError(f"expected at most {_MOST_OF_A_BYTE * len(data)} bytes, found arrays of {size}")
        return {member.filename.removesuffix(".npy"): _decode_npy(archive.read(member)) for member in members}


def _encode_safetensors(value: Any) -> bytes:
    arrays = {name: np.ascontiguousarray(array) for name, array in _array_mapping(value).items()}
    return _extra("safetensors.numpy").save(arrays)


def _array_mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"expected arrays by name, found a {type(value).__name__}")
    return value


Decoder: TypeAlias = Callable[[bytes], Any]  # decodes the bytes of a member to an object
Encoder: TypeAlias = Callable[[Any], bytes]  # encodes an object as the bytes of a member


@dataclass(frozen=True, slots=True)
class Codec:
    """The codec of one kind of objects.

    Attributes:
        encode: Function of an object and the last part of the modality; returns bytes.
        decode: Function of bytes; returns an object.
        extensions: Last parts of its modalities, in lower case.
    """

    encode: Callable[[Any, str], bytes]
    decode: Decoder
    extensions: tuple[str, ...] = ()


def encode_rle(array: NDArray[Any]) -> bytes:
    """Encode a non-empty array of integers, of any shape, in LIT's run-length code; ValueError for any other array.

    Byte 0: high nibble `2 * log2(bytes of the values) + signed`, low nibble `log2(bytes of the runs)`. Bytes 1-8 and
    9-16: lengths in bytes of shape and table, big-endian. Then the shape, u64 each; the table: the distinct values,
    ascending; two rows of equal length in the dtype of the runs: numbers of table entries, and their repetitions in C
    order. All but the two lengths is little-endian. This is not the RLE of COCO. Source: `litdata/encoders.py` of the
    published package.
    """
    array = np.asarray(array)
    if array.dtype.kind not in "iu" or not array.size:
        raise ValueError(f"expected an array of integers that is not empty, found {array.dtype} of shape {array.shape}")
    dtype = array.dtype.newbyteorder("<")
    flat = array.astype(dtype).ravel()
    starts = np.flatnonzero(np.concatenate(([True], flat[1:] != flat[:-1])))
    runs = np.diff(starts, append=len(flat))
    table, numbers = np.unique(flat[starts], return_inverse=True)
    code = np.min_scalar_type(max(len(table), int(runs.max()))).newbyteorder("<")
    signed = int(dtype.kind == "i")
    first = ((_log2(dtype) << 1 | signed) << 4) | _log2(code)
    shape = np.array(array.shape, "<u8").tobytes()
    values = table.tobytes()
    head = bytes([first]) + len(shape).to_bytes(8, "big") + len(values).to_bytes(8, "big")
    return head + shape + values + np.stack((numbers.ravel(), runs)).astype(code).tobytes()


def decode_rle(data: bytes, most: int = MOST_VALUES) -> NDArray[Any]:
    """Decode bytes of `encode_rle` or the published encoder to the array, in its original dtype and shape.

    Raises:
        ValueError: The bytes are not such a code, are cut off or inconsistent, or have more than `most` values.
    """
    if len(data) < _HEAD:
        raise ValueError(f"expected at least {_HEAD} bytes, found {len(data)}")
    values, code = data[0] >> 4, data[0] & 15
    if values > 7 or code > 3:
        raise ValueError(f"expected a first byte that names two dtypes, found {data[0]:#04x}")
    dtype = np.dtype(f"<{'iu'[not values & 1]}{1 << (values >> 1)}")
    runs_dtype = np.dtype(f"<u{1 << code}")
    table_at = _HEAD + int.from_bytes(data[1:9], "big")
    runs_at = table_at + int.from_bytes(data[9:17], "big")
    if runs_at > len(data):
        raise ValueError(f"expected a shape and a table that end by byte {len(data)}, found their end at {runs_at}")
    shape = _array(data[_HEAD:table_at], np.dtype("<u8"), "shape").tolist()
    table = _array(data[table_at:runs_at], dtype, "table")
    rows = _array(data[runs_at:], runs_dtype, "runs")
    if len(rows) % 2 or len(shape) > 32:
        raise ValueError(f"expected pairs of numbers, found {len(rows)}; at most 32 dimensions, found {len(shape)}")
    numbers, counts = rows.reshape(2, -1)
    if (size := math.prod(shape)) > most:
        raise ValueError(f"expected at most {most} values, found the shape {shape}; pass most= to decode more")
    if int(numbers.max(initial=0)) >= max(len(table), 1) or (len(numbers) and not len(table)):
        raise ValueError(f"expected positions in a table of {len(table)} values, found position {numbers.max()}")
    if int(counts.max(initial=0)) > size or int(counts.sum(dtype=np.uint64)) != size:
        raise ValueError(f"expected runs of {size} values in all for the shape {shape}, found more or fewer values")
    return np.repeat(table[numbers], counts.astype(np.int64)).reshape(shape)


def _log2(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize.bit_length() - 1


def _array(data: bytes, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise ValueError(f"expected a {what} of whole {dtype} values, found {len(data)} bytes")
    return np.frombuffer(data, dtype) if data else np.empty(0, dtype)


_EXTRAS = {
    "PIL.Image": ("image", "images need Pillow"),
    "msgpack": ("msgpack", "MessagePack needs msgpack"),
    "safetensors.numpy": ("safetensors", "safetensors files need safetensors"),
    "scipy.io": ("mat", "MAT files need SciPy"),
}


def _extra(module: str) -> Any:
    return import_extra(module, *_EXTRAS[module])


def _encode_image(image: Any, name: str) -> bytes:
    """Encode an image of Pillow in its own format, else in the format of the extension: a JPEG stays a JPEG."""
    if not isinstance(image, _extra("PIL.Image").Image):
        raise ValueError(f"expected a PIL image or encoded bytes, found {type(image).__name__}")
    target, kind = io.BytesIO(), image.format or _image_format(name)
    undated = {"creationDate": None, "modDate": None} if kind == "PDF" else {}  # otherwise Pillow writes the time
    image.save(target, format=kind, **undated)
    return target.getvalue()


def _decode_image(data: bytes) -> Any:
    image = _extra("PIL.Image").open(io.BytesIO(data))
    image.load()
    return image


def _image_format(extension: str) -> str | None:
    """Return Pillow's name for the format of an extension such as `jpg`; None if Pillow has no such format."""
    formats: dict[str, str] = _extra("PIL.Image").registered_extensions()
    return formats.get(f".{extension.lower()}")


@dataclass(frozen=True, slots=True)
class _Segmentation:
    """The codec of label maps, as PNG: labels of 8 or 16 bits in one channel, of 24 or 32 bits as RGB or RGBA.

    R is the most significant byte of a label. Source: `litdata/encoders.py` of the published package.
    """

    bits: int  # bits of a label: 8, 16, 24 or 32

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"u{1 if self.bits == 8 else 2 if self.bits == 16 else 4}")

    def encode(self, array: NDArray[Any]) -> bytes:
        """Encode labels of shape (height, width). ValueError: another dtype or shape, or a label with too many bits."""
        array = np.asarray(array)
        if array.dtype != self.dtype or array.ndim != 2 or not array.size:
            raise ValueError(
                f"expected labels of shape (height, width) in {self.dtype}, found {array.dtype} of shape {array.shape}"
            )
        if self.bits == 24 and int(array.max()) >> 24:
            raise ValueError(f"expected labels below {2**24}, found {array.max()}; use seg32 for these")
        if self.bits > 16:
            channels = array.astype(">u4").view(np.uint8).reshape(*array.shape, 4)
            array = np.ascontiguousarray(channels[:, :, 1:] if self.bits == 24 else channels)
        target = io.BytesIO()
        pixels = array.astype(array.dtype.newbyteorder("<"), copy=False)
        _extra("PIL.Image").fromarray(pixels).save(target, format="PNG")
        return target.getvalue()

    def decode(self, data: bytes) -> NDArray[Any]:
        """Decode labels of shape (height, width), in `dtype`.

        ValueError: the PNG has other channels, so that a conversion would change labels, or claims more labels than
        its bytes can hold. Also the errors of Pillow on bytes that are not a PNG.
        """
        image = _extra("PIL.Image").open(io.BytesIO(data), formats=["PNG"])
        if image.mode not in _MODES[self.bits]:
            raise ValueError(f"expected a PNG of mode {_MODES[self.bits][0]}, found {image.mode}")
        if image.width * image.height > MOST_LABELS * len(data):
            raise ValueError(
                f"expected at most {MOST_LABELS * len(data):,} labels in {len(data):,} bytes, found a PNG of "
                f"{image.width} by {image.height}"
            )
        pixels = np.asarray(image)
        if self.bits <= 16:
            return pixels.astype(self.dtype)
        channels = np.zeros((*pixels.shape[:2], 4), np.uint8)
        channels[:, :, 4 - pixels.shape[2] :] = pixels
        return channels.view(">u4")[:, :, 0].astype(self.dtype)


def _codec(encode: Encoder, decode: Decoder, *extensions: str) -> Codec:
    return Codec(lambda value, _: encode(value), decode, extensions)


def _encode_mat(value: Any) -> bytes:
    target = io.BytesIO()
    _extra("scipy.io").savemat(target, value)
    return _MAT_TEXT + target.getvalue()[len(_MAT_TEXT) :]


# A decoder is a function of the module, not a lambda: a dataset with its decoders is pickled.
def _decode_mat(data: bytes) -> Any:
    return _extra("scipy.io").loadmat(io.BytesIO(data))


def _decode_msgpack(data: bytes) -> Any:
    return _extra("msgpack").unpackb(data, raw=False, strict_map_key=False)  # keys may be any hashable value


def _decode_safetensors(data: bytes) -> Any:
    return _extra("safetensors.numpy").load(data)


def _segmentation(bits: int) -> Codec:
    labels = _Segmentation(bits)
    return _codec(labels.encode, labels.decode, f"seg{bits}")


def _audio(extension: str) -> Codec:
    return _codec(lambda value: encode_audio(as_audio(value), extension), decode_audio, extension)


_codecs: dict[str, Codec] = {
    "CLS": _codec(lambda label: b"%d" % operator.index(label), int, "cls"),
    "CSV": _codec(_encode_csv, _decode_csv, "csv"),
    "FLAC": _audio("flac"),
    "JSON": _codec(lambda value: json.dumps(value).encode(), json.loads, "json"),
    "MAT": _codec(_encode_mat, _decode_mat, "mat"),
    "MP3": _audio("mp3"),
    "MP4": _codec(_encode_mp4, _decode_mp4, "mp4"),
    "MSGPACK": _codec(lambda value: _extra("msgpack").packb(value, use_bin_type=True), _decode_msgpack, "msgpack"),
    "NPY": _codec(encode_npy, _decode_npy, "npy"),
    "NPZ": _codec(_encode_npz, _decode_npz, "npz"),
    "PIL": Codec(_encode_image, _decode_image),
    "PKL": _codec(_encode_pickle, pickle.loads, "pkl"),  # noqa: S301 - only where a caller asks for it
    "RLE": _codec(encode_rle, decode_rle, "rle"),
    "SAFETENSORS": _codec(_encode_safetensors, _decode_safetensors, "safetensors"),
    "SEG16": _segmentation(16),
    "SEG24": _segmentation(24),
    "SEG32": _segmentation(32),
    "SEG8": _segmentation(8),
    "TXT": _codec(_encode_text, bytes.decode, "txt"),
    "WAV": _audio("wav"),
}

CODECS: Mapping[str, Codec] = MappingProxyType(_codecs)
"""All codecs by name, also those of `register_codec`. `PIL` has all extensions that Pillow knows and no other codec
has."""


def register_codec(name: str, encode: Encoder, decode: Decoder, *, extensions: tuple[str, ...] | None = None) -> None:
    """Add a codec in this process, for `LitWriter` and `LitDataset`.

    Call this in a module that the workers of a loader also import: a process that is not forked has only the codecs of
    the modules that it imports. A second call with the same functions changes nothing.

    Args:
        name: Name of the codec, in capitals.
        encode: Encodes an object as the bytes of a member.
        decode: Decodes the bytes. It should raise `ValueError` for bytes of another kind.
        extensions: Last parts of its modalities, in lower case. Default: the name in lower case.

    Raises:
        UsageError: Another codec has the name or an extension, or the name or an extension is not well formed.
    """
    found = tuple(extensions) if extensions is not None else (name.lower(),)
    if not name.isidentifier() or name != name.upper():
        raise UsageError(f"a codec needs a name such as 'POINTS', found {name!r}")
    for extension in found:
        if not extension or extension != extension.lower() or "." in extension or "/" in extension:
            raise UsageError(f"codec {name}: expected extensions such as 'points', found {extension!r}")
    taken = {extension: other for other, codec in _codecs.items() if other != name for extension in codec.extensions}
    for extension in found:
        if extension in taken:
            raise UsageError(f"codec {name}: {taken[extension]} has the extension {extension!r}; use another extension")
    known = _codecs.get(name)
    if known is not None and (known.decode, known.extensions) != (decode, found):
        raise UsageError(f"codec {name}: the name is taken; give the codec another name")
    if known is None:
        _codecs[name] = _codec(encode, decode, *found)


def _codec_of(modality: str) -> Codec | None:
    """Find the codec of the last part of a modality; None if there is none."""
    last = modality.rpartition(".")[2]
    for codec in _codecs.values():
        if last.lower() in codec.extensions:
            return codec
    return _codecs["PIL"] if _image_format(last) else None


def decoder_of(modality: str, override: str | Decoder | None, place: str) -> Decoder:
    """Find the decoder of a modality such as `jpg` or `semantic.seg16`: `override`, else the codec of its last part.

    UsageError: there is no codec, its package is not installed, or it decodes pickles and `override` is not `PKL`.
    """
    if callable(override):
        return override
    if override is not None:
        return _find_codec(override, place).decode
    codec = _codec_of(modality)
    if codec is CODECS["PKL"]:
        raise UsageError(
            f"{place}: {modality!r} holds pickles, and decoding a pickle runs any code in it; if you trust the data, "
            f"pass decoders={{{modality!r}: 'PKL'}}, or for the plain bytes decoders={{{modality!r}: bytes}}"
        )
    if codec is None:
        raise UsageError(
            f"{place}: no codec knows {modality!r}; pass a function of bytes or the name of a codec "
            f"({', '.join(CODECS)}): decoders={{{modality!r}: bytes}}"
        )
    return codec.decode


def encoder_of(modality: str, override: str | Encoder | None, place: str) -> Encoder:
    """Find the encoder of a modality; see `decoder_of`. Unlike there, pickles need no `override`."""
    if callable(override):
        return override
    codec = _codec_of(modality) if override is None else _find_codec(override, place)
    if codec is None:
        raise UsageError(
            f"{place}: no codec knows {modality!r}; write bytes, or pass a function or the name of a codec "
            f"({', '.join(CODECS)}): encoders={{{modality!r}: ...}}"
        )
    encode, last = codec.encode, modality.rpartition(".")[2]
    return lambda value: encode(value, last)


def _find_codec(name: str, place: str) -> Codec:
    if name not in _codecs:
        raise UsageError(f"{place}: there is no codec {name!r}; expected a function or one of {', '.join(_codecs)}")
    return _codecs[name]
