"""The codecs of LIT: what the members of a sample are as Python objects, by extension.

The last part of a modality's name selects the codec: `seg16` for `semantic.seg16`. Pickles are decoded only where `PKL`
is asked for by name, because decoding one runs any code in it.
"""

from __future__ import annotations

import io
import json
import operator
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, TypeAlias

from ledgerbeam._base.extras import install_command
from ledgerbeam.errors import UsageError
from ledgerbeam.io.datasets.audio import as_audio, decode_audio, encode_audio
from ledgerbeam.io.datasets.lit import arrays, plain
from ledgerbeam.io.datasets.lit.images import Segmentation, decode_image, encode_image, image_format
from ledgerbeam.io.datasets.lit.rle import decode_rle, encode_rle

Decoder: TypeAlias = Callable[[bytes], Any]
"""Makes an object of the bytes of a member."""

Encoder: TypeAlias = Callable[[Any], bytes]
"""Makes the bytes of a member of an object."""


@dataclass(frozen=True, slots=True)
class Codec:
    """How objects of one kind are stored.

    Attributes:
        encode: Makes bytes of an object, given the modality's last part.
        decode: Makes an object of bytes.
        extensions: Last parts of modalities that it is for, in lower case.
    """

    encode: Callable[[Any, str], bytes]
    decode: Decoder
    extensions: tuple[str, ...] = ()


def _codec(encode: Encoder, decode: Decoder, *extensions: str) -> Codec:
    return Codec(lambda value, _: encode(value), decode, extensions)


def _encode_cls(label: Any) -> bytes:
    return b"%d" % operator.index(label)


def _encode_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _scipy_io() -> ModuleType:
    try:
        import scipy.io  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(f"MAT files need SciPy: {install_command('mat')}") from error
    module: ModuleType = scipy.io
    return module


def _encode_mat(value: Any) -> bytes:
    target = io.BytesIO()
    _scipy_io().savemat(target, value)
    return _MAT_TEXT + target.getvalue()[len(_MAT_TEXT) :]


_MAT_TEXT = b"MATLAB 5.0 MAT-file".ljust(116)
"""The text at the beginning of a MAT file, which readers ignore. SciPy would write the time there."""


def _decode_mat(data: bytes) -> Any:
    return _scipy_io().loadmat(io.BytesIO(data))


def _segmentation(bits: int) -> Codec:
    labels = Segmentation(bits)
    return _codec(labels.encode, labels.decode, f"seg{bits}")


def _audio(extension: str) -> Codec:
    return _codec(lambda value: encode_audio(as_audio(value), extension), decode_audio, extension)


_codecs: dict[str, Codec] = {
    "CLS": _codec(_encode_cls, int, "cls"),
    "CSV": _codec(plain.encode_csv, plain.decode_csv, "csv"),
    "FLAC": _audio("flac"),
    "JSON": _codec(_encode_json, json.loads, "json"),
    "MAT": _codec(_encode_mat, _decode_mat, "mat"),
    "MP3": _audio("mp3"),
    "MP4": _codec(plain.encode_mp4, plain.decode_mp4, "mp4"),
    "MSGPACK": _codec(plain.encode_msgpack, plain.decode_msgpack, "msgpack"),
    "NPY": _codec(arrays.encode_npy, arrays.decode_npy, "npy"),
    "NPZ": _codec(arrays.encode_npz, arrays.decode_npz, "npz"),
    "PIL": Codec(encode_image, decode_image),
    "PKL": _codec(plain.encode_pickle, pickle.loads, "pkl"),  # noqa: S301 - only where a caller asks for it
    "RLE": _codec(encode_rle, decode_rle, "rle"),
    "SAFETENSORS": _codec(arrays.encode_safetensors, arrays.decode_safetensors, "safetensors"),
    "SEG16": _segmentation(16),
    "SEG24": _segmentation(24),
    "SEG32": _segmentation(32),
    "SEG8": _segmentation(8),
    "TXT": _codec(plain.encode_text, plain.decode_text, "txt"),
    "WAV": _audio("wav"),
}

CODECS: Mapping[str, Codec] = MappingProxyType(_codecs)
"""Every codec by name, those of `register_codec` too. `PIL` goes by all extensions that Pillow knows and no other
codec has."""


def register_codec(name: str, encode: Encoder, decode: Decoder, *, extensions: tuple[str, ...] | None = None) -> None:
    """Add a codec to those of this process, for `LitWriter` and `LitDataset`.

    Register it in the module that a loader's workers import too, as a process that is not forked knows only what it has
    imported. The same functions again change nothing.

    Args:
        name: In capitals.
        encode: Makes the bytes of a member of an object.
        decode: Makes an object of the bytes. It should raise `ValueError` for bytes that are none of its own.
        extensions: Last parts of the modalities that it is for, in lower case. Default: the name in lower case.

    Raises:
        UsageError: The name or an extension is that of another codec, or is not spelt so.
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
            raise UsageError(f"codec {name}: the extension {extension!r} is that of {taken[extension]}; use another")
    known = _codecs.get(name)
    if known is not None and (known.decode, known.extensions) != (decode, found):
        raise UsageError(f"codec {name}: the name is taken; give the codec another")
    if known is None:
        _codecs[name] = _codec(encode, decode, *found)


def _codec_of(modality: str) -> Codec | None:
    """Find the codec of a modality; None if no codec knows its last part."""
    last = modality.rpartition(".")[2]
    for codec in _codecs.values():
        if last.lower() in codec.extensions:
            return codec
    return _codecs["PIL"] if image_format(last) else None


def decoder_of(modality: str, override: str | Decoder | None, place: str) -> Decoder:
    """Find the decoder of a modality.

    Args:
        modality: Such as `jpg` or `semantic.seg16`.
        override: A function, or the name of a codec; None for the codec of the modality's last part.
        place: The dataset, for messages.

    Raises:
        UsageError: No codec is known, it needs a package that is not installed, or it would decode pickles without
            having been asked for by name.
    """
    if callable(override):
        return override
    if override is not None:
        return _named(override, place).decode
    codec = _codec_of(modality)
    if codec is CODECS["PKL"]:
        raise UsageError(
            f"{place}: {modality!r} holds pickles, and decoding one runs any code in it. If you trust the people who "
            f"made the dataset, ask for it: decoders={{{modality!r}: 'PKL'}}; for the bytes: {{{modality!r}: bytes}}"
        )
    if codec is None:
        raise UsageError(
            f"{place}: no codec knows {modality!r}; pass a function of bytes or the name of a codec "
            f"({', '.join(CODECS)}): decoders={{{modality!r}: bytes}}"
        )
    return codec.decode


def encoder_of(modality: str, override: str | Encoder | None, place: str) -> Encoder:
    """Find the encoder of a modality; see `decoder_of`. Pickles are encoded as anything else."""
    if callable(override):
        return override
    codec = _codec_of(modality) if override is None else _named(override, place)
    if codec is None:
        raise UsageError(
            f"{place}: no codec knows {modality!r}; give bytes, or pass a function or the name of a codec "
            f"({', '.join(CODECS)}): encoders={{{modality!r}: ...}}"
        )
    encode, last = codec.encode, modality.rpartition(".")[2]
    return lambda value: encode(value, last)


def _named(name: str, place: str) -> Codec:
    if name not in _codecs:
        raise UsageError(f"{place}: there is no codec {name!r}; expected a function or one of {', '.join(_codecs)}")
    return _codecs[name]
