"""Cuts with fields for the tests of Shar."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np

from ledgerbeam.io import Sample

RATE = 8000


def wav(number: int, channels: int = 1) -> bytes:
    """Return a short WAV whose length and content depend on the number."""
    content = io.BytesIO()
    samples = np.random.default_rng(number).integers(-9000, 9000, (800 + 8 * number) * channels, dtype=np.int16)
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    return content.getvalue()


def flac(rate: int, channels: int, samples: int) -> bytes:
    """Return the header of a FLAC."""
    packed = rate << 44 | (channels - 1) << 41 | 15 << 36 | samples
    return b"fLaC\x80\0\0\x22" + bytes(10) + packed.to_bytes(8) + bytes(16)


def npy(number: int) -> bytes:
    """Return a vector whose length depends on the number."""
    content = io.BytesIO()
    np.save(content, np.arange(2 + number, dtype=np.float32))
    return content.getvalue()


def recording(number: int) -> dict[str, Any]:
    """Return the manifest of `wav(number)`."""
    samples = 800 + 8 * number
    return {
        "id": f"rec-{number}",
        "sources": [{"type": "shar", "channels": [0], "source": ""}],
        "sampling_rate": RATE,
        "num_samples": samples,
        "duration": samples / RATE,
        "channel_ids": [0],
    }


def cut(number: int, name: str | None = None) -> dict[str, Any]:
    """Return a cut with a recording, a vector in two of three, and a label in four of five."""
    made = {
        "id": name or f"cut-{number:03d}",
        "start": 0,
        "duration": (800 + 8 * number) / RATE,
        "channel": 0,
        "type": "MonoCut",
        "supervisions": [],
        "recording": {"wav": wav(number), "json": recording(number)},
    }
    if number % 3 != 2:
        shape = {"storage_type": "shar", "storage_path": "", "storage_key": "", "shape": [2 + number]}
        made["embedding"] = {"npy": npy(number), "json": shape}
    if number % 5 != 4:
        made["label"] = f"label-{number}"
    return made


def sample(number: int) -> Sample:
    """Return what `convert` makes such a cut of, with a text."""
    members = {"wav": wav(number), "txt": f"text {number} ü".encode(), "cls": b"%d" % number}
    if number % 3 != 2:
        members["vector.npy"] = npy(number)
    return Sample(f"clip-{number:03d}", members)
