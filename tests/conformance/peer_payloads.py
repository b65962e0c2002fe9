"""Payloads that need packages of the peers: audio by soundfile, MessagePack; runs in the peers' environment."""

from __future__ import annotations

import hashlib
import importlib
import io
from typing import Any

import numpy as np
from lhotse import CutSet
from lhotse.audio.backend import LibsndfileBackend

from benchmarks.serve import serve
from ledgerbeam.io.datasets.audio import Audio, encode_audio
from ledgerbeam.io.datasets.lit import CODECS
from ledgerbeam.io.datasets.shar.payloads import Frames
from ledgerbeam.io.datasets.shar.writer import SharWriter

AUDIO = {"recording": "wav", "lossless": "flac", "small": "mp3", "tiny": "opus"}
FIELDS: dict[str, Any] = {**AUDIO, "vector": "numpy", "track": "numpy", "label": "jsonl"}
RATE = 16_000


def tone(number: int, channels: int = 1) -> Audio:
    times = np.arange(RATE + 160 * number, dtype=np.float32) / RATE
    return Audio(np.stack([np.sin(times * 400 * (number + 1 + at)) / 2 for at in range(channels)]), RATE)


def shar(folder: str, count: int) -> list[dict[str, Any]]:
    """Write cuts from arrays, and return the cuts that lhotse reads by index, and its values of each field."""
    with SharWriter(folder, FIELDS, shard_size=3) as writer:
        for number in range(count):
            cut: dict[str, Any] = {"id": f"cut-{number}", "label": f"label-{number}"}
            cut |= {field: tone(number) for field in AUDIO} | {"recording": tone(number, 1 + number % 2)}
            if number % 3:
                cut["vector"] = np.arange(number, dtype=np.int16)
                cut["track"] = Frames(np.full((100, 4), number, np.float32), 0.01)
            writer.write(cut)
    found = []
    for number, read in enumerate(CutSet.from_shar(in_dir=folder, indexed=True)):
        expected, heard = tone(number, 1 + number % 2).samples, read.load_audio()
        found.append(
            {
                "id": read.id,
                "type": type(read).__name__,
                "duration": read.duration,
                "label": read.label,
                "same": bool(expected.shape == heard.shape and np.abs(expected - heard).max() <= 1 / 32768),
                "custom": [_near(tone(number).samples, read.load_custom(name)) for name in [*AUDIO][1:]],
                "vector": read.load_vector().tolist() if read.has_custom("vector") else None,
                "track": read.load_track()[:, 0].tolist()[:2] if read.has_custom("track") else None,
                "frames": read.track.num_frames if read.has_custom("track") else None,
            }
        )
    return found


def wav_bytes() -> list[list[str]]:
    """Return digests of our WAV files and of those that lhotse writes of the same samples."""
    chance = np.random.default_rng(0)
    samples: list[Any] = [
        chance.uniform(-1.3, 1.3, (1, 5000)).astype(np.float32),
        chance.uniform(-1, 1, (3, 777)).astype(np.float64),
        chance.integers(-(2**15), 2**15, (2, 1000)).astype(np.int16),
    ]
    found = []
    for array in samples:
        target = io.BytesIO()
        LibsndfileBackend().save_audio(target, array, RATE, format="wav")
        pair = (encode_audio(Audio(array, RATE), "wav"), target.getvalue())
        found.append([hashlib.sha256(data).hexdigest() for data in pair])
    return found


def codecs() -> dict[str, Any]:
    """Return decoded values of codecs that need packages, and the values that webdataset decodes from their bytes."""
    audio = tone(0, 2)
    message = {"a": [1, 2.5, None, "ü"], "b": {"c": True}}
    data = {
        "msgpack": CODECS["MSGPACK"].encode(message, "msgpack"),
        "txt": CODECS["TXT"].encode("one\r\ntwo ü", "txt"),
        "npz": CODECS["NPZ"].encode({"a": np.arange(3)}, "npz"),
    }
    theirs = importlib.import_module("webdataset.autodecode").basichandlers
    flac = CODECS["FLAC"].encode(audio, "flac")
    return {
        "flac": _near(audio.samples, CODECS["FLAC"].decode(flac).samples),
        "same flac": CODECS["FLAC"].encode(audio, "flac") == flac,
        "mp3": _near(audio.samples, CODECS["MP3"].decode(CODECS["MP3"].encode(audio, "mp3")).samples),
        "msgpack": CODECS["MSGPACK"].decode(data["msgpack"]) == message,
        "webdataset txt": theirs("txt", data["txt"]) == "one\r\ntwo ü",
        "webdataset msgpack": theirs("mp", data["msgpack"]) == message,
        "webdataset npz": theirs("npz", data["npz"])["a"].tolist(),
        "float wav": _near(audio.samples, CODECS["WAV"].decode(_float_wav(audio)).samples),
        "no mp3": _error(lambda: encode_audio(Audio(audio.samples, 7), "mp3")),
        "no audio": _error(lambda: CODECS["MP3"].decode(b"nothing at all")),
    }


def _float_wav(audio: Audio) -> bytes:
    target = io.BytesIO()
    importlib.import_module("soundfile").write(target, audio.samples.T, RATE, format="WAV", subtype="FLOAT")
    return target.getvalue()


def _near(expected: Any, found: Any) -> float:
    """Return the mean distance of samples, of the part that both have; lossy formats pad."""
    length = min(expected.shape[-1], found.shape[-1])
    return float(np.abs(np.atleast_2d(expected)[:, :length] - np.atleast_2d(found)[:, :length]).mean())


def _error(work: Any) -> str:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the test says which is expected
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    serve({work.__name__: work for work in (shar, wav_bytes, codecs)})
