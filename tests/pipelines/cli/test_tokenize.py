"""`ledgerbeam tokenize` and `merge`: texts and datasets become one Megatron dataset, also after kills and errors."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam._base.extensions import install_command
from ledgerbeam.io.datasets.megatron import MegatronReader, encode_part, write_megatron
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import tasks_done, wait_for

COMMAND = ("tokenize", "in/*.jsonl", "--output", "out/all", "--tokenizer", "bytes", "--ledger", "L")
SMALL = ("--task-bytes", "3000")
SENTENCES = """
import time

def by_dot(text):
    return text.split(".")

def slowly(text):
    time.sleep(0.01)
    return [text]

def wrong(text):
    return text
"""


def texts(name: str, count: int = 150) -> list[str]:
    return [f"{name} {i}: größer" if i % 40 else "" for i in range(count)]


def write_sources(workspace: Workspace) -> list[str]:
    """Write three sources and return their texts in the order of the dataset."""
    (workspace.root / "sentences.py").write_text(SENTENCES)
    for name in "abc":
        workspace.write(f"in/{name}.jsonl", ({"text": text} for text in texts(name)))
    return [text for name in "abc" for text in texts(name)]


def byte_dataset(documents: Iterable[str], eod: int | None = 256) -> dict[str, bytes]:
    data, index = encode_part([[list(text.encode())] for text in documents], np.uint16, eod=eod)
    return {"bin": data, "idx": index}


def dataset(workspace: Workspace, prefix: str = "out/all") -> dict[str, bytes]:
    return {ending: (workspace.root / f"{prefix}.{ending}").read_bytes() for ending in ("bin", "idx")}


def documents(workspace: Workspace, prefix: str = "out/all") -> list[list[list[int]]]:
    with MegatronReader(str(workspace.root / prefix)) as reader:
        reader.verify()
        return [[tokens.tolist() for tokens in reader.document(i)] for i in range(reader.document_count)]


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_each_record_is_a_document_and_the_bytes_are_those_of_one_writer(workspace: Workspace, workers: str) -> None:
    expected = write_sources(workspace)
    ran = workspace.run(*COMMAND, "--task-bytes", "3000", "--workers", workers, "--audit", "100%", "--json", status=0)
    assert dataset(workspace) == byte_dataset(expected)
    found = documents(workspace)
    assert found[0] == []
    assert found[1] == [[*"a 1: größer".encode(), 256]]
    (facts,) = ran.json["datasets"]
    assert facts["prefix"] == str(workspace.root / "out/all")
    assert (facts["documents"], facts["empty_documents"], facts["sequences"]) == (450, 12, 438)
    assert facts["parts"] == ran.json["tasks"]["done"] > 5
    assert json.loads(workspace.run("ledger", "status", "L", "--json").out)["audit"]["tasks"] > 0
    assert facts["tokens"] * 2 == len(dataset(workspace)["bin"])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_a_killed_job_ends_with_the_same_bytes(workspace: Workspace, workers: str) -> None:
    expected = write_sources(workspace)
    command = (*COMMAND, "--task-bytes", "1000", "--workers", workers, "--split-sentences", "sentences:slowly")
    process = workspace.start(*command)
    wait_for(lambda: tasks_done(workspace) > 4, process)
    process.kill()
    process.communicate()
    done = tasks_done(workspace)
    assert not (workspace.root / "out/all.idx").exists()
    ran = workspace.run(*command, "--json", status=0)
    assert ran.json["tasks"]["done"] > done > 0
    assert dataset(workspace) == byte_dataset(expected)


def times(workspace: Workspace) -> dict[str, int]:
    return {name: (workspace.root / "out" / name).stat().st_mtime_ns for name in workspace.files("out")}


@pytest.mark.slow
def test_a_rerun_does_nothing_and_one_changed_source_is_done_again_and_all_merged_anew(workspace: Workspace) -> None:
    write_sources(workspace)
    workspace.run(*COMMAND, *SMALL)
    before = times(workspace)
    ran = workspace.run(*COMMAND, *SMALL, status=0)
    assert f"up to date: {workspace.root}/out/all: 450 documents (12 empty)" in ran.out
    assert "0 tasks" in ran.out
    assert times(workspace) == before

    former = dataset(workspace)
    workspace.write("in/b.jsonl", [{"text": "new"}])
    ran = workspace.run(*COMMAND, *SMALL, "--json", status=0)
    assert ran.json["skipped"] == 2
    expected = byte_dataset([*texts("a"), "new", *texts("c")])
    assert dataset(workspace) == expected != former
    parts = [name for name in workspace.files("out/all.parts") if "b.jsonl" in name]
    assert parts == ["b.jsonl-0000000000.bin", "b.jsonl-0000000000.idx"]


@pytest.mark.slow
def test_a_source_that_is_gone_stays_until_it_is_forgotten(workspace: Workspace) -> None:
    expected = write_sources(workspace)
    workspace.run(*COMMAND, *SMALL)
    (workspace.root / "in/b.jsonl").unlink()
    assert workspace.run(*COMMAND, *SMALL).status == 0
    assert dataset(workspace) == byte_dataset(expected)
    assert workspace.run("ledger", "forget", "L", "*/b.jsonl").status == 0
    workspace.run(*COMMAND, *SMALL, status=0)
    assert dataset(workspace) == byte_dataset([*texts("a"), *texts("c")])


@pytest.mark.slow
def test_dropped_parts_are_made_again_only_when_something_has_changed(workspace: Workspace) -> None:
    write_sources(workspace)
    assert workspace.run(*COMMAND, *SMALL, "--drop-parts").status == 0
    former = dataset(workspace)
    assert sorted(workspace.files("out")) == ["all.bin", "all.idx"]
    again = workspace.run(*COMMAND, *SMALL, "--drop-parts")
    assert "up to date" in again.out
    assert sorted(workspace.files("out")) == ["all.bin", "all.idx"]
    workspace.write("in/b.jsonl", [{"text": "new"}])
    workspace.run(*COMMAND, *SMALL, status=0, err="to be written again from the sources")
    assert dataset(workspace) == byte_dataset([*texts("a"), "new", *texts("c")]) != former


@pytest.mark.slow
def test_a_merge_that_was_cut_short_is_made_again(workspace: Workspace) -> None:
    expected = write_sources(workspace)
    workspace.run(*COMMAND, *SMALL)
    (workspace.root / "out/all.idx").unlink()
    # The files that a killed merge leaves.
    (workspace.root / "L" / "work" / "merged.json").write_text('{"of": null}')
    (workspace.root / "out/.all.bin.99-0.lbtmp").write_bytes(b"half")
    ran = workspace.run(*COMMAND, *SMALL, status=0)
    assert "0 tasks" in ran.out
    assert dataset(workspace) == byte_dataset(expected)
    assert sorted(p.name for p in (workspace.root / "out").iterdir()) == ["all.bin", "all.idx", "all.parts"]


@pytest.mark.slow
def test_a_part_that_is_written_again_after_a_merge_is_merged(workspace: Workspace) -> None:
    """A merged part may have been another file of the same size. `ledger verify` reports it with a remedy."""
    write_sources(workspace)
    assert workspace.run(*COMMAND).status == 0
    right = dataset(workspace)
    part = workspace.root / "out/all.parts/b.jsonl-0000000000.bin"
    whole = part.read_bytes()
    part.write_bytes(whole[::-1])
    ran = workspace.run(*COMMAND)
    assert (ran.status, "up to date" in ran.err + ran.out, dataset(workspace)) == (0, True, right)
    (workspace.root / "out/all.bin").unlink()
    assert workspace.run(*COMMAND).status == 0
    assert dataset(workspace) != right
    told = workspace.run("ledger", "verify", "L")
    assert (told.status, told.out.count("write it again with: ledgerbeam ledger forget L ")) == (1, 1)
    assert workspace.run("ledger", "forget", "L", str(workspace.root / "in/b.jsonl")).status == 0
    ran = workspace.run(*COMMAND)
    assert (ran.status, "parts merged" in ran.err + ran.out, dataset(workspace)) == (0, True, right)
    ran = workspace.run(*COMMAND)
    assert (ran.status, "up to date" in ran.err + ran.out) == (0, True)


@pytest.mark.slow
def test_a_dataset_with_other_bytes_is_found_by_verify_even_without_its_parts(workspace: Workspace) -> None:
    for name in "ab":
        workspace.write(f"in/{name}.jsonl", ({"text": text, "title": name * 9} for text in texts(name)))
    command = (*COMMAND, *SMALL, "--key", "text", "--key", "title", "--drop-parts")
    assert workspace.run(*command).status == 0
    fine = workspace.run("ledger", "verify", "L", "--json", status=0).json
    assert fine == {"outputs": 0, "bytes": 0, "datasets": 2, "metadata": 0, "problems": [], "ok": True}
    for ending in ("bin", "idx"):
        path = workspace.root / f"out/all_title_document.{ending}"
        right = path.read_bytes()
        path.write_bytes(right[:-9] + bytes([right[-9] ^ 1]) + right[-8:])
        assert "up to date" in workspace.run(*command).out
        assert workspace.run("ledger", "verify", "L", "--sizes-only").status == 0
        told = workspace.run("ledger", "verify", "L")
        assert (told.status, told.out.count(f"{path}: ")) == (1, 1)
        assert told.out.endswith("0 outputs, 0 bytes, 2 datasets, 1 problem\n")
        index = path.with_suffix(".idx")
        assert f"to merge the parts again, delete {index} and run the job again" in told.out
        index.unlink()
        assert workspace.run(*command).status == 0
        assert path.read_bytes() == right
        assert workspace.run("ledger", "verify", "L").status == 0


@pytest.mark.slow
def test_a_kill_after_a_merge_leaves_no_note_that_is_out_of_date(workspace: Workspace) -> None:
    expected = write_sources(workspace)
    workspace.run(*COMMAND, *SMALL)
    workspace.write("in/b.jsonl", ({"text": text.replace("b", "x")} for text in texts("b")))
    assert workspace.run(*COMMAND, *SMALL, env={"LEDGERBEAM_FAULT": "merge.after:1"}).status == -9
    assert dataset(workspace) != byte_dataset(expected)
    write_sources(workspace)  # the parts are those of the first run again
    workspace.run(*COMMAND, *SMALL, status=0)
    assert dataset(workspace) == byte_dataset(expected)


def test_several_keys_make_a_dataset_each_named_as_megatron_does(workspace: Workspace) -> None:
    records = [{"text": f"text {i}", "meta": {"title": f"title {i}"}, "a.b": "dotted"} for i in range(90)]
    workspace.write("in/a.jsonl", records)
    workspace.run(*COMMAND, *SMALL, "--key", "text", "--key", "meta.title", "--key", "a.b", "--no-append-eod", status=0)
    assert len(workspace.files("out/all.parts")) > 12
    texts_of = {"text": [f"text {i}" for i in range(90)], "meta.title": [f"title {i}" for i in range(90)]}
    for key, expected in (*texts_of.items(), ("a.b", ["dotted"] * 90)):
        assert dataset(workspace, f"out/all_{key}_document") == byte_dataset(expected, eod=None)


def test_keys_that_end_like_the_name_of_a_part_are_datasets_of_their_own(workspace: Workspace) -> None:
    keys = ("b", "a-0000000000_b", "c-0000000000")
    workspace.write("in/x-0000000000_a.jsonl", [{key: f"{key} {i}" for key in keys} for i in range(9)])
    given = [part for key in keys for part in ("--key", key)]
    workspace.run(*COMMAND, *SMALL, *given, "--no-append-eod", status=0)
    workspace.run("publish", "L", "--as", "megatron", "--output", "again/all", status=0)
    for folder in ("out", "again"):
        for key in keys:
            expected = byte_dataset([f"{key} {i}" for i in range(9)], eod=None)
            assert dataset(workspace, f"{folder}/all_{key}_document") == expected
    assert {*workspace.files("again")} == {f"all_{key}_document.{end}" for key in keys for end in ("bin", "idx")}


@pytest.mark.slow
def test_of_several_keys_none_is_published_if_one_would_replace_another_file(workspace: Workspace) -> None:
    workspace.write("in/a.jsonl", [{"a": f"a {i}", "b": f"b {i}"} for i in range(9)])
    workspace.run(*COMMAND, "--key", "a", "--key", "b", status=0)
    for ending in (".bin", ".idx"):
        (workspace.root / "again").mkdir(exist_ok=True)
        file = workspace.root / f"again/all_b_document{ending}"
        file.write_text("notes")
        ran = workspace.run("publish", "L", "--as", "megatron", "--output", "again/all")
        assert (ran.status, f"{file}: expected no file, or" in ran.err) == (2, True), ran.err
        assert workspace.files("again") == {file.name: b"notes"}
        file.unlink()


def test_sentences_are_the_sequences_of_a_document(workspace: Workspace) -> None:
    (workspace.root / "sentences.py").write_text(SENTENCES)
    workspace.write("in/a.jsonl", [{"text": "ab.c"}, {"text": ["x.y", "z"]}, {"text": "."}])
    workspace.run(*COMMAND, "--split-sentences", "sentences:by_dot", status=0)
    assert documents(workspace) == [[[97, 98], [99, 256]], [[120], [121], [122, 256]], []]


def tokenizer_file(workspace: Workspace, words: Sequence[str] = ("<|endoftext|>", "[UNK]", "one", "two")) -> Path:
    """Write a tokenizer of whole words. By default it pads, cuts, and adds tokens around texts."""
    path = workspace.root / "tokenizer.json"
    wrap = [{"SpecialToken": {"id": "[UNK]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"[UNK]": {"id": "[UNK]", "ids": [1], "tokens": ["[UNK]"]}}
    unknown = {"pad_id": 1, "pad_type_id": 0, "pad_token": "[UNK]"}
    content: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "decoder": None,
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, **unknown},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "TemplateProcessing", "single": wrap, "pair": wrap, "special_tokens": special},
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "[UNK]"},
    }
    path.write_text(json.dumps(content))
    return path


def needs_tokenizers() -> None:
    pytest.importorskip("tokenizers", reason="needs the package tokenizers: pip install 'ledgerbeam[tokenize]'")


WORDS = ("tokenize", "in/*.jsonl", "--output", "out/all", "--tokenizer", "tokenizer.json")


def test_a_tokenizer_file_is_used_without_padding_cutting_and_special_tokens(workspace: Workspace) -> None:
    needs_tokenizers()
    tokenizer_file(workspace)
    workspace.write("in/a.jsonl", [{"text": "one two two two one"}, {"text": "three"}])
    workspace.run(*WORDS, status=0)
    assert documents(workspace) == [[[2, 3, 3, 3, 2, 0]], [[1, 0]]]
    with MegatronReader(str(workspace.root / "out/all")) as reader:
        assert reader.dtype == np.uint16


@pytest.mark.slow
def test_special_tokens_inside_texts_are_text_unless_they_are_kept_and_another_choice_is_another_job(
    workspace: Workspace,
) -> None:
    needs_tokenizers()
    path = tokenizer_file(workspace, ("<|endoftext|>", "[UNK]", "one", "<|", "endoftext", "|>"))
    content = json.loads(path.read_bytes())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content["added_tokens"] = [{"id": 0, "content": "<|endoftext|>", "special": True, **flags}]
    path.write_text(json.dumps(content))
    workspace.write("in/a.jsonl", [{"text": "one<|endoftext|>one"}])
    workspace.run(*WORDS, "--ledger", "L", status=0)
    assert documents(workspace) == [[[2, 3, 4, 5, 2, 0]]]
    kept = (*WORDS, "--ledger", "L", "--special-tokens", "token")
    workspace.run(*kept, status=1, err="special_tokens")
    workspace.run(*kept, "--on-job-change", "restart", status=0)
    assert documents(workspace) == [[[2, 0, 2, 0]]]


@pytest.mark.slow
def test_another_tokenizer_is_another_job(workspace: Workspace) -> None:
    needs_tokenizers()
    tokenizer_file(workspace)
    workspace.write("in/a.jsonl", [{"text": "one"}])
    assert workspace.run(*WORDS, "--ledger", "L").status == 0
    tokenizer_file(workspace, ("<|endoftext|>", "[UNK]", "two", "one"))
    workspace.run(*WORDS, "--ledger", "L", status=1, err="tokenizer")
    workspace.run(*WORDS, "--ledger", "L", "--on-job-change", "restart", status=0)
    assert documents(workspace) == [[[3, 0]]]


@pytest.mark.slow
def test_the_end_of_a_document_is_found_or_named_or_refused(workspace: Workspace) -> None:
    needs_tokenizers()
    tokenizer_file(workspace, ("[UNK]", "stop", "one"))
    workspace.write("in/a.jsonl", [{"text": "one"}])
    workspace.run(*WORDS, status=2, err="--eod TOKEN")
    assert workspace.run(*WORDS, "--eod", "nothing").status == 2
    workspace.run(*WORDS, "--eod", "stop", status=0)
    assert documents(workspace) == [[[2, 1]]]


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"model": {"type": "BPE", "vocab": 3}}'])
def test_a_file_that_is_no_tokenizer_is_refused(workspace: Workspace, content: bytes) -> None:
    needs_tokenizers()
    (workspace.root / "tokenizer.json").write_bytes(content)
    workspace.write("in/a.jsonl", [{"text": "one"}])
    ran = workspace.run(*WORDS, status=2, err="tokenizer.json")
    assert "Traceback" not in ran.err
    assert not (workspace.root / "out").exists()


def test_a_missing_package_or_tokenizer_is_told_with_its_remedy(workspace: Workspace) -> None:
    workspace.write("in/a.jsonl", [{"text": "one"}])
    assert workspace.run(*WORDS).status == 1
    tokenizer_file(workspace)
    (workspace.root / "hidden").mkdir()
    (workspace.root / "hidden" / "tokenizers.py").write_text("raise ImportError('hidden')", encoding="utf-8")
    path = os.pathsep.join(["hidden", workspace.env.get("PYTHONPATH", "")])
    workspace.run(*WORDS, env={"PYTHONPATH": path}, status=2, err=install_command("tokenize"))


@pytest.mark.slow
def test_a_record_without_text_fails_its_task_and_nothing_is_merged(workspace: Workspace) -> None:
    workspace.write("in/a.jsonl", [{"text": "fine"}])
    workspace.write("in/b.jsonl", [{"text": "fine"}, {"body": "x"}])
    workspace.write("in/c.jsonl", [{"text": 3}])
    missing, wrong = "record 1: no field 'text': found a record with 'body'", "record 0: expected text under 'text'"
    workspace.run(*COMMAND, status=3, err=(f"in/b.jsonl, {missing}", f"in/c.jsonl, {wrong}", "not merged"))
    assert not (workspace.root / "out/all.bin").exists()
    workspace.write("in/b.jsonl", [{"text": "fine"}, {"text": "too"}])
    workspace.write("in/c.jsonl", [])
    assert workspace.run(*COMMAND).status == 0
    assert dataset(workspace) == byte_dataset(["fine", "fine", "too"])


@pytest.mark.slow
def test_records_without_text_are_rejected_and_the_others_are_merged(workspace: Workspace) -> None:
    workspace.write("in/a.jsonl", [{"text": "one"}, {"body": "x"}, {"text": "two"}])
    workspace.write("in/b.jsonl", [{"text": 3}])
    with (workspace.root / "in/a.jsonl").open("a") as file:
        file.write("no JSON\n")
    command = (*COMMAND, "--drop-parts")
    workspace.run(*command, "--on-error", "reject:2", status=1, err="expected at most 2 records rejected, found 3")
    workspace.run(*command, "--on-error", "reject", status=0)
    assert dataset(workspace) == byte_dataset(["one", "two"])
    rejects = workspace.files("out/all.parts/_rejects")
    rows = [json.loads(line) for name in sorted(rejects) for line in rejects[name].splitlines()]
    assert [(Path(row["source"]).name, row["record"], row["reason"]) for row in rows] == [
        ("a.jsonl", 1, "RecordError"),
        ("a.jsonl", 3, "not decoded"),
        ("b.jsonl", 0, "RecordError"),
    ]
    records = workspace.run("ledger", "status", "L", "--json").json["records"]
    assert (records["read"], records["kept"], sum(records["rejected"].values())) == (5, 2, 3)
    assert workspace.run("ledger", "verify", "L").status == 0
    again = workspace.run(*command, "--on-error", "reject")
    assert (again.status, "up to date" in again.err + again.out) == (0, True), again.err


def test_a_hook_that_returns_no_list_fails_its_tasks(workspace: Workspace) -> None:
    write_sources(workspace)
    why = "sentences:wrong returned a str: expected a list of texts"
    workspace.run(*COMMAND, "--split-sentences", "sentences:wrong", status=3, err=why)


def test_sources_without_records_make_an_empty_dataset(workspace: Workspace) -> None:
    workspace.write("in/a.jsonl", [])
    workspace.run(*COMMAND, status=0)
    assert documents(workspace) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--dtype", "uint8"), "cannot hold tokens from 0 to 256 of bytes"),
        (("--dtype", "float32"), "cannot hold"),
        (("--dtype", "text"), "is not a dtype"),
        (("--eod", "</s>"), "have no names"),
        (("--eod", "x", "--no-append-eod"), "give one of the two"),
        (("--special-tokens", "token"), "has no special tokens"),
        (("--on-error", "reject:x"), "expected fail, reject"),
        (("--key", "a", "--key", "a"), "expected different names"),
        (("--output", "out/"), "found a folder"),
    ],
)
def test_options_that_mean_nothing_are_refused(workspace: Workspace, options: tuple[str, ...], said: str) -> None:
    workspace.write("in/a.jsonl", [{"text": "x"}])
    workspace.run(*COMMAND, *options, status=2, err=said)
    assert not (workspace.root / "out").exists()


def test_bytes_without_an_end_fit_one_byte(workspace: Workspace) -> None:
    workspace.write("in/a.jsonl", [{"text": "é"}])
    workspace.run(*COMMAND, "--no-append-eod", "--dtype", "uint8", status=0)
    assert (workspace.root / "out/all.bin").read_bytes() == "é".encode()


def test_compressed_sources_are_read(workspace: Workspace) -> None:
    (workspace.root / "in").mkdir()
    (workspace.root / "in/a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "ab"}\n{"text": "c"}\n'))
    ran = workspace.run("tokenize", "in/a.jsonl.gz", "--output", "out/all", "--tokenizer", "bytes", "--no-append-eod")
    assert ran.status == 0, ran.err
    with MegatronReader(str(workspace.root / "out/all")) as reader:
        assert [tokens.tolist() for tokens in reader] == [[97, 98], [99]]


@pytest.fixture
def parts(workspace: Workspace) -> Workspace:
    """Three datasets of one document with one token, the number of the dataset."""
    for number, name in enumerate(("b", "a", "c")):
        with write_megatron(str(workspace.root / f"parts/{name}"), np.uint16) as builder:
            builder.add_document([number])
    return workspace


def tokens(workspace: Workspace, prefix: str) -> list[int]:
    with MegatronReader(str(workspace.root / prefix)) as reader:
        reader.verify()
        return [int(document[0]) for document in reader]


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        (("parts/c", "parts/b.bin", "parts/a.idx"), [2, 0, 1]),
        (("parts/*",), [1, 0, 2]),
        (("parts/{c,a}", "parts/[bc]"), [2, 1, 0, 2]),
    ],
)
def test_prefixes_keep_their_order_and_what_a_pattern_matches_is_sorted(
    parts: Workspace, prefixes: tuple[str, ...], expected: list[int]
) -> None:
    ran = parts.run("merge", *prefixes, "--output", "out/all", "--json", status=0)
    assert tokens(parts, "out/all") == expected
    counts = dict.fromkeys(("merged", "sequences", "documents"), len(expected))
    assert ran.json == {"output": str(parts.root / "out/all"), "dtype": "uint16", **counts}


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "nothing to merge"),
        (("parts/a", "parts/wide"), 2, "one dtype"),
        (("parts/none",), 1, "parts/none.bin"),
        (("parts/none*",), 1, "nothing matches"),
        (("parts/alone",), 1, "no index"),
        (("parts/cut",), 1, "does not fit"),
    ],
)
def test_bad_input_is_an_error_and_leaves_nothing(
    parts: Workspace, arguments: tuple[str, ...], status: int, said: str
) -> None:
    with write_megatron(str(parts.root / "parts/wide"), np.int32) as builder:
        builder.add_document([1])
    (parts.root / "parts/alone.bin").write_bytes(b"ab")
    (parts.root / "parts/cut.bin").write_bytes(b"a")
    (parts.root / "parts/cut.idx").write_bytes((parts.root / "parts/a.idx").read_bytes())
    ran = parts.run("merge", *arguments, "--output", "out/all", status=status, err=said)
    assert "Traceback" not in ran.err
    assert not parts.files("out")


def test_a_line_says_what_was_made_and_a_result_among_the_parts_is_refused(parts: Workspace) -> None:
    ran = parts.run("merge", "parts/a", "--output", "out/all", "parts/b")
    assert ran.out == f"2 datasets merged -> {parts.root}/out/all: 2 documents, 2 sequences, uint16\n"
    parts.run("merge", "parts/*", "--output", "parts/a", status=2, err="both a part and the result")
    assert tokens(parts, "parts/a") == [1]


def test_a_pattern_names_the_files_that_it_matches_whatever_their_prefixes_end_with(parts: Workspace) -> None:
    for number, name in enumerate(("a.bin", "a.idx"), 7):
        data, index = encode_part([[[number]]], np.uint16)
        (parts.root / f"parts/{name}.bin").write_bytes(data)
        (parts.root / f"parts/{name}.idx").write_bytes(index)
    parts.run("merge", "parts/a*", "parts/a.idx.bin", "--output", "out/all", status=0)
    assert tokens(parts, "out/all") == [1, 7, 8, 8]
