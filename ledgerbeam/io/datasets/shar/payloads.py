"""Arrays as payloads of a Shar folder: encoded, each with its manifest."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.datasets.audio import AUDIO_FORMATS, as_audio, encode_audio
from ledgerbeam.io.datasets.shar.manifests import array_manifest, cut_of_audio, frames_manifest, recording_manifest
from ledgerbeam.io.datasets.shar.payload_headers import audio_header
from ledgerbeam.io.datasets.shar.rows import FieldKind

FieldForm: TypeAlias = Literal["tar", "jsonl", "wav", "flac", "mp3", "opus", "numpy"]
"""How a field is given and kept: as it lies in the shard (`tar`, `jsonl`), or as arrays that are encoded."""

_ARRAYS = "numpy"


class Frames(NamedTuple):
    """An array of which one dimension is time, such as features of audio.

    Attributes:
        values: The array.
        frame_shift: Seconds from one frame to the next.
        temporal_dim: Which dimension is time.
    """

    values: NDArray[Any]
    frame_shift: float
    temporal_dim: int = 0


def kind_of(form: FieldForm) -> FieldKind:
    """Return how a field of a form lies in its shards."""
    return "tar" if form in AUDIO_FORMATS or form == _ARRAYS else form  # type: ignore[return-value]


def with_payloads(cut: Mapping[str, Any], forms: Mapping[str, FieldForm], number: int) -> Mapping[str, Any]:
    """Return a cut whose arrays are payloads with manifests, as `split_cut` takes it.

    A cut that has audio and no `type` becomes one that is as long as its audio.

    Raises:
        RecordError: A value is not of the form of its field, or the cut is longer than its audio.
    """
    if not isinstance(cut, Mapping) or not isinstance(cut.get("id"), str):
        return cut  # which `split_cut` refuses
    made = dict(cut)
    heard: Mapping[str, Any] | None = None
    for field, form in forms.items():
        if form == kind_of(form) or made.get(field) is None or isinstance(made[field], Mapping):
            continue  # as it lies in the shard
        place = f"cut {number} ({cut['id']!r}): field {field!r}"
        try:
            made[field] = encode_payload(made[field], form, cut["id"])
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


def encode_payload(value: Any, form: FieldForm, name: str) -> Mapping[str, Any]:
    """Return a payload by its extension, and its manifest as `json`.

    Args:
        value: For audio an `Audio`, a pair of samples and sampling rate, or the bytes of a WAV or FLAC file; for arrays
            an array or `Frames`.
        form: Of the field.
        name: Id of the cut.

    Raises:
        ValueError: The value is something else.
        UsageError: The format needs a package that is not installed.
    """
    if form in AUDIO_FORMATS:
        if isinstance(value, bytes | bytearray | memoryview):
            header = audio_header(bytes(value), form)
            return {
                form: value,
                "json": recording_manifest(name, header.sampling_rate, header.channels, header.samples),
            }
        audio = as_audio(value)
        channels, samples = audio.samples.shape
        return {
            form: encode_audio(audio, form),
            "json": recording_manifest(name, audio.sampling_rate, channels, samples),
        }
    if isinstance(value, Frames):
        array = _array(value.values)
        if not 0 <= value.temporal_dim < array.ndim or not value.frame_shift > 0:
            raise ValueError(
                f"expected a dimension of the shape {array.shape} and seconds above 0, found temporal_dim="
                f"{value.temporal_dim}, frame_shift={value.frame_shift}"
            )
        return {"npy": _npy(array), "json": frames_manifest(array.shape, value.frame_shift, value.temporal_dim)}
    array = _array(value)
    return {"npy": _npy(array), "json": array_manifest(array.shape)}


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


def _npy(array: NDArray[Any]) -> bytes:
    target = io.BytesIO()
    np.save(target, array, allow_pickle=False)
    return target.getvalue()
