"""A merge of parts equals the dataset of one builder, for any division into parts and any folders."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import (
    ChangedSourceError,
    IndexMismatchError,
    IndexNotFoundError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io.datasets.megatron import (
    MegatronDocuments,
    MegatronReader,
    encode_part,
    merge_megatron,
    write_megatron,
    writer,
)
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.storage.concatenate import concatenated
from ledgerbeam.io.storage.files import delete, read_bytes
from ledgerbeam.io.storage.publish import publish_bytes
from tests.conftest import S3Requests, S3Server
from tests.io.datasets.megatron.content import DTYPES, documents, golden
from tests.io.datasets.megatron.test_format import GOLDEN, MAGIC

Options = dict[str, Any] | None


def texts(count: int, seed: int = 1) -> list[list[list[int]]]:
    """Documents of no to three sequences."""
    chance = np.random.default_rng(seed)
    return [
        [chance.integers(0, 65_000, chance.integers(0, 60)).tolist() for _ in range(chance.integers(0, 4))]
        for _ in range(count)
    ]


def store(prefix: str, content: tuple[bytes, bytes], options: Options = None) -> str:
    publish_bytes(prefix + ".bin", content[0], options)
    publish_bytes(prefix + ".idx", content[1], options)
    return prefix


def load(prefix: str, options: Options = None) -> tuple[bytes, bytes]:
    return read_bytes(prefix + ".bin", options), read_bytes(prefix + ".idx", options)


def store_parts(folder: str, all_texts: Sequence[Any], edges: Sequence[int], options: Options = None) -> list[str]:
    spans = list(zip([0, *edges], [*edges, len(all_texts)], strict=True))
    return [
        store(f"{folder}/part-{start:05d}-{number}", encode_part(all_texts[start:stop], "uint16", eod=3), options)
        for number, (start, stop) in enumerate(spans)
    ]


@pytest.mark.parametrize("edges", [[], [100], [1, 2, 3], [0, 50, 50, 200], list(range(0, 200, 7))])
def test_a_build_is_the_same_in_any_number_of_parts(tmp_path: Path, edges: list[int]) -> None:
    whole = texts(200)
    parts = store_parts(str(tmp_path / "parts"), whole, edges)
    layout = merge_megatron(parts, str(tmp_path / "all"))
    assert load(str(tmp_path / "all")) == encode_part(whole, "uint16", eod=3)
    assert (layout.documents, layout.sequences) == (200, len(MegatronReader(str(tmp_path / "all"))))
    assert sorted(os.listdir(tmp_path)) == ["all.bin", "all.idx", "parts"]


def test_merges_can_be_merged(tmp_path: Path) -> None:
    whole = texts(90)
    parts = store_parts(str(tmp_path), whole, [20, 30, 70])
    merge_megatron(parts[:2], str(tmp_path / "left"))
    merge_megatron(parts[2:], str(tmp_path / "right"))
    merge_megatron([str(tmp_path / "left"), str(tmp_path / "right.idx")], str(tmp_path / "all"))
    assert load(str(tmp_path / "all")) == encode_part(whole, "uint16", eod=3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_dtypes_merge(tmp_path: Path, dtype: str) -> None:
    prefix = str(GOLDEN / f"{dtype}-mixed")
    merge_megatron([prefix, prefix], str(tmp_path / "twice"))
    with write_megatron(str(tmp_path / "built"), dtype) as builder:
        for document in documents(dtype, "mixed") * 2:
            for tokens, _ in document:
                builder.add_item(tokens)
            builder.end_document()
    assert load(str(tmp_path / "twice")) == load(str(tmp_path / "built"))


def test_modes_merge_and_empty_parts_have_every_mode(tmp_path: Path) -> None:
    with write_megatron(str(tmp_path / "none"), "uint16") as builder:
        builder.end_document()
    prefix = str(GOLDEN / "uint16-modes")
    merge_megatron([prefix, str(tmp_path / "none"), prefix], str(tmp_path / "all"))
    modes = MegatronReader(prefix).sequence_modes
    found = MegatronReader(str(tmp_path / "all")).sequence_modes
    assert modes is not None
    assert found is not None
    assert found.tolist() == modes.tolist() * 2


def test_fairseq_merges_with_a_document_for_each_sequence(tmp_path: Path) -> None:
    head = MAGIC + struct.pack("<QBQ", 1, 4, 2)
    arrays = np.array([2, 1], "<i4").tobytes() + np.array([0, 8], "<i8").tobytes()
    prefix = store(str(tmp_path / "fairseq"), (np.array([1, 2, 3], "<i4").tobytes(), head + arrays))
    merge_megatron([prefix, str(GOLDEN / "int32-one")], str(tmp_path / "all"))
    reader = MegatronReader(str(tmp_path / "all"))
    assert reader.document_indices.tolist() == [0, 1, 2, 3]
    assert [tokens.tolist() for tokens in reader[:2]] == [[1, 2], [3]]


def test_what_cannot_be_merged_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    output, absent = str(tmp_path / "out" / "all"), str(tmp_path / "absent")
    one = {name: str(GOLDEN / name) for name, *_ in golden()}
    for parts, target, message in (
        (["int32-mixed", "uint8-mixed"], output, r"uint8-mixed\.idx holds uint8, .*int32-mixed\.idx int32"),
        (["uint16-mixed", "uint16-modes"], output, r"uint16-modes\.idx has modes, .*uint16-mixed\.idx has none"),
        ([], output, "nothing to merge"),
        (["int32-one", "int32-mixed"], one["int32-mixed"] + ".bin", "both a part and the result"),
    ):
        with pytest.raises(UsageError, match=message):
            merge_megatron([one[name] for name in parts], target)
    with pytest.raises(SourceNotFoundError, match=r"absent\.bin"):
        merge_megatron([one["int32-one"], absent], output)
    (tmp_path / "absent.bin").touch()
    with pytest.raises(IndexNotFoundError, match=r"absent\.idx"):
        merge_megatron([one["int32-one"], absent], output)
    assert os.listdir(tmp_path) == ["absent.bin"]


def test_a_bad_part_is_named_and_a_former_result_stays(tmp_path: Path) -> None:
    parts = store_parts(str(tmp_path / "parts"), texts(60), [30])
    output = str(tmp_path / "all")
    merge_megatron(parts[:1], output)
    former = load(output)
    content = bytearray(Path(parts[1] + ".idx").read_bytes())
    content[34:38] = (1).to_bytes(4, "little")  # the first length
    Path(parts[1] + ".idx").write_bytes(content)
    with pytest.raises(IndexMismatchError, match=f"{parts[1]}.idx does not fit .*: expected sequence 1 at byte 2"):
        merge_megatron(parts, output)
    os.unlink(parts[0] + ".bin")
    with pytest.raises(SourceNotFoundError, match=rf"{parts[0]}\.bin"):
        merge_megatron(parts, output)
    assert load(output) == former
    assert sorted(os.listdir(tmp_path)) == ["all.bin", "all.idx", "parts"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("all.idx", b""), ("all.idx", b"MMIDIDX\0\1" + bytes(40)), ("all.bin", b"notes")],
    ids=["empty", "other", "data"],
)
@pytest.mark.parametrize("place", ["disk", "store"])
def test_a_file_of_others_is_named_and_stays(tmp_path: Path, name: str, content: bytes, place: str) -> None:
    parts = store_parts(str(tmp_path / "parts"), texts(60), [30])
    folder = str(tmp_path) if place == "disk" else f"memory://{tmp_path.name}-{name}"
    publish_bytes(f"{folder}/{name}", content)
    with pytest.raises(UsageError, match=rf"{folder}/{name}: expected no file, or .*found another file: move it away"):
        merge_megatron(parts, f"{folder}/all")
    assert read_bytes(f"{folder}/{name}") == content
    delete(f"{folder}/{name}")
    merge_megatron(parts, f"{folder}/all")


def test_a_file_of_others_beside_the_index_of_a_former_result_stays(tmp_path: Path) -> None:
    parts = store_parts(str(tmp_path / "parts"), texts(60), [30])
    output = str(tmp_path / "all")
    merge_megatron(parts[:1], output)
    Path(output + ".bin").write_bytes(b"notes")
    with pytest.raises(UsageError, match=rf"{output}\.bin: expected no file, or .*found another file: move it away"):
        merge_megatron(parts, output)
    assert Path(output + ".bin").read_bytes() == b"notes"


def test_what_a_killed_merge_has_left_is_replaced(tmp_path: Path) -> None:
    parts = store_parts(str(tmp_path / "parts"), texts(60), [30])
    output = str(tmp_path / "all")
    merge_megatron(parts, output)
    whole = load(output)
    os.unlink(output + ".idx")
    merge_megatron(parts, output)
    assert load(output) == whole


def test_what_killed_merges_were_writing_is_removed_by_the_next_one(tmp_path: Path) -> None:
    parts = store_parts(str(tmp_path / "parts"), texts(60), [30])
    name = "n" * 245  # so long that the names of temporary files have not all of it
    kept = [".other.bin.4194305-0.lbtmp", ".n.idx.4194305-0.lbtmp", f".{name}.lbtmp"]
    left = [f".{f'{name}.{end}'[: 254 - len('.4194305-7.lbtmp')]}.4194305-7.lbtmp" for end in ("bin", "idx")]
    for file in {*kept, *left, ".all.bin.4194305-1.lbtmp", ".all.idx.4194305-0.lbtmp"}:
        (tmp_path / file).write_bytes(b"killed")
    merge_megatron(parts, str(tmp_path / "all"))
    merge_megatron(parts, str(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "all.bin", "all.idx", f"{name}.bin", f"{name}.idx", "parts"])


def test_parts_of_another_store_stream(tmp_path: Path) -> None:
    whole = texts(100)
    try:
        parts = store_parts("memory://merge", whole, [10, 60])
        merge_megatron(parts, str(tmp_path / "all"))
        merge_megatron([str(tmp_path / "all")], "memory://merge/back")
        assert load(str(tmp_path / "all")) == load("memory://merge/back") == encode_part(whole, "uint16", eod=3)
    finally:
        filesystem("memory://").rm("/merge", recursive=True)


@pytest.mark.parametrize("name", ["part-1.bin", "part-1.idx"])
def test_a_part_replaced_during_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    parts = [
        store(str(tmp_path / f"part-{number}"), encode_part([[[number, 1, 2]], [[3]]], "uint16")) for number in range(3)
    ]
    output = str(tmp_path / "out" / "all")
    changed = encode_part([[[7]], [[8, 9, 10]]], "uint16")

    @contextlib.contextmanager
    def replaced(*args: Any) -> Iterator[None]:
        (tmp_path / name).write_bytes(changed[name.endswith(".idx")])
        with concatenated(*args):
            yield

    monkeypatch.setattr(writer, "concatenated", replaced)
    with pytest.raises(ChangedSourceError, match=rf"{tmp_path}/{name}: changed since it was listed.*run the job again"):
        merge_megatron(parts, output)
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("how", ["merged", "written"])
def test_a_dataset_of_two_writers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    part = store(str(tmp_path / "part"), encode_part([[[1, 2, 3]], [[4]]], "uint16"))
    output = str(tmp_path / "all")
    other, replace = encode_part([[[7]], [[8, 9, 10]]], "uint16"), os.replace

    def late(source: str, target: str) -> None:
        if target == output + ".idx":  # between the two files of the one come both of the other
            monkeypatch.undo()
            store(output, other)
        replace(source, target)

    def write(output: str) -> None:
        if how == "merged":
            merge_megatron([part], output)
            return
        with write_megatron(output, "uint16") as builder:
            builder.add_document([1, 2, 3], [3])

    monkeypatch.setattr(os, "replace", late)
    with pytest.raises(ChangedSourceError, match=rf"{output}\.bin: another process has written.*write it again"):
        write(output)
    merge_megatron([part], output)
    assert load(output) == load(part)


def test_a_part_of_a_store_replaced_during_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        parts = store_parts("memory://replaced", texts(20), [10])
        join = writer._merged_layout

        def replaced(indexes: Any) -> Any:
            publish_bytes(parts[0] + ".bin", b"other")
            return join(indexes)

        monkeypatch.setattr(writer, "_merged_layout", replaced)
        with pytest.raises(ChangedSourceError, match=r"part-00000-0\.bin: changed since it was listed"):
            merge_megatron(parts, str(tmp_path / "all"))
        assert os.listdir(tmp_path) == []
    finally:
        filesystem("memory://").rm("/replaced", recursive=True)


def test_a_result_that_is_a_part_by_another_name_is_refused(tmp_path: Path) -> None:
    parts = store_parts(str(tmp_path / "parts"), texts(20), [10])
    (tmp_path / "link").symlink_to("parts")
    before = load(parts[0])
    for output in (str(tmp_path / "link" / Path(parts[0]).name), parts[0]):
        with pytest.raises(UsageError, match="both a part and the result; choose another output"):
            merge_megatron(parts, output)
    assert load(parts[0]) == before


@pytest.mark.parametrize("name", ["a.bin", "a.idx"])
def test_a_dataset_whose_prefix_ends_like_a_file_is_named_by_its_file(tmp_path: Path, name: str) -> None:
    store(str(tmp_path / "a"), encode_part([[[1]]], "uint16"))
    store(str(tmp_path / name), encode_part([[[2], [3]]], "uint16"))
    file = str(tmp_path / f"{name}.bin")
    assert [tokens.tolist() for tokens in MegatronReader(file)] == [[2], [3]]
    assert [document.as_json() for document in MegatronDocuments(file)] == [{"tokens": [2, 3], "lengths": [1, 1]}]
    merge_megatron([file, str(tmp_path / "a")], str(tmp_path / "all"))
    assert [tokens.tolist() for tokens in MegatronReader(str(tmp_path / "all"))] == [[2], [3], [1]]


@pytest.mark.s3
def test_s3_joins_the_data_itself(s3: S3Server, s3_requests: S3Requests) -> None:
    bucket = f"s3://{s3.bucket()}"
    chance = np.random.default_rng(3)
    sizes = [3_500_000, 10, 0, 2_000_000, 4_000_000, 7]  # tokens of two bytes; parts of 5 MiB can be copied
    whole = [[chance.integers(0, 60_000, size).astype("u2")] for size in sizes]
    parts = [store(f"{bucket}/part-{i}", encode_part([text], "uint16"), s3.options) for i, text in enumerate(whole)]
    s3_requests.take()
    merge_megatron(parts, f"{bucket}/all", s3.options)
    requests = s3_requests.take()
    assert load(f"{bucket}/all", s3.options) == encode_part(whole, "uint16")
    assert requests.count("upload_part_copy") == 3
    assert requests.count("complete_multipart_upload") == 1


@pytest.mark.s3
def test_small_parts_in_s3_are_put_at_once(s3: S3Server, s3_requests: S3Requests) -> None:
    bucket = f"s3://{s3.bucket()}"
    whole = texts(100)
    parts = store_parts(bucket, whole, [3, 50], s3.options)
    s3_requests.take()
    merge_megatron(parts, f"{bucket}/all", s3.options)
    assert "create_multipart_upload" not in s3_requests.take()
    assert load(f"{bucket}/all", s3.options) == encode_part(whole, "uint16", eod=3)
