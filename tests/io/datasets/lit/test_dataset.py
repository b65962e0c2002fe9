"""LIT datasets: folds, modalities, indexes, mappings, damage, and a dataset of the published package."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import (
    ArchiveError,
    ChangedSourceError,
    IndexMismatchError,
    RecordError,
    SourceError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io import Sample, TarReader
from ledgerbeam.io.datasets.lit import CODECS, LitDataset, LitWriter, read_config, write_lit_index, write_lit_metadata
from ledgerbeam.io.datasets.webdataset import Shard
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.conformance import SequenceConformance, fresh


def sample(number: int) -> dict[str, Any]:
    """Return a sample of five modalities; every third has no `scene.cls`."""
    chance = np.random.default_rng(number)
    found: dict[str, Any] = {
        "__key__": f"d/k{number:04d}",
        "jpg": b"not looked at %d" % number * (number * 17 % 90),
        "semantic.seg16": chance.integers(0, 2**16, (3, 4), dtype=np.uint16),
        "instance.seg8": chance.integers(0, 2**8, (4, 3), dtype=np.uint8),
        "info.json": {"number": number, "text": "ü"},
    }
    if number % 3:
        found["scene.cls"] = number
    return found


def write(folder: Path | str, count: int, size: int = 7, options: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Write a dataset of one fold, `train`, and return its samples."""
    samples = [sample(number) for number in range(count)]
    with LitWriter(str(folder), options, metadata={"classes": 5}, max_samples=size) as writer:
        for one in samples:
            writer.write(one)
    return samples


@pytest.fixture
def root(tmp_path: Path) -> str:
    write(tmp_path / "set", 20)
    return f"{tmp_path}/set"


def numbers(dataset: LitDataset) -> list[int]:
    return [dataset.read_many([i])[0][0]["number"] for i in range(len(dataset))]


def test_items_have_the_modalities_asked_for_in_that_order(root: str, tmp_path: Path) -> None:
    given = write(tmp_path / "again", 20)
    dataset = LitDataset(root, modalities=("info.json", ".semantic.seg16", "instance.seg8"))
    assert dataset.modalities == ("info.json", "semantic.seg16", "instance.seg8")
    assert numbers(dataset) == list(range(20))
    for one, (info, semantic, instance) in zip(given, dataset, strict=True):
        assert info == one["info.json"]
        np.testing.assert_array_equal(semantic, one["semantic.seg16"])
        np.testing.assert_array_equal(instance, one["instance.seg8"])
    assert dataset.key(-1) == "d/k0019"
    assert dataset.metadata == {"classes": 5, "num_train": 20}


def test_samples_are_those_with_all_modalities(root: str) -> None:
    dataset = LitDataset(root, modalities=("info.json", "scene.cls"))
    assert numbers(dataset) == [number for number in range(20) if number % 3]
    everything = LitDataset(root, decoders={"jpg": bytes})
    assert everything.modalities == ("jpg", "semantic.seg16", "instance.seg8", "info.json", "scene.cls")
    assert len(everything) == 13


@pytest.mark.parametrize("modalities", [["absent.cls"], ["jpg", ".absent.cls"], ["absent"], ["cls"], ["JPG"]])
def test_a_modality_that_no_sample_has_is_an_error_that_names_those_there_are(root: str, modalities: list[str]) -> None:
    with pytest.raises(UsageError, match=r"has no modality .*; expected one or more of jpg, semantic"):
        LitDataset(root, modalities=modalities)


def test_modalities_that_no_sample_has_together_are_an_error(tmp_path: Path) -> None:
    with LitWriter(str(tmp_path)) as writer:
        writer.write({"__key__": "a", "txt": "a"})
        writer.write({"__key__": "b", "cls": 1})
        writer.write({"__key__": "c", "cls": 1})
        writer.write({"__key__": "d", "txt": "d"}, fold="val")
    for modalities in (["cls", "txt"], None):
        with pytest.raises(UsageError, match=r"'train' has no sample with all of these modalities: .*cls in 2"):
            LitDataset(str(tmp_path), modalities=modalities)
    with pytest.raises(UsageError, match="'val' has no modality 'cls'; expected one or more of txt"):
        LitDataset(str(tmp_path), "val")
    assert LitDataset(str(tmp_path), "val", ["txt"])[0] == ("d",)


