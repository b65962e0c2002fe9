"""Arrays as members of samples: one as npy, several by name as npz or safetensors; none takes what a header claims."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ledgerbeam._base.extras import install_command
from ledgerbeam.errors import UsageError

_AS_NUMPY = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_MOST_OF_A_BYTE = 1032
"""Bytes that deflate makes of one, at most."""


def encode_npy(array: Any) -> bytes:
    """Encode an array; one of objects is refused."""
    target = io.BytesIO()
    np.save(target, array, allow_pickle=False)
    return target.getvalue()


def decode_npy(data: bytes) -> NDArray[Any]:
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


def encode_npz(value: Any) -> bytes:
    """Encode arrays by name, as `numpy.savez` does; none is compressed."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, array in _named(value).items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), encode_npy(array))
    return target.getvalue()


def decode_npz(data: bytes) -> dict[str, NDArray[Any]]:
    """Decode arrays by name, compressed or not, without trusting the sizes that the archive claims.

    Raises:
        ValueError: A member is no array, or they claim more bytes than they can have. Also what `zipfile` raises.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        for member in members:
            if not member.filename.endswith(".npy") or member.compress_type not in _AS_NUMPY:
                raise ValueError(f"expected arrays as NumPy writes them, found {member.filename!r}")
        if (size := sum(member.file_size for member in members)) > _MOST_OF_A_BYTE * len(data):
            raise ValueError(f"expected at most {_MOST_OF_A_BYTE * len(data)} bytes, found arrays of {size}")
        return {member.filename.removesuffix(".npy"): decode_npy(archive.read(member)) for member in members}


def encode_safetensors(value: Any) -> bytes:
    """Encode arrays by name as safetensors."""
    arrays = {name: np.ascontiguousarray(array) for name, array in _named(value).items()}
    data: bytes = _safetensors().save(arrays)
    return data


def decode_safetensors(data: bytes) -> dict[str, NDArray[Any]]:
    """Decode safetensors to arrays by name."""
    found: dict[str, NDArray[Any]] = _safetensors().load(data)
    return found


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"safetensors files need safetensors: {install_command('safetensors')}") from error
    module: ModuleType = safetensors.numpy
    return module


def _named(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"expected arrays by name, found a {type(value).__name__}")
    return value
