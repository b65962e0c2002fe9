"""Arrays as `.npy`, and audio as the bytes of a file: WAV in Python, other formats with soundfile if installed."""

from __future__ import annotations

import io
import math
import struct
import wave
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgerbeam._base.extensions import import_extra
from ledgerbeam.errors import UsageError

AUDIO_FORMATS = ("wav", "flac", "mp3", "opus")  # formats that `encode_audio` writes, by file extension
MOST_SAMPLES = 2**28  # limit of decoded samples of an audio file, of all channels together; WAV files have no limit
_BLOCK = 2**20
_FULL = 32768.0  # full scale of signed 16 bits
_OF_SOUNDFILE = {"flac": ("FLAC", "PCM_16"), "mp3": ("MP3", None), "opus": ("OGG", "OPUS")}


class Audio(NamedTuple):
    """Audio in memory.

    Attributes:
        samples: Shape (channels, samples): floats from -1 to 1, or int16.
        sampling_rate: Samples per second.
    """

    samples: NDArray[Any]
    sampling_rate: int


def as_audio(value: Any) -> Audio:
    """Return a pair (samples, sampling rate) as `Audio`. 1-D samples are one channel. ValueError: any other value."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(f"expected Audio(samples, sampling_rate), found a {type(value).__name__}")
    samples, rate = np.asarray(value[0]), value[1]
    if samples.ndim == 1:
        samples = samples[np.newaxis]
    if samples.ndim != 2 or not samples.size or not (samples.dtype.kind == "f" or samples.dtype == np.int16):
        raise ValueError(
            f"expected samples of shape (channels, samples) as floats or int16, found {samples.dtype} of shape "
            f"{samples.shape}"
        )
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or rate < 1:
        raise ValueError(f"expected a sampling rate in samples per second, a whole number, found {rate!r}")
    return Audio(samples, int(rate))


def encode_audio(audio: Audio, extension: str) -> bytes:
    """Return the bytes of an audio file with 16 bits per sample. Floats beyond -1 and 1 are clipped.

    Raises:
        UsageError: The format needs soundfile, which is not installed, or the format is unknown.
        ValueError: A sample is NaN or infinite, or the format cannot hold this rate or number of channels.
    """
    if audio.samples.dtype.kind == "f" and not np.isfinite(audio.samples).all():
        raise ValueError("expected samples from -1 to 1, found NaN or infinities")
    if extension == "wav":
        return _encode_wav(audio)
    if extension not in _OF_SOUNDFILE:
        raise UsageError(f"expected audio as one of {', '.join(AUDIO_FORMATS)}, found {extension!r}")
    name, subtype = _OF_SOUNDFILE[extension]
    library = import_extra("soundfile", "audio", f"{extension} audio needs soundfile")
    target = io.BytesIO()
    try:
        library.write(target, audio.samples.T, audio.sampling_rate, format=name, subtype=subtype)
    except RuntimeError as error:  # the base class of soundfile's errors
        shape, rate = audio.samples.shape, audio.sampling_rate
        raise ValueError(f"expected audio that {extension} can hold, found {shape} at {rate} Hz: {error}") from error
    return _reset_stream_number(target.getvalue()) if name == "OGG" else target.getvalue()


def decode_audio(data: bytes) -> Audio:
    """Decode the bytes of an audio file to samples in float32 from -1 to 1.

    Raises:
        UsageError: The format needs soundfile, which is not installed.
        ValueError: The file has no samples, or more than `MOST_SAMPLES`: hours of silence take few bytes.
        Exception: Any error that soundfile raises on bytes that are not audio.
    """
    found = _decode_wav(data) if data[:4] == b"RIFF" else None
    if found is not None:
        return found
    blocks: list[NDArray[Any]] = []
    library = import_extra("soundfile", "audio", "this audio needs soundfile")
    with library.SoundFile(io.BytesIO(data)) as file:
        rate, left = int(file.samplerate), MOST_SAMPLES // file.channels
        while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):  # the length in a header may be wrong
            left -= len(block)
            if left < 0:
                raise ValueError(f"expected at most {MOST_SAMPLES} samples, found more in {len(data)} bytes")
            blocks.append(block)
    if not blocks:
        raise ValueError("expected audio samples, found none")
    return Audio(np.ascontiguousarray(np.concatenate(blocks).T), rate)


def _reset_stream_number(data: bytes) -> bytes:
    """Set the stream number in all pages of an Ogg file to 0, so that equal audio has equal bytes.

    libsndfile writes a number that depends on the time. Source: RFC 3533, section 6.
    """
    pages: list[bytearray] = []
    start = 0
    while start < len(data):
        sizes = data[start + _PAGE_HEAD : start + _PAGE_HEAD + data[start + _PAGE_HEAD - 1]]
        stop = start + _PAGE_HEAD + len(sizes) + sum(sizes)
        page = bytearray(data[start:stop])
        page[14:18] = page[22:26] = bytes(4)  # stream number and checksum
        struct.pack_into("<I", page, 22, _page_checksum(page))
        pages.append(page)
        start = stop
    return b"".join(pages)


def _page_checksum(page: bytearray) -> int:
    """Return the CRC-32 of an Ogg page: as in zlib, but with mirrored bits, initial value 0 and no final inversion."""
    mirrored = zlib.crc32(page.translate(_MIRRORED), _ALL_ONES) ^ _ALL_ONES
    return int(f"{mirrored:032b}"[::-1], 2)


_PAGE_HEAD = 27  # bytes before the sizes of the segments of a page; the last one is their number
_ALL_ONES = 2**32 - 1
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _encode_wav(audio: Audio) -> bytes:
    samples = audio.samples
    if samples.dtype.kind == "f":  # rounds down like libsndfile
        samples = np.clip(np.floor(samples.astype(np.float64) * _FULL), -_FULL, _FULL - 1)
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(len(samples))
        file.setsampwidth(2)
        file.setframerate(audio.sampling_rate)
        file.writeframes(np.ascontiguousarray(samples.T, "<i2").tobytes())
    return target.getvalue()


def _decode_wav(data: bytes) -> Audio | None:
    """Decode a WAV file with integers of 8 to 32 bits. Return None for other encodings, which `wave` cannot read."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError):
        return None
    if width == 1:
        whole = (np.frombuffer(frames, np.uint8).astype(np.int32) - 128) << 24
    else:
        padded = np.zeros((len(frames) // width, 4), np.uint8)
        padded[:, 4 - width :] = np.frombuffer(frames, np.uint8).reshape(-1, width)
        whole = padded.view("<i4")[:, 0]
    samples = (whole / 2.0**31).astype(np.float32)
    return Audio(np.ascontiguousarray(samples.reshape(-1, channels).T), rate)


class NpyHeader(NamedTuple):
    """The header of a `.npy`."""

    shape: tuple[int, ...]
    fortran: bool  # whether the values are in Fortran order
    dtype: np.dtype[Any]
    end: int  # offset of the values


def encode_npy(array: Any) -> bytes:
    """Return an array of numbers as a `.npy`."""
    target = io.BytesIO()
    np.save(target, array, allow_pickle=False)
    return target.getvalue()


def npy_header(data: bytes, newest: tuple[int, int] = (3, 0)) -> NpyHeader:
    """Read the header of a `.npy`, of a version up to `newest`.

    ValueError: it has objects, or the data has another size than the header says. Also other errors of NumPy.
    """
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if not (1, 0) <= version <= newest:
        raise ValueError(f"expected a version from 1.0 to {newest[0]}.{newest[1]} of the npy format, found {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("expected an array of numbers, found one of pickled objects")
    size, found = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if min(shape, default=0) < 0 or size != found:
        raise ValueError(f"expected {size} bytes of {dtype} for the shape {shape}, found {found}")
    return NpyHeader(shape, fortran, dtype, file.tell())
