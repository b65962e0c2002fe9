"""Manifests as lhotse has them: what a cut says of its payloads, and a cut that is made of its audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def recording_manifest(name: str, sampling_rate: int, channels: int, samples: int) -> dict[str, Any]:
    """Return the manifest of audio that is kept in a shard."""
    numbers = list(range(channels))
    return {
        "id": name,
        "sources": [{"type": "shar", "channels": numbers, "source": ""}],
        "sampling_rate": sampling_rate,
        "num_samples": samples,
        "duration": samples / sampling_rate,
        "channel_ids": numbers,
    }


def array_manifest(shape: Sequence[int]) -> dict[str, Any]:
    """Return the manifest of an array that is kept in a shard."""
    return {"storage_type": "shar", "storage_path": "", "storage_key": "", "shape": list(shape)}


def frames_manifest(shape: Sequence[int], frame_shift: float, temporal_dim: int) -> dict[str, Any]:
    """Return the manifest of an array, kept in a shard, of which one dimension is time."""
    times = {"temporal_dim": temporal_dim, "frame_shift": frame_shift, "start": 0}
    return {"array": array_manifest(shape), **times}


def cut_of_audio(name: str, duration: float, channels: Sequence[int]) -> dict[str, Any]:
    """Return a cut that is as long as its audio, and has all of its channels."""
    several = len(channels) > 1
    return {
        "id": name,
        "start": 0,
        "duration": duration,
        "channel": list(channels) if several else channels[0],
        "supervisions": [],
        "type": "MultiCut" if several else "MonoCut",
    }