def test_the_layout_is_the_published_one(root: str) -> None:
    assert json.loads(Path(f"{root}/config.json").read_bytes()) == {
        "train": "/train_{0000..0002}.tar",
        "extensions": ["jpg", "semantic.seg16", "instance.seg8", "info.json", "scene.cls"],
        "metadata": {"classes": 5, "num_train": 20},
    }
    index = json.loads(Path(f"{root}/train.idx.json").read_bytes())
    assert list(index) == ["train_0000.tar", "train_0001.tar", "train_0002.tar"]
    assert list(index["train_0001.tar"][".scene.cls"]) == ["d/k0007", "d/k0008", "d/k0010", "d/k0011", "d/k0013"]
    data = Path(f"{root}/train_0001.tar").read_bytes()
    at = index["train_0001.tar"][".scene.cls"]["d/k0010"]
    assert data[at:].startswith(b"d/k0010.scene.cls\0")
    with TarReader(f"{root}/train_0001.tar") as shard:  # which is a WebDataset as well
        assert (len(shard), shard[3].key) == (7, "d/k0010")


def test_without_an_index_the_shards_are_walked_and_the_index_can_be_written(root: str) -> None:
    modalities = ("info.json", "semantic.seg16")
    before = Path(f"{root}/train.idx.json").read_bytes()
    os.unlink(f"{root}/train.idx.json")
    assert numbers(LitDataset(root, modalities=modalities)) == list(range(20))
    assert write_lit_index(root, "train") == 20 * 4 + 13
    assert json.loads(Path(f"{root}/train.idx.json").read_bytes()) == json.loads(before)


@pytest.mark.parametrize("indexed", [True, False])
def test_samples_are_in_the_order_of_the_names_of_shards(tmp_path: Path, indexed: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"extensions": ["cls"], "train": "{c,a,b}.tar"}))
    for name in "abc":
        data, _ = encode_tar([Sample(f"{name}{number}", {"cls": b"1"}) for number in range(2)], group="key")
        (tmp_path / f"{name}.tar").write_bytes(data)
    if indexed:
        write_lit_index(str(tmp_path), "train")
    dataset = LitDataset(str(tmp_path))
    assert [dataset.key(number) for number in range(6)] == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert [info.url for info in dataset.files] == [f"{tmp_path}/{name}.tar" for name in "cab"]
    assert [info.size for info in dataset.files] == [(tmp_path / f"{name}.tar").stat().st_size for name in "cab"]


def test_folds_go_by_name(tmp_path: Path) -> None:
    with LitWriter(str(tmp_path), metadata={"a": 1}) as writer:
        writer.write({"__key__": "a", "cls": 1})
        writer.write({"__key__": "b", "cls": 2, "__fold__": "val"})
        writer.write({"__key__": "c", "cls": 3}, fold="test_2")
        writer.write({"__key__": "d", "cls": 4, "__fold__": "train"})
    assert {fold: list(LitDataset(str(tmp_path), fold)) for fold in ("train", "val", "test_2")} == {
        "train": [(1,), (4,)],
        "val": [(2,)],
        "test_2": [(3,)],
    }
    config = read_config(f"{tmp_path}/config.json")
    assert config.metadata == {"a": 1, "num_train": 2, "num_val": 1, "num_test_2": 1}
    with pytest.raises(UsageError, match="no fold 'test'; it has test_2, train, val"):
        LitDataset(str(tmp_path), "test")


@pytest.mark.parametrize("fold", ["extensions", "metadata", "a/b", "", 3, "a-b"])
def test_a_fold_has_a_name(tmp_path: Path, fold: Any) -> None:
    with LitWriter(str(tmp_path)) as writer, pytest.raises(UsageError, match="expected the name of a fold"):
        writer.write({"__key__": "a", "cls": 1, "__fold__": fold})


