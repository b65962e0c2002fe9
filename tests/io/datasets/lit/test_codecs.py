"""Codecs: golden bytes, round trips, foreign bytes, and no pickles without a request."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import time
import wave
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.datasets.audio import Audio, encode_audio
from ledgerbeam.io.datasets.lit import CODECS, LitDataset, LitWriter, codecs, decode_rle, register_codec
from ledgerbeam.io.datasets.lit.codecs import decoder_of, encode_rle, encoder_of
from tests.cases import each

INTEGERS = st.sampled_from(["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", ">u2", ">i8"])
GOLDEN_RLE = bytes.fromhex(
    "30 0000000000000010 0000000000000006 0200000000000000 0300000000000000 feff00000700 010200 020103"
)
"""`[[0, 0, 7], [-2, -2, -2]]` in int16, as the published encoder writes it."""


# A value of each codec.
VALUES: dict[str, Any] = {
    "CLS": 7,
    "CSV": [["a", "b,c"], ['say "x"', "two\nlines"], ["", "ü"]],
    "FLAC": Audio(np.linspace(-1, 0.999, 800, dtype=np.float32).reshape(2, 400), 8000),
    "JSON": {"a": [1, 2.5, None, "ü"]},
    "MAT": {"a": np.arange(3)},
    "MP3": Audio(np.sin(np.arange(16_000, dtype=np.float32) / 30)[np.newaxis] / 2, 16_000),
    "MP4": b"\0\0\0\x18ftypisom\0\0\2\0isomiso2",
    "MSGPACK": {"a": [1, 2.5, None, b"\0\xff"], 3: "ü"},
    "NPY": np.arange(6, dtype=">i2").reshape(2, 3),
    "NPZ": {"a": np.arange(6).reshape(2, 3), "b/c": np.zeros((0, 2), np.float32)},
    "PIL": Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)),
    "PKL": {"any": ("thing", 1)},
    "RLE": np.array([[1, 1], [2, 2]], np.int16),
    "SAFETENSORS": {"a": np.arange(6, dtype=np.int32).reshape(2, 3), "b": np.ones(2, np.float16)},
    "SEG8": np.full((2, 3), 250, np.uint8),
    "SEG16": np.full((2, 3), 65_000, np.uint16),
    "SEG24": np.full((2, 3), 2**24 - 1, np.uint32),
    "SEG32": np.full((2, 3), 2**32 - 1, np.uint32),
    "TXT": "one\r\ntwo \u2028 ü",
    "WAV": Audio(np.arange(-400, 400, dtype=np.int16).reshape(2, 400), 8000),
}
NEEDS = {"FLAC": "soundfile", "MAT": "scipy", "MP3": "soundfile", "MSGPACK": "msgpack", "SAFETENSORS": "safetensors"}
LOSES = {"MP3"}
EXTENSIONS = {"PIL": "png"}


def encoded(name: str, value: Any) -> bytes:
    return CODECS[name].encode(value, name.lower())


def assert_same(found: Any, value: Any, tolerance: float = 0.0) -> None:
    if isinstance(value, Audio):
        whole = value.samples.dtype.kind == "i"
        expected = (value.samples / 32768).astype(np.float32) if whole else value.samples
        assert (found.samples.dtype, found.samples.shape) == (np.float32, expected.shape)
        assert (found.sampling_rate, type(found.sampling_rate)) == (value.sampling_rate, int)
        assert np.abs(found.samples - expected).max() <= max(tolerance, 0.0 if whole else 1 / 32768)
    elif isinstance(value, dict) and all(isinstance(part, np.ndarray) for part in value.values()):
        assert {name for name in found if not name.startswith("__")} == set(value)
        for name, part in value.items():
            np.testing.assert_array_equal(np.squeeze(found[name]), np.squeeze(part))
    elif isinstance(value, np.ndarray | Image.Image):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(value))
    else:
        assert found == value


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_value_comes_back(tmp_path: Path, name: str) -> None:
    """Also through a dataset that was pickled, by the extension alone, and in the same bytes each time."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], exc_type=ImportError)
    value, extension = VALUES[name], EXTENSIONS.get(name, name.lower())
    data = CODECS[name].encode(value, extension)
    assert CODECS[name].encode(value, extension) == data
    tolerance = 0.05 if name in LOSES else 0.0
    assert_same(CODECS[name].decode(data), value, tolerance)
    with LitWriter(str(tmp_path)) as writer:
        writer.write({"__key__": "k", f"x.{extension}": value})
    decoders = {f"x.{extension}": name} if name == "PKL" else None
    ((found,),) = pickle.loads(pickle.dumps(LitDataset(str(tmp_path), decoders=decoders)))[:]
    assert_same(found, value, tolerance)


