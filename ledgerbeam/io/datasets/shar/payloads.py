"""Payloads of a Shar folder: audio and arrays, each with its manifest as in lhotse.

Length, rate and shape come from the headers of payloads; nothing is decoded for them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.datasets.audio import AUDIO_FORMATS, as_audio, encode_audio, encode_npy, npy_header
from ledgerbeam.io.datasets.shar.reader import FieldKind

_RIFF_SIZES = {b"RIFF": "<I", b"RIFX": ">I"}
_STREAMED = 0xFFFFFFFF  # the sizes in the header of a WAV that was written to a pipe


class AudioHeader(NamedTuple):
    """Properties of audio from the header of a payload."""

    sampling_rate: int  # samples per second
    channels: int
    samples: int  # number of samples of each channel


def audio_header(data: bytes, extension: str) -> AudioHeader:
    """Read the header of WAV (RIFF) or FLAC. RecordError: the bytes are neither, or the header has no length."""
    found = _flac(data) if data[:4] == b"fLaC" else _wav(data)
    if found is None or not (found.sampling_rate and found.channels and found.samples):
        raise RecordError(
            f"{extension!r}: expected the header of WAV or FLAC with rate, channels and length, found {data[:12]!r}"
        )
    return found


def array_shape(data: bytes, extension: str) -> list[int]:
    """Read the shape of a `.npy`. RecordError if the data is not a `.npy`, or has another size than its header says."""
    try:
        return list(npy_header(data).shape)
    except Exception as error:  # numpy parses the header as Python, which raises errors of many kinds
        raise RecordError(f"{extension!r}: expected a .npy: {error!r:.300}") from error


def _flac(data: bytes) -> AudioHeader | None:
    if len(data) < 42 or data[4] & 0x7F:  # the first block describes the stream
        return None
    packed = int.from_bytes(data[18:26])  # bits: 20 rate, 3 channels - 1, 5 bits per sample - 1, 36 samples
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


def recording_manifest(name: str, audio: AudioHeader) -> dict[str, Any]:
    """Return the manifest of audio in a shard."""
    rate, channels, samples = audio
    numbers = list(range(channels))
    return {
        "id": name,
        "sources": [{"type": "shar", "channels": numbers, "source": ""}],
        "sampling_rate": rate,
        "num_samples": samples,
        "duration": samples / rate,
        "channel_ids": numbers,
    }


def array_manifest(shape: Sequence[int]) -> dict[str, Any]:
    """Return the manifest of an array in a shard."""
    return {"storage_type": "shar", "storage_path": "", "storage_key": "", "shape": list(shape)}


def cut_of_audio(name: str, duration: float, channels: Sequence[int]) -> dict[str, Any]:
    """Return a cut with the length and all channels of its audio."""
    several = len(channels) > 1
    return {
        "id": name,
        "start": 0,
        "duration": duration,
        "channel": list(channels) if several else channels[0],
        "supervisions": [],
        "type": "MultiCut" if several else "MonoCut",
    }


FieldForm: TypeAlias = Literal["tar", "jsonl", "wav", "flac", "mp3", "opus", "numpy"]
"""Form of the values of a field: as stored in the shard (`tar`, `jsonl`), or arrays that are encoded in a format."""

_ARRAYS = "numpy"


class Frames(NamedTuple):
    """An array with a time dimension, such as features of audio.

    Attributes:
        values: The array.
        frame_shift: Seconds from one frame to the next.
        temporal_dim: Number of the time dimension, from 0.
    """

    values: NDArray[Any]
    frame_shift: float
    temporal_dim: int = 0


def kind_of(form: FieldForm) -> FieldKind:
    """Return the kind of shards, `tar` or `jsonl`, for a form of a field."""
    return "tar" if form in AUDIO_FORMATS or form == _ARRAYS else form  # type: ignore[return-value]


def with_payloads(cut: Mapping[str, Any], forms: Mapping[str, FieldForm], number: int) -> Mapping[str, Any]:
    """Return a cut with its arrays as payloads and manifests, in the form that `split_cut` takes.

    A cut with audio and neither `type` nor `duration` gets the length of its audio. RecordError: a value does not have
    the form of its field, or the cut is longer than its audio.
    """
    if not isinstance(cut, Mapping) or not isinstance(cut.get("id"), str):
        return cut  # `split_cut` raises the error
    made = dict(cut)
    heard: Mapping[str, Any] | None = None
    for field, form in forms.items():
        if form == kind_of(form) or made.get(field) is None or isinstance(made[field], Mapping):
            continue  # already has the form of the shard
        place = f"cut {number} ({cut['id']!r}): field {field!r}"
        try:
            made[field] = _encode_payload(made[field], form, cut["id"])
        except UsageError:
            raise
        except ValueError as error:
            raise RecordError(f"{place}: {error}") from error
        if form in AUDIO_FORMATS:
            manifest = made[field]["json"]
            heard = heard or manifest
            _check_length(made, manifest, place)
    if heard is not None and "type" not in made and "duration" not in made:
        made = {**cut_of_audio(cut["id"], heard["duration"], heard["channel_ids"]), **made}
    return made


def _encode_payload(value: Any, form: FieldForm, name: str) -> Mapping[str, Any]:
    """Return a payload under its extension, and its manifest under `json`; `name` is the ID of the cut.

    Audio is an `Audio`, a pair of samples and sampling rate, or the bytes of a WAV or FLAC file. The form `numpy` is an
    array or `Frames`. ValueError: any other value.
    """
    if form in AUDIO_FORMATS:
        if isinstance(value, bytes | bytearray | memoryview):
            return {form: value, "json": recording_manifest(name, audio_header(bytes(value), form))}
        audio = as_audio(value)
        header = AudioHeader(audio.sampling_rate, *audio.samples.shape)
        return {form: encode_audio(audio, form), "json": recording_manifest(name, header)}
    if isinstance(value, Frames):
        array = _array(value.values)
        if not 0 <= value.temporal_dim < array.ndim or not value.frame_shift > 0:
            raise ValueError(
                f"expected temporal_dim from 0 to {array.ndim - 1} and frame_shift above 0 seconds, found temporal_dim="
                f"{value.temporal_dim}, frame_shift={value.frame_shift}"
            )
        times = {"temporal_dim": value.temporal_dim, "frame_shift": value.frame_shift, "start": 0}
        return {"npy": encode_npy(array), "json": {"array": array_manifest(array.shape), **times}}
    array = _array(value)
    return {"npy": encode_npy(array), "json": array_manifest(array.shape)}


def _check_length(cut: Mapping[str, Any], manifest: Mapping[str, Any], place: str) -> None:
    start, duration = cut.get("start", 0), cut.get("duration")
    if isinstance(duration, int | float) and isinstance(start, int | float):
        rate = manifest["sampling_rate"]
        if start + duration > manifest["duration"] + 1 / rate:
            raise RecordError(
                f"{place}: expected audio of at least {start + duration} s, the end of the cut, found "
                f"{manifest['num_samples']} samples at {rate} Hz, {manifest['duration']} s"
            )


def _array(value: Any) -> NDArray[Any]:
    if not hasattr(value, "__array__"):
        raise ValueError(f"expected an array, Frames, or a payload with its manifest, found a {type(value).__name__}")
    array = np.asarray(value)
    if array.dtype.hasobject or not array.ndim:
        raise ValueError(f"expected an array of numbers with at least one dimension, found {array.dtype} {array.shape}")
    return array