def test_mappings_are_applied_in_order(root: str) -> None:
    dataset = LitDataset(root, modalities=("scene.cls", "info.json"))
    same = dataset.map_tuple(lambda label: -label, lambda info: info["number"]).map_all(lambda value: value * 10)
    assert same is dataset
    assert dataset[0] == (-10, 10)
    assert dataset.map(lambda item: item[0] + item[1] + 5)[1] == 5
    with pytest.raises(UsageError, match="a function for each of"):
        dataset.map_tuple(abs)


def test_a_decoder_can_be_given(root: str) -> None:
    dataset = LitDataset(root, modalities=["jpg", "scene.cls"], decoders={".jpg": len, "scene.cls": "JSON"})
    assert dataset[0] == (17 * len("not looked at 1"), 1)
    with pytest.raises(UsageError, match="a decoder for 'png'"):
        LitDataset(root, decoders={"png": bytes})
    with pytest.raises(UsageError, match="at least one modality"):
        LitDataset(root, modalities="cls")


def test_a_batch_is_read_at_once_for_torch(root: str) -> None:
    dataset = LitDataset(root, modalities=["scene.cls"])
    assert dataset.__getitems__([3, 0, 1]) == [dataset[3], dataset[0], dataset[1]]


def test_a_dataset_travels_to_workers(root: str) -> None:
    dataset = LitDataset(root, modalities=["scene.cls", "instance.seg8", "info.json"]).map(len)
    copy = pickle.loads(pickle.dumps(dataset))
    assert list(copy) == [3] * 13


def test_a_body_that_raises_leaves_no_dataset(root: str) -> None:
    writer = LitWriter(root)

    def fail() -> None:
        with writer:
            writer.write({"__key__": "a", "cls": 1})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(SourceNotFoundError, match=r"config\.json"):
        LitDataset(root)


@pytest.mark.parametrize(
    ("sample", "found"),
    [
        ({"cls": 1}, "expected the key of a sample under '__key__', found None"),
        ({"__key__": "a", "cls": 1}, "train_0000.tar: the shard has a sample 'a' already"),
        ({"__key__": "x.y", "cls": 1}, "would be read back as"),
        ({"__key__": "x"}, "has no member"),
        ({"__key__": "\udcff", "cls": 1}, "not UTF-8"),
    ],
)
def test_bad_samples_are_refused_and_others_written(tmp_path: Path, sample: dict[str, Any], found: str) -> None:
    with LitWriter(str(tmp_path), max_samples=2) as writer:
        writer.write({"__key__": "a", "cls": 1})
        with pytest.raises(RecordError, match=found):
            writer.write(sample)
        for key in ("b", "c"):
            writer.write({"__key__": key, "cls": 1})
    dataset = LitDataset(str(tmp_path))
    assert [dataset.key(number) for number in range(3)] == ["a", "b", "c"]


def test_a_key_may_come_again_in_another_shard(tmp_path: Path) -> None:
    with LitWriter(str(tmp_path), max_samples=1) as writer:
        for label in (1, 2):
            writer.write({"__key__": "a", "cls": label})
    assert list(LitDataset(str(tmp_path))) == [(1,), (2,)]