def encode_all() -> dict[str, str]:
    """Return the checksum of a value of each codec, and of an image or a sound in every format of the libraries."""
    image = Image.fromarray(np.arange(75, dtype=np.uint8).reshape(5, 5, 3))
    found = {name: encoded(name, VALUES[name]) for name in VALUES if name != "PIL"}
    sets = [{"a", "bc", "def"}, {"k": frozenset(map(str, range(40)))}, {frozenset("ab")}]
    found["PKL with sets"] = encoded("PKL", sets)
    found["opus"] = encode_audio(VALUES["MP3"], "opus")
    for extension, kind in Image.registered_extensions().items():
        try:
            found[extension] = CODECS["PIL"].encode(image, extension[1:]) if kind in Image.SAVE else b""
        except (OSError, ValueError):  # not of this mode, or without its library
            continue
    return {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def test_the_bytes_depend_on_the_value_alone() -> None:
    """Not on the time, nor on the hash seed of the process."""
    for package in set(NEEDS.values()):
        pytest.importorskip(package, exc_type=ImportError)
    found, start = encode_all(), time.time()
    program = f"import json; from {__name__} import encode_all; print(json.dumps(encode_all()))"
    time.sleep(max(0, 1.1 - (time.time() - start)))
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    other = json.loads(subprocess.check_output([sys.executable, "-c", program], env=environment, text=True))
    assert {name for name in found if other[name] != found[name]} == set()
    assert {".png", ".pdf", ".webp", "opus"} <= set(found)


def test_a_set_comes_back() -> None:
    value = [{"a", "bc"}, frozenset({1, "x", None}), {frozenset("ab")}, set(), {"k": {b"\x8f"}}]
    assert CODECS["PKL"].decode(encoded("PKL", value)) == value


def test_opus_keeps_the_checksums_of_its_pages() -> None:
    soundfile = pytest.importorskip("soundfile")
    sound, plain = np.sin(np.arange(480_000, dtype=np.float32) / 30) / 2, io.BytesIO()  # of many pages
    soundfile.write(plain, sound, 48_000, format="OGG", subtype="OPUS")
    data = encode_audio(Audio(sound[np.newaxis], 48_000), "opus")
    assert data.count(b"OggS") > 5
    for one, other in zip(*(soundfile.read(io.BytesIO(file)) for file in (plain.getvalue(), data)), strict=True):
        np.testing.assert_array_equal(one, other)


@each(
    ("name", "value", "message"),
    [
        ("TXT", b"bytes", "expected a text"),
        ("CSV", [["a", 1]], "convert other values to text"),
        ("CSV", [[]], "expected rows of texts"),
        ("CSV", ["text"], "expected rows of texts"),
        ("NPZ", [np.arange(3)], "expected arrays by name"),
        ("NPZ", {"a": np.array([object()])}, "Object arrays|allow_pickle|object"),
        ("SAFETENSORS", {1: np.arange(3)}, "expected arrays by name"),
        ("WAV", np.zeros(3), r"expected Audio\(samples, sampling_rate\)"),
        ("WAV", (np.zeros(3), 0), "expected a sampling rate"),
        ("WAV", (np.zeros((1, 2, 3)), 8000), "shape"),
        ("WAV", (np.zeros(3, np.int32), 8000), "as floats or int16"),
        ("WAV", (np.array([0.0, np.nan]), 8000), "NaN or infinities"),
        ("MP4", "text", "expected the bytes of an MP4"),
        ("MP4", b"RIFF....WAVE", "expected the header of an MP4"),
    ],
)
def test_what_a_codec_does_not_hold_is_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoded(name, value)


def test_floats_are_clipped_and_rounded_down_as_libsndfile_does() -> None:
    samples = np.array([-2, -1, -0.5 / 32768, 0, 1.5 / 32768, 1, 2], np.float64)
    found = CODECS["WAV"].decode(encoded("WAV", (samples, 8000)))
    assert (found.samples[0] * 32768).tolist() == [-32768, -32768, -1, 0, 1, 32767, 32767]


def test_silence_of_hours_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("soundfile", exc_type=ImportError)
    data = encoded("FLAC", (np.zeros((2, 100_000), np.float32), 8000))
    assert len(data) < 20_000
    monkeypatch.setattr("ledgerbeam.io.datasets.audio.MOST_SAMPLES", 150_000)
    with pytest.raises(ValueError, match="expected at most 150000 samples"):
        CODECS["FLAC"].decode(data)
    monkeypatch.setattr("ledgerbeam.io.datasets.audio._BLOCK", 1000)
    monkeypatch.setattr("ledgerbeam.io.datasets.audio.MOST_SAMPLES", 200_000)
    assert CODECS["FLAC"].decode(data).samples.shape == (2, 100_000)


@pytest.mark.parametrize(("width", "full"), [(1, 2**7), (2, 2**15), (3, 2**23), (4, 2**31)])
def test_wav_of_any_width_is_read(width: int, full: int) -> None:
    values = [-full, -1, 0, 1, full - 1]
    stored = [value + 128 if width == 1 else value for value in values]
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(width)
        file.setframerate(100)
        file.writeframes(b"".join(value.to_bytes(width, "little", signed=width > 1) for value in stored))
    found = CODECS["WAV"].decode(target.getvalue())
    assert found.samples[0].tolist() == [np.float32(value / full) for value in values]


def test_an_archive_of_arrays_is_not_believed() -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", method) as archive:
            archive.writestr("a.npy", encoded("NPY", np.arange(1000)))
        np.testing.assert_array_equal(CODECS["NPZ"].decode(target.getvalue())["a"], np.arange(1000))
    claims = bytearray(target.getvalue())
    at = claims.rindex(b"PK\1\2")
    claims[at + 24 : at + 28] = (2**31).to_bytes(4, "little")
    with pytest.raises(ValueError, match="found arrays of 2147483648"):
        CODECS["NPZ"].decode(bytes(claims))
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.npy", b"")
    with pytest.raises(ValueError, match="expected arrays as NumPy writes them"):
        CODECS["NPZ"].decode(other.getvalue())
    target = io.BytesIO()
    np.savez(target, a=np.arange(3))
    np.testing.assert_array_equal(CODECS["NPZ"].decode(target.getvalue())["a"], np.arange(3))
    with np.load(io.BytesIO(encoded("NPZ", VALUES["NPZ"]))) as found:
        np.testing.assert_array_equal(found["a"], VALUES["NPZ"]["a"])


class TestRegister:
    @pytest.fixture(autouse=True)
    def _alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(codecs, "_codecs", dict(codecs._codecs))

    def test_a_codec_of_the_user_is_used(self, tmp_path: Path) -> None:
        register_codec("POINTS", str.encode, bytes.decode, extensions=("points", "pts"))
        register_codec("POINTS", str.encode, bytes.decode, extensions=("points", "pts"))
        with LitWriter(str(tmp_path)) as writer:
            writer.write({"__key__": "k", "a.points": "x", "b.pts": "y"})
        assert LitDataset(str(tmp_path), modalities=["a.points", "b.pts"])[0] == ("x", "y")
        assert decoder_of("a.xyz", "POINTS", "set")(b"z") == "z"

    def test_the_extension_is_the_name_by_default(self) -> None:
        register_codec("POINTS", str.encode, bytes.decode)
        assert decoder_of("a.points", None, "set")(b"z") == "z"

    @each(
        ("name", "extensions", "message"),
        [
            ("JSON", None, "the name is taken"),
            ("POINTS", ("json",), "JSON has the extension 'json'"),
            ("points", None, "a codec needs a name such as 'POINTS'"),
            ("A B", None, "a codec needs a name"),
            ("POINTS", (".pts",), "expected extensions such as 'points'"),
            ("POINTS", ("PTS",), "expected extensions such as 'points'"),
            ("POINTS", ("",), "expected extensions such as 'points'"),
        ],
    )
    def test_what_changes_another_is_refused(self, name: str, extensions: Any, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            register_codec(name, str.encode, bytes.decode, extensions=extensions)


@settings(deadline=None)
@given(arrays.arrays(INTEGERS, arrays.array_shapes(min_dims=0, max_side=6), elements={"min_value": 0, "max_value": 3}))
def test_rle_keeps_dtype_shape_and_values(array: np.ndarray[Any, Any]) -> None:
    found = decode_rle(encode_rle(array))
    assert found.dtype == array.dtype.newbyteorder("<")
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(("count", "dtype"), [(255, "u1"), (256, "u2"), (65535, "u2"), (65536, "u4")])
def test_runs_are_in_the_smallest_dtype_that_holds_them(count: int, dtype: str) -> None:
    data = encode_rle(np.zeros(count, np.uint8))
    assert len(data) == 17 + 8 + 1 + 2 * np.dtype(dtype).itemsize
    assert len(decode_rle(data)) == count


def test_rle_is_the_bytes_of_the_published_encoder() -> None:
    assert encode_rle(np.array([[0, 0, 7], [-2, -2, -2]], np.int16)) == GOLDEN_RLE


@pytest.mark.parametrize("array", [np.zeros(3, bool), np.zeros(3), np.zeros((0, 2), int), np.array(["a"])])
def test_rle_is_of_integers(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ValueError, match="expected an array of integers that is not empty"):
        encode_rle(array)


def damaged(at: int, new: bytes) -> bytes:
    return GOLDEN_RLE[:at] + new + GOLDEN_RLE[at + len(new) :]


@each(
    ("data", "found"),
    [
        (b"", "at least 17 bytes, found 0"),
        (damaged(0, b"\x80"), "names two dtypes"),
        (damaged(0, b"\x34"), "names two dtypes"),
        (damaged(1, b"\xff"), "a shape and a table that end by byte"),
        (damaged(8, b"\x0f"), "a shape of whole uint64 values"),
        (damaged(16, b"\x05"), "a table of whole int16 values"),
        (GOLDEN_RLE[:-1], "pairs of numbers"),
        (damaged(17, b"\xff" * 8), "at most 268435456 values"),
        (damaged(39, b"\x03"), "in a table of 3 values"),
        (damaged(44, b"\x04"), "runs of 6 values in all"),
        (damaged(16, b"\x00"), "in a table of 0 values"),
    ],
)
def test_what_is_no_rle_is_an_error(data: bytes, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        decode_rle(data)


def test_a_limit_of_values_can_be_raised() -> None:
    data = encode_rle(np.zeros(100, np.uint8))
    with pytest.raises(ValueError, match="at most 99 values"):
        decode_rle(data, 99)
    assert len(decode_rle(data, 100)) == 100


SEGMENTATIONS = {"SEG8": ("u1", 2**8), "SEG16": ("u2", 2**16), "SEG24": ("u4", 2**24), "SEG32": ("u4", 2**32)}


@pytest.mark.parametrize("name", SEGMENTATIONS)
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_labels_are_kept(name: str, data: st.DataObject) -> None:
    dtype, top = SEGMENTATIONS[name]
    shape = arrays.array_shapes(min_dims=2, max_dims=2, max_side=5)
    labels = data.draw(arrays.arrays(dtype, shape, elements={"max_value": top - 1}))
    found = CODECS[name].decode(encoded(name, labels))
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, labels)


def test_the_bytes_of_a_label_are_red_green_blue_alpha() -> None:
    three, four = (Image.open(io.BytesIO(encoded(name, np.array([[0x010203]], "u4")))) for name in ("SEG24", "SEG32"))
    assert (three.mode, three.getpixel((0, 0))) == ("RGB", (1, 2, 3))
    assert (four.mode, four.getpixel((0, 0))) == ("RGBA", (0, 1, 2, 3))


@each(
    ("name", "labels"),
    [
        ("SEG8", np.zeros((2, 2), np.uint16)),
        ("SEG8", np.zeros((2, 2, 2), np.uint8)),
        ("SEG16", np.zeros((0, 2), np.uint16)),
        ("SEG24", np.full((2, 2), 2**24, np.uint32)),
        ("SEG32", np.zeros((2, 2), np.int64)),
    ],
)
def test_labels_that_do_not_fit_are_an_error(name: str, labels: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ValueError, match="expected labels"):
        encoded(name, labels)


def test_a_png_of_other_channels_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a PNG of mode RGB, found L"):
        CODECS["SEG24"].decode(encoded("SEG8", np.zeros((2, 2), np.uint8)))


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_kept(order: Any) -> None:
    for array in (np.arange(6.0).reshape(2, 3, order=order), np.zeros((0, 3), "i2"), np.array(5), np.array(["ab"])):
        found = CODECS["NPY"].decode(encoded("NPY", array))
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
        assert found.flags.writeable


def test_an_array_header_is_not_trusted_and_objects_are_refused() -> None:
    data = encoded("NPY", np.zeros((10, 10), "u1"))
    with pytest.raises(ValueError, match="expected 900000000000 bytes"):
        CODECS["NPY"].decode(data.replace(b"(10, 10), }" + b" " * 12, b"(10, 90000000000), }   "))
    target = io.BytesIO()
    np.save(target, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="one of pickled objects"):
        CODECS["NPY"].decode(target.getvalue())
    with pytest.raises(ValueError, match="allow_pickle"):
        encoded("NPY", np.array([{}], dtype=object))


@given(st.integers())
def test_classes_are_decimal_text(label: int) -> None:
    assert encoded("CLS", label) == str(label).encode()
    assert CODECS["CLS"].decode(encoded("CLS", label)) == label
    assert encoded("CLS", np.int64(7)) == b"7"


def test_images_are_written_in_the_format_of_their_name_or_their_own() -> None:
    pixels = np.arange(75, dtype=np.uint8).reshape(5, 5, 3)
    png = CODECS["PIL"].encode(Image.fromarray(pixels), "png")
    found = CODECS["PIL"].decode(png)
    assert found.format == "PNG"
    np.testing.assert_array_equal(np.asarray(found), pixels)
    assert CODECS["PIL"].encode(found, "jpg")[:4] == png[:4]  # read as PNG, so it stays lossless
    with pytest.raises(ValueError, match="expected a PIL image or encoded bytes, found ndarray"):
        CODECS["PIL"].encode(pixels, "png")


class Malicious:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickles_are_decoded_only_where_asked_for_by_name(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    with LitWriter(f"{tmp_path}/set") as writer:
        writer.write({"__key__": "a", "cls": 1, "state.pkl": pickle.dumps(Malicious(trap))})
    for modalities in (None, ["state.pkl"], ["cls", ".state.pkl"]):
        with pytest.raises(UsageError, match=r"'state.pkl' holds pickles.*'PKL'"):
            LitDataset(f"{tmp_path}/set", modalities=modalities)
    assert LitDataset(f"{tmp_path}/set", modalities=["cls"])[0] == (1,)
    (raw,) = LitDataset(f"{tmp_path}/set", modalities=["state.pkl"], decoders={"state.pkl": bytes})[0]
    assert not trap.exists()
    assert raw.startswith(b"\x80")
    LitDataset(f"{tmp_path}/set", decoders={"state.pkl": "PKL"})[0]
    assert trap.exists()


@pytest.mark.parametrize("name", sorted(set(CODECS) - {"PKL", "MAT"}))
@settings(deadline=None, max_examples=30)
@given(st.binary(max_size=80))
def test_no_codec_unpickles_or_crashes_on_any_bytes(name: str, data: bytes) -> None:
    trap = pickle.dumps(Malicious(Path("/nowhere/at/all")))
    for content in (data, trap):
        try:
            CODECS[name].decode(content)
        except FileNotFoundError:
            raise AssertionError("it was unpickled") from None
        except Exception:  # noqa: BLE001 - the reader names the record
            pass


def test_codecs_go_by_the_last_part_of_a_name() -> None:
    for name in ("cls", "a.b.CLS", "x.cls"):
        assert decoder_of(name, None, "set")(b"12") == 12
    assert encoder_of("a.rle", None, "set")(np.zeros(1, "u1")) == encode_rle(np.zeros(1, "u1"))
    assert encoder_of("a.txt", str.encode, "set")("x") == b"x"
    assert encoder_of("a.txt", "JSON", "set")("x") == b'"x"'


@pytest.mark.parametrize("modality", ["xyz", "pil", "jpg.xyz", "seg9"])
def test_a_modality_without_a_codec_is_an_error_that_says_what_to_pass(modality: str) -> None:
    with pytest.raises(UsageError, match=f"set: no codec knows '{modality}'; .*decoders="):
        decoder_of(modality, None, "set")
    with pytest.raises(UsageError, match=f"set: no codec knows '{modality}'; .*encoders="):
        encoder_of(modality, None, "set")
    with pytest.raises(UsageError, match="set: there is no codec 'SEG9'"):
        decoder_of(modality, "SEG9", "set")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("PIL.Image", "scipy.io", "soundfile", "msgpack", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, module, None)
    extras = {"SEG8": "image", "MAT": "mat", "FLAC": "audio", "MSGPACK": "msgpack", "SAFETENSORS": "safetensors"}
    for name, extra in extras.items():
        with pytest.raises(UsageError, match=rf"pip install .*\[{extra}\]'"):
            CODECS[name].decode(b"")
    with pytest.raises(UsageError, match=r"pip install .*\[audio\]'"):
        encoded("FLAC", VALUES["FLAC"])


def test_values_that_do_not_encode_are_errors_that_name_the_sample(tmp_path: Path) -> None:
    with LitWriter(str(tmp_path)) as writer, pytest.raises(RecordError, match=r"sample 'a': 'x.cls' cannot be encoded"):
        writer.write({"__key__": "a", "x.cls": "seven"})
