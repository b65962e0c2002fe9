"""Properties from the headers of payloads: length and rate of audio, shape of arrays. Nothing is decoded."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

from ledgerbeam._base.late_numpy import np
from ledgerbeam.errors import RecordError

_RIFF_SIZES = {b"RIFF": "<I", b"RIFX": ">I"}
_VERSIONS = ((1, 0), (2, 0), (3, 0))
_STREAMED = 0xFFFFFFFF  # what a WAV that was written to a pipe has as its sizes


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """What an audio payload says of itself.

    Attributes:
        sampling_rate: Samples in a second.
        channels: How many there are.
        samples: How many each of them has.
    """

    sampling_rate: int
    channels: int
    samples: int


def audio_header(data: bytes, extension: str) -> AudioHeader:
    """Read the header of WAV (RIFF) or FLAC, whichever the bytes are.

    Args:
        data: The whole payload.
        extension: For messages.

    Raises:
        RecordError: It is neither, is damaged, or has no length.
    """
    found = _flac(data) if data[:4] == b"fLaC" else _wav(data)
    if found is None or not (found.sampling_rate and found.channels and found.samples):
        raise RecordError(
            f"{extension!r}: expected the header of WAV or FLAC with rate, channels and length, found {data[:12]!r}"
        )
    return found


def array_shape(data: bytes, extension: str) -> list[int]:
    """Read the shape of a `.npy`.

    Raises:
        RecordError: It is none, of a version that numpy does not know, or shorter than it says.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        if version not in _VERSIONS:
            raise ValueError(f"expected version 1.0, 2.0 or 3.0, found {'.'.join(map(str, version))}")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except Exception as error:  # numpy has Python's own parser read the header, which raises errors of many kinds
        raise RecordError(f"{extension!r}: expected a .npy: {error!r:.300}") from error
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if dtype.hasobject or min(shape, default=0) < 0 or len(data) - file.tell() != size:
        raise RecordError(
            f"{extension!r}: expected {size} bytes of {dtype} in the shape {shape}, found {len(data) - file.tell()}"
        )
    return list(shape)


def _flac(data: bytes) -> AudioHeader | None:
    if len(data) < 42 or data[4] & 0x7F:  # the stream's description comes first
        return None
    packed = int.from_bytes(data[18:26])  # 20 bits rate, 3 channels - 1, 5 bits a sample - 1, 36 samples
    return AudioHeader(packed >> 44, (packed >> 41 & 7) + 1, packed & (1 << 36) - 1)


def _wav(data: bytes) -> AudioHeader | None:
    if data[:4] not in _RIFF_SIZES or data[8:12] != b"WAVE":
        return None
    order = _RIFF_SIZES[data[:4]]
    rate = channels = frame = 0
    position = 12
    while position + 8 <= len(data):
        name, (size,) = data[position : position + 4], struct.unpack_from(order, data, position + 4)
        position += 8
        if name == b"fmt " and position + 16 <= len(data):
            channels, rate, _, frame = struct.unpack_from(f"{order[0]}HIIH", data, position + 2)
        elif name == b"data":
            there = len(data) - position
            if size != _STREAMED and size > there:
                return None
            return AudioHeader(rate, channels, min(size, there) // frame) if frame else None
        position += size + size % 2
    return None