def test_a_fold_whose_samples_were_all_refused_is_none(tmp_path: Path) -> None:
    with LitWriter(str(tmp_path)) as writer, pytest.raises(RecordError):
        writer.write({"__key__": "x.y", "cls": 1})
    assert not read_config(f"{tmp_path}/config.json").folds
    assert os.listdir(tmp_path) == ["config.json"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("{", "bad JSON"),
        ("3", "an object, found int"),
        ("{}", "a list of modalities under 'extensions', found None"),
        ('{"extensions": [1]}', "a list of modalities"),
        ('{"extensions": ["cls"], "metadata": []}', "an object under 'metadata'"),
        ('{"extensions": ["cls"], "train": "/../x.tar"}', "expected shards below the folder"),
        ('{"extensions": ["cls"], "train": "s3://b/x.tar"}', "expected shards below the folder"),
        ('{"extensions": ["cls"], "train": ""}', "expected shards below the folder"),
        ('{"extensions": ["cls"], "train": "{0..99999999}.tar"}', "does not expand"),
    ],
)
def test_a_configuration_that_is_none_is_an_error_that_names_it(tmp_path: Path, content: str, found: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SourceError, match=f"{tmp_path}/config.json: .*{found}"):
        LitDataset(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda index: [], "found 'list'"),
        (lambda index: {}, r"expected the shards \['train_0000.tar'"),
        (lambda index: index | {"x.tar": {}}, "expected the shards"),
        (lambda index: index | {"train_0001.tar": []}, "expected keys by modality for train_0001.tar"),
        (lambda index: index | {"train_0001.tar": {".cls": 3}}, "expected modalities with a leading dot"),
        (lambda index: index | {"train_0001.tar": {"cls": {}}}, "expected modalities with a leading dot"),
        (lambda index: index | {"train_0001.tar": {".cls": {"a": 7}}}, "for 'a.cls' of train_0001.tar, found 7"),
        (lambda index: index | {"train_0001.tar": {".cls": {"a": -512}}}, "found -512"),
        (lambda index: index | {"train_0001.tar": {".cls": {"a": True}}}, "found True"),
        (lambda index: index | {"train_0001.tar": {".cls": {"a": 2**70}}}, "found 1.18"),
    ],
)
def test_an_index_that_is_none_is_an_error_that_names_it(root: str, change: Any, found: str) -> None:
    path = Path(f"{root}/train.idx.json")
    path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    with pytest.raises(IndexMismatchError, match=f"{path}: .*(found bad JSON|{found})"):
        LitDataset(root, modalities=["info.json"])


