"""Cuts of lhotse as the mappings that `SharWriter` writes, by the methods that lhotse's own writer calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io.datasets.audio import AUDIO_FORMATS, Audio
from ledgerbeam.io.datasets.shar.payloads import FieldForm, Frames, kind_of

_TYPES = ("MonoCut", "MultiCut")


def cut_mapping(cut: Any, forms: Mapping[str, FieldForm], number: int) -> Any:
    """Return a cut as a mapping; what is a mapping, or no cut, is returned as it is.

    The audio and arrays of its fields are those of the cut alone, so it begins at 0, as lhotse writes it.

    Args:
        cut: A mapping, or a cut of lhotse.
        forms: The form of each field.
        number: Of the cut, for messages.

    Raises:
        RecordError: It is a cut of another type, or a field cannot be taken from it.
    """
    if isinstance(cut, Mapping) or not callable(getattr(cut, "to_dict", None)):
        return cut
    row = dict(cut.to_dict())
    place = f"cut {number} ({row.get('id')!r})"
    if row.get("type") not in _TYPES:
        raise RecordError(f"{place}: expected a {' or '.join(_TYPES)}, found {type(cut).__name__}; split it into these")
    custom = dict(row.pop("custom", None) or {})
    for field, form in forms.items():
        if kind_of(form) == "jsonl":
            continue
        manifest = getattr(cut, "recording", None) if field == "recording" else (cut.custom or {}).get(field)
        row.pop(field, None)
        custom.pop(field, None)
        if manifest is not None:
            row[field] = _payload(cut, field, form, manifest, place)
    return {**row, "start": 0, **({"custom": custom} if custom else {})}


def _payload(cut: Any, field: str, form: FieldForm, manifest: Any, place: str) -> Any:
    if form in AUDIO_FORMATS:
        samples = cut.load_audio() if field == "recording" else cut.load_custom(field)
        return Audio(samples, manifest.sampling_rate)
    if form != "numpy":
        raise RecordError(f"{place}: field {field!r}: expected its form to be that of audio or numpy, found {form!r}")
    values = cut.load_custom(field)
    shift = getattr(manifest, "frame_shift", None)
    return values if shift is None else Frames(values, shift, manifest.temporal_dim)
