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
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import UsageError
from ledgerbeam.io.lit.images import Segmentation, decode_image, encode_image, image_format
from ledgerbeam.io.lit.rle import decode_rle, encode_rle

__all__ = ["CODECS", "Codec", "Decoder", "Encoder", "decoder_of", "encoder_of"]

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
    """

    encode: Callable[[Any, str], bytes]
    decode: Decoder


def _codec(encode: Encoder, decode: Decoder) -> Codec:
    return Codec(lambda value, _: encode(value), decode)


def _encode_cls(label: Any) -> bytes:
    return b"%d" % operator.index(label)


def _encode_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _encode_npy(array: Any) -> bytes:
    target = io.BytesIO()
    np.save(target, array, allow_pickle=False)
    return target.getvalue()


def _decode_npy(data: bytes) -> NDArray[Any]:
    """Decode an array without trusting the size that its header claims; object arrays are refused."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version > (2, 0):
        raise ValueError(f"expected version 1.0 or 2.0 of the npy format, found {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("expected an array of numbers, found one of pickled objects")
    count = 1
    for length in shape:
        count *= length
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(data) - file.tell():
        raise ValueError(
            f"expected {count * dtype.itemsize} bytes for the shape {shape}, found {len(data) - file.tell()}"
        )
    flat = np.frombuffer(data, dtype, offset=file.tell()).copy() if count else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _scipy_io() -> ModuleType:
    try:
        import scipy.io  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError("MAT files need SciPy: pip install 'ledgerbeam[mat]'") from error
    module: ModuleType = scipy.io
    return module


def _encode_mat(value: Any) -> bytes:
    target = io.BytesIO()
    _scipy_io().savemat(target, value)
    return target.getvalue()


def _decode_mat(data: bytes) -> Any:
    return _scipy_io().loadmat(io.BytesIO(data))


def _segmentation(bits: int) -> Codec:
    labels = Segmentation(bits)
    return _codec(labels.encode, labels.decode)


CODECS: Mapping[str, Codec] = {
    "CLS": _codec(_encode_cls, int),
    "JSON": _codec(_encode_json, json.loads),
    "MAT": _codec(_encode_mat, _decode_mat),
    "NPY": _codec(_encode_npy, _decode_npy),
    "PIL": Codec(encode_image, decode_image),
    "PKL": _codec(pickle.dumps, pickle.loads),  # noqa: S301 - only where a caller asks for it
    "RLE": _codec(encode_rle, decode_rle),
    "SEG16": _segmentation(16),
    "SEG24": _segmentation(24),
    "SEG32": _segmentation(32),
    "SEG8": _segmentation(8),
}
"""Every codec by name. All but `PIL` and `PKL` go by the extension of the same name."""


def _codec_of(modality: str) -> Codec | None:
    """Find the codec of a modality; None if no codec knows its last part."""
    last = modality.rpartition(".")[2]
    if last.upper() in CODECS and last.upper() != "PIL":
        return CODECS[last.upper()]
    return CODECS["PIL"] if image_format(last) else None


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
    if name not in CODECS:
        raise UsageError(f"{place}: there is no codec {name!r}; expected a function or one of {', '.join(CODECS)}")
    return CODECS[name]