def test_an_index_of_other_shards_never_gives_a_wrong_member(root: str) -> None:
    path = Path(f"{root}/train.idx.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    keys = index["train_0000.tar"][".info.json"]
    keys["d/k0000"], keys["d/k0001"], keys["d/k0002"] = keys["d/k0001"], keys["d/k0000"] + 512, 10**9 * 512
    path.write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(IndexMismatchError, match=r"train_0000.tar: expected a member at byte 512000000000"):
        LitDataset(root, modalities=["info.json"])
    keys["d/k0002"] = 10240 * 3
    path.write_text(json.dumps(index), encoding="utf-8")
    dataset = LitDataset(root, modalities=["info.json"])
    for number, found in ((0, "tar header at byte|found"), (1, "found 'd/k0001.info.json'")):
        with pytest.raises(IndexMismatchError, match=f"train_0000.tar: expected the member 'd/k000.*{found}"):
            dataset[number]


def test_a_place_inside_another_member_cuts_no_content(root: str) -> None:
    path = Path(f"{root}/train.idx.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    place = index["train_0000.tar"][".jpg"]["d/k0003"] + 512  # where the content of that member begins
    index["train_0000.tar"][".ghost"] = {"d/k0003": place}
    path.write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(IndexMismatchError, match=r"'d/k0003.jpg' at byte .* inside another member"):
        LitDataset(root, modalities=["jpg"], decoders={"jpg": bytes})[3]


def test_a_shard_that_was_cut_is_an_error_on_open_and_on_read(root: str) -> None:
    dataset = LitDataset(root, modalities=["info.json"])
    os.truncate(f"{root}/train_0002.tar", 1000)
    with pytest.raises(ChangedSourceError, match=r"train_0002.tar"):
        dataset[-1]
    os.utime(f"{root}/train.idx.json")
    with pytest.raises(IndexMismatchError, match=r"train_0002.tar: .*found the end of the shard at byte 1000"):
        LitDataset(root)
    os.unlink(f"{root}/train.idx.json")
    with pytest.raises(ArchiveError, match=r"train_0002.tar"):
        LitDataset(root)


def test_a_member_that_does_not_decode_is_named(tmp_path: Path) -> None:
    with LitWriter(str(tmp_path)) as writer:
        writer.write({"__key__": "a", "cls": 1})
        writer.write({"__key__": "b", "cls": b"seven"})
    with pytest.raises(RecordError, match=r"0000.tar: sample 1: the member 'b.cls' at byte 1024 cannot be decoded"):
        LitDataset(str(tmp_path))[1]


def test_two_members_of_one_name_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"extensions": ["cls"], "train": "x.tar"}')
    samples = [Sample(key, {"cls": b"1"}) for key in ("a", "b", "a")]
    (tmp_path / "x.tar").write_bytes(encode_tar(samples, group="key")[0])
    with pytest.raises(ArchiveError, match=r"x.tar: the member 'a.cls' at byte 2048 occurs twice"):
        LitDataset(str(tmp_path))


def test_an_index_that_is_older_than_a_shard_is_refused(root: str) -> None:
    moment = time.time() - 100  # times in the future are not compared
    for path in Path(root).iterdir():
        os.utime(path, (moment, moment))
    shard = Path(f"{root}/train_0001.tar")
    samples = [Sample(f"d/k{number:04d}", {"info.json": b"{}"}) for number in range(7, 40)]
    shard.write_bytes(shard.read_bytes().rstrip(b"\0") + bytes(512) + encode_tar(samples, group="key")[0])
    os.utime(shard, (moment + 10, moment + 10))
    found = "expected a file newer than its source, found one 10.000 s older. Write this index again"
    with pytest.raises(IndexMismatchError, match=f"train.idx.json does not fit .*train_0001.tar: {found}"):
        LitDataset(root, modalities=["info.json"])


def test_a_shard_that_kept_its_time_as_it_was_copied_is_read(root: str) -> None:
    os.utime(f"{root}/train_0001.tar", (1, 1))
    assert numbers(LitDataset(root, modalities=["info.json"])) == list(range(20))


def test_an_index_made_of_a_shard_of_the_future_stays_fit(root: str) -> None:
    moment = time.time() + 100
    os.utime(f"{root}/train_0001.tar", (moment, moment))
    write_lit_index(root, "train")
    assert os.stat(f"{root}/train.idx.json").st_mtime_ns >= os.stat(f"{root}/train_0001.tar").st_mtime_ns
    write_lit_metadata(root, {"train": [Shard(f"train_000{number}.tar", [7, 7, 6][number], 0) for number in range(3)]})
    assert os.stat(f"{root}/train.idx.json").st_mtime_ns >= os.stat(f"{root}/train_0001.tar").st_mtime_ns


@pytest.mark.parametrize("indexed", [True, False])
def test_the_number_of_samples_is_the_one_that_the_configuration_says(root: str, indexed: bool) -> None:
    path, index = Path(f"{root}/config.json"), Path(f"{root}/train.idx.json")
    if indexed:
        index.write_text(json.dumps(json.loads(index.read_bytes()) | {"train_0001.tar": {}}), encoding="utf-8")
    else:
        index.unlink()
        path.write_text(path.read_text(encoding="utf-8").replace("{0000..0002}", "{0000,0002}"), encoding="utf-8")
    found = "config.json: expected 20 samples of 'train', the 'num_train' in its metadata, found 13 in "
    with pytest.raises(IndexMismatchError, match=f"{found}{index if indexed else 'its shards'}. .*write_lit_index"):
        LitDataset(root)
    content = json.loads(path.read_bytes())
    content["metadata"]["num_train"] = "20"  # not said by us
    path.write_text(json.dumps(content), encoding="utf-8")
    assert len(LitDataset(root, modalities=["info.json"])) == 13


@pytest.mark.parametrize("pattern", ["{a/x.tar,b/x.tar}", "{a/x.tar,/a/x.tar}", "{x,x}.tar"])
def test_shards_that_an_index_cannot_tell_apart_are_refused(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"extensions": ["cls"], "train": pattern}))
    for folder in ("a", "b", "."):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "x.tar").write_bytes(encode_tar([Sample("k", {"cls": b"1"})], group="key")[0])
    for use in (LitDataset, lambda root: write_lit_index(root, "train")):
        with pytest.raises(SourceError, match=r"config.json: expected .* differ in their base names, found '.*x"):
            use(str(tmp_path))


class TestLit(SequenceConformance):
    most_pickled = 10**6  # it has the places of all members

    def records(self, count: int) -> list[Any]:
        return [(one["jpg"], one["info.json"]) for one in map(sample, range(count))]

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        root = fresh(folder)
        with LitWriter(root, options, max_samples=30) as writer:
            writer.write({"__key__": "other", "cls": 1})  # has none of the modalities
            for number in range(count):
                writer.write(sample(number))
        return root, self.records(count)

    def open(self, url: str, options: dict[str, Any] | None = None) -> Any:
        return LitDataset(url, modalities=("jpg", "info.json"), decoders={"jpg": bytes}, options=options)

    def files(self, url: str) -> list[str]:
        return [url]

    def opened(self, url: str) -> set[str]:
        return {str(path) for path in Path(url).glob("*.tar")}

    def test_a_source_without_records(self, tmp_path: Path) -> None:
        url, _ = self.store(str(tmp_path), 0)  # which has a sample without these modalities
        with pytest.raises(UsageError, match="no modality 'jpg'; expected one or more of cls"):
            self.open(url)

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        assert not hasattr(self.open(source[0]), "raw")  # the members of an item need not lie together


PUBLISHED = ["scene.cls", "semantic.seg16", "mask.rle", "labels.seg24", "deep.seg32", "flat.seg8", "info.json", "a.npy"]


def expected(number: int) -> list[Any]:
    labels = ((70_000, np.uint32), (2**31, np.uint32), (0, np.uint8))
    return [
        *(number, np.full((2, 3), number * 1000, np.uint16), np.array([[0, 0, 7], [-2, -2, -2]], np.int16) * number),
        *(np.full((2, 2), least + number, dtype) for least, dtype in labels),
        *({"n": number}, np.arange(number + 1)),
    ]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A dataset that litdata 0.1 of the University of Oslo wrote, with NumPy 2 and Pillow 12."""
    with tarfile.open(Path(__file__).resolve().parents[3] / "golden/lit-published.tar.gz") as archive:
        for member in filter(tarfile.TarInfo.isfile, archive):  # Python 3.11.2 has no filters to extract with
            path = tmp_path / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]
            os.utime(path, (member.mtime, member.mtime))
    return tmp_path / "published"


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(("fold", "numbers"), [("train", [0, 1, 2, 3]), ("val", [4])])
def test_a_published_dataset_is_read(published: Path, fold: str, numbers: list[int], indexed: bool) -> None:
    if not indexed:
        (published / f"{fold}.idx.json").unlink()
    dataset = LitDataset(str(published), fold, PUBLISHED)
    assert dataset.metadata == {"classes": 3, "num_train": 4, "num_val": 1}
    for number, item in zip(numbers, dataset, strict=True):
        for found, value in zip(item, expected(number), strict=True):
            np.testing.assert_array_equal(found, value)
            assert getattr(found, "dtype", None) == getattr(value, "dtype", None)
    assert len(LitDataset(str(published), decoders={"state.pkl": "PKL"})) == 1


@pytest.mark.parametrize("fold", ["train", "val"])
def test_our_index_says_what_the_published_one_says(published: Path, fold: str) -> None:
    path = published / f"{fold}.idx.json"
    before = json.loads(path.read_bytes())
    write_lit_index(str(published), fold)
    assert json.loads(path.read_bytes()) == before


def test_members_that_need_no_compression_are_the_same_bytes(published: Path) -> None:
    with tarfile.open(published / "train_0001.tar") as shard:
        for modality, value in zip(PUBLISHED, expected(3), strict=True):
            name = modality.rpartition(".")[2]
            if not name.startswith("seg"):  # a PNG's bytes are zlib's choice
                found: Any = shard.extractfile(f"k3.{modality}")
                assert found.read() == CODECS[name.upper()].encode(value, name), modality
