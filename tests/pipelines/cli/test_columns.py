"""Columns beside records, and the records that they select: the same records as those of a filter, from any format."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import ledgerbeam
from ledgerbeam.io.listing.left_out import MARKS_FOLDER
from ledgerbeam.io.warc import record_bytes
from ledgerbeam.iterators import Records
from ledgerbeam.sources.columns import CATALOG
from tests.io.warc.content import page
from tests.pipelines.conftest import Workspace

COUNT = 400
SCORING = """
from ledgerbeam import Drop, Reject

def number_of(record):
    if hasattr(record, "key"):
        return int(record.key)
    if "payload" in record:
        return int(record["url"].rpartition("/")[2])
    return record["n"] if "n" in record else len(record["tokens"])

def score(record):
    n = number_of(record)
    if n % 10 == 3:
        return None
    if n % 10 == 4:
        return Drop("four")
    if n % 100 == 5:
        raise ValueError(n)
    return {"n": n, "share": n / 400, "lang": "en" if n % 2 else "de"}

def doubled(record):
    return {**record, "n": 2 * record["n"]}

def few(batch):
    return [n is not None and n < 20 for n in batch["n"].to_pylist()]

def kept(record):
    return record if number_of(record) % 7 == 0 and "n" not in record else None
"""


@pytest.fixture
def texts(workspace: Workspace) -> Workspace:
    (workspace.root / "scoring.py").write_text(SCORING)
    (workspace.root / "in").mkdir()
    for ordinal in range(2):
        lines = []
        for n in range(ordinal * COUNT // 2, (ordinal + 1) * COUNT // 2):
            lines.append(json.dumps({"n": n, "text": f"text {n} " * (n % 30)}) + "\n")
            lines += ["\n"] * (n % 50 == 7)
        (workspace.root / "in" / f"{ordinal}.jsonl").write_text("".join(lines))
    return workspace


def annotate(*more: str, sources: str = "in/*.jsonl", output: str = "scores") -> tuple[str, ...]:
    words = ("annotate", "scoring:score", sources, "--output", output, "--ledger", f"{output}-ledger")
    return (*words, "--task-bytes", "8K", "--on-error", "reject", *more)


def select(where: str, *more: str, sources: str = "in/*.jsonl", to: str = "jsonl") -> tuple[str, ...]:
    words = ("select", sources, "--with", "scores", "--where", where, "--output", "out", "--to", to)
    return (*words, "--ledger", "out-ledger", *more)


def annotated(n: int) -> bool:
    return n % 10 not in (3, 4) and n % 100 != 5


def lines_of(workspace: Workspace, condition: Any) -> list[str]:
    paths = sorted((workspace.root / "in").glob("*.jsonl"))
    lines = [line for path in paths for line in path.read_text().splitlines(keepends=True) if line.strip()]
    return [line for line in lines if condition(json.loads(line)["n"])]


def out_lines(workspace: Workspace) -> list[str]:
    paths = sorted((workspace.root / "out").glob("*.jsonl"))
    return [line for path in paths for line in path.read_text().splitlines(keepends=True)]


def test_selected_records_keep_their_bytes(texts: Workspace) -> None:
    ran = texts.succeed(*annotate("--json")).json
    assert ran["records"]["rejected"] == {"ValueError": 4}
    assert ran["records"]["dropped"] == {"four": 40, "returned nothing": 40}
    done = texts.succeed(*select("share > 0.5 AND lang = 'en'", "--json")).json
    assert out_lines(texts) == lines_of(texts, lambda n: annotated(n) and n > 200 and n % 2)
    assert done["records"]["read"] == done["records"]["kept"] == len(out_lines(texts))
    again = texts.succeed(*select("share > 0.5 AND lang = 'en'", "--json")).json
    assert again["skipped"] == 2


def test_each_record_has_a_row_and_each_file_names_its_source(texts: Workspace) -> None:
    texts.succeed(*annotate())
    for ordinal in range(2):
        source = texts.root / "in" / f"{ordinal}.jsonl"
        files = sorted((texts.root / "scores").glob(f"{ordinal}.jsonl-*.parquet"))
        assert len(files) > 1
        rows: list[Any] = []
        for path in files:
            facts = json.loads(pq.read_schema(path).metadata[b"ledgerbeam.columns"])
            assert facts["source"] == str(source)
            assert (facts["size"], facts["first"]) == (source.stat().st_size, len(rows))
            rows += pq.read_table(path)["n"].to_pylist()
            assert facts["first"] + facts["records"] == len(rows)
        lines = source.read_text().splitlines()
        numbers = [json.loads(line)["n"] if line else None for line in lines]
        assert rows == [n if n is not None and annotated(n) else None for n in numbers]


def test_annotations_of_several_folders_add_up(texts: Workspace) -> None:
    texts.succeed(*annotate())
    (texts.root / "more.py").write_text("def length(record):\n    return {'length': len(record['text'])}\n")
    texts.succeed("annotate", "more:length", "in/*.jsonl", "--output", "lengths", "--ledger", "lengths-ledger")
    texts.succeed(*select("n < 100 and Length > 90", "--with", "lengths"))
    assert out_lines(texts) == lines_of(texts, lambda n: annotated(n) and n < 100 and len(f"text {n} " * (n % 30)) > 90)
    shown = texts.succeed("show", "in/0.jsonl", "1", "3", "--with", "scores", "--with", "lengths", "--json").json
    assert [row["columns"] for row in shown["records"]] == [
        {"n": 1, "share": 0.0025, "lang": "en", "length": 7},
        {"n": None, "share": None, "lang": None, "length": 21},
    ]
    texts.succeed(*annotate(output="others"))
    texts.run(*select("n > 1", "--with", "others"), status=2, err="both have a column")


def test_columns_of_another_version_of_a_source_are_refused(texts: Workspace) -> None:
    texts.succeed(*annotate())
    texts.succeed(*select("n < 30"))
    changed = texts.root / "in" / "1.jsonl"
    was = changed.stat().st_mtime_ns
    changed.write_text(changed.read_text() + '{"n": 7, "text": "new"}\n')
    err = (f"version {was}", f"version {changed.stat().st_mtime_ns}", "annotate")
    texts.run(*select("n < 30"), status=1, err=err)
    repaired = texts.succeed(*annotate("--json")).json
    assert repaired["skipped"] == 1
    texts.succeed(*select("n < 30"))
    assert out_lines(texts) == lines_of(texts, lambda n: annotated(n) and n < 30)


def test_another_function_of_columns_selects_again(texts: Workspace) -> None:
    texts.succeed(*annotate())
    texts.succeed(*select("n < 30"))
    (texts.root / "scoring.py").write_text(SCORING.replace('{"n": n,', '{"n": 2 * n,'))
    texts.succeed(*annotate("--on-job-change", "restart"))
    assert "indexing it again" not in texts.succeed(*select("n < 30")).err, "only the columns have changed"
    assert out_lines(texts) == lines_of(texts, lambda n: annotated(n) and 2 * n < 30)
    index = texts.root / "in" / "0.jsonl.idx"
    ends = index.read_bytes()
    index.write_bytes(ends[:8] + ends[16:])
    texts.run(*select("n < 31", "--on-job-change", "restart"), status=3, err="rows of columns, found 203")


def test_jobs_read_selected_records_alone(texts: Workspace) -> None:
    texts.succeed(*annotate())
    words = ("--with", "scores", "--where", "scoring:few", "--to", "jsonl", "--output")
    expected = [n for n in range(20) if annotated(n)]
    texts.succeed("map", "scoring:doubled", "in/*.jsonl", *words, "mapped")
    assert [row["n"] for row in texts.records("mapped")] == [2 * n for n in expected]
    texts.succeed("sort", "in/*.jsonl", "--by", "n", "--descending", *words, "sorted")
    assert [row["n"] for row in texts.records("sorted")] == expected[::-1]
    sampled = texts.succeed("map", "scoring:doubled", "in/*.jsonl", *words, "other", "--sample", "9", "--json").json
    assert {run["results"][""][0]["n"] for run in sampled["sample"]} <= {2 * n for n in expected}


def test_a_dry_run_says_what_a_condition_selects(texts: Workspace) -> None:
    texts.succeed(*annotate())
    found = texts.succeed(*select("n < 100", "--dry-run", "--json")).json["selected"]
    expected = [n for n in range(100) if annotated(n)]
    assert found["records"] == len(expected)
    assert found["of_records"] == sum(
        len(path.read_text().splitlines()) for path in (texts.root / "in").glob("*.jsonl")
    )
    assert found["ranges"] == sum(n - 1 not in expected or n % 50 == 8 for n in expected)
    assert 0 < found["bytes"] < found["of_bytes"]


BAD = [
    ("random() < share", 2, "random depends on more than"),
    ("now() > '2020-01-01'", 2, "depends on more than"),
    ("n > (SELECT 3)", 2, "subquery"),
    ("row_number() OVER () > 3", 2, "window function"),
    ("sum(n) > 3", 2, "depends on more than"),
    ("unknown > 3", 2, "no column 'unknown'; the columns are lang, n, share"),
    ("n > ", 2, "expected a condition"),
    ("n > 3; SELECT 1", 2, "expected a condition"),
    ("wavg(n, n) > 3", 2, "depends on more than"),
    ("generate_subscripts([n], 1) > 3", 2, "depends on more than"),
    ("true", 2, "names no column"),
    ("n + 1", 3, "found a value of type"),
    ("scoring:missing", 1, "missing"),
]


@pytest.mark.parametrize(("where", "status", "err"), BAD)
def test_what_is_no_condition_of_a_record_is_refused(texts: Workspace, where: str, status: int, err: str) -> None:
    texts.succeed(*annotate())
    texts.run(*select(where), status=status, err=err)


def test_lines_of_text_and_documents_of_megatron_are_selected(texts: Workspace) -> None:
    (texts.root / "lines.txt").write_text("a 1\nbb 22\n\nccc 333\n")
    (texts.root / "sizes.py").write_text(
        "def size(record):\n    return {'size': len(getattr(record, 'tokens', record))}\n\n"
        "def same(record):\n    return {'same': [str(one) for one in getattr(record, 'tokens', record)]}\n"
    )
    texts.succeed("annotate", "sizes:size", "lines.txt", "--output", "sizes")
    words = ("--with", "sizes", "--where", "size > 3", "--to", "jsonl")
    texts.succeed("map", "sizes:same", "lines.txt", *words, "--output", "mapped")
    assert ["".join(row["same"]) for row in texts.records("mapped")] == ["bb 22", "ccc 333"]
    texts.succeed("tokenize", "in/0.jsonl", "--tokenizer", "bytes", "--output", "tokens")
    texts.succeed("annotate", "sizes:size", "tokens.bin", "--output", "lengths")
    words = ("--with", "lengths", "--where", "size > 200", "--to", "jsonl")
    texts.succeed("map", "sizes:same", "tokens.bin", *words, "--output", "documents")
    assert texts.records("documents")
    assert all(len(row["same"]) > 200 for row in texts.records("documents"))


def test_a_task_without_results_has_a_row_for_each_record(texts: Workspace) -> None:
    (texts.root / "in" / "2.jsonl").write_text("\n" * 5)
    texts.succeed(*annotate())
    (texts.root / "dropping.py").write_text(
        "from ledgerbeam import Rows\n"
        "def small(batch):\n"
        "    large = [n >= 150 for n in batch['n'].to_pylist()]\n"
        "    return Rows(batch.select(['n']), drop={'large': large})\n"
    )
    small = ("annotate", "dropping:small", "in/0.jsonl", "--as", "arrow", "--output", "small", "--task-bytes", "4K")
    texts.succeed(*small)
    texts.succeed("select", "in/0.jsonl", "--with", "small", "--where", "n < 3", "--to", "jsonl", "--output", "out")
    assert [json.loads(line)["n"] for line in out_lines(texts)] == [0, 1, 2]


def test_a_column_file_that_is_written_again_is_read_again(texts: Workspace) -> None:
    texts.succeed(*annotate())
    catalog = (texts.root / "scores" / CATALOG).read_bytes()
    next((texts.root / "scores").glob("0.jsonl-*.parquet")).unlink()
    texts.succeed(*annotate())
    assert (texts.root / "scores" / CATALOG).read_bytes() == catalog
    texts.succeed(*select("n < 30"))
    assert out_lines(texts) == lines_of(texts, lambda n: annotated(n) and n < 30)


def test_a_copy_of_columns_is_compared_before_it_is_used(texts: Workspace) -> None:
    texts.succeed(*annotate(output="first"))
    copy = texts.root / "scores"
    shutil.copytree(texts.root / "first", copy, copy_function=shutil.copyfile)
    texts.succeed(*select("n < 30"))
    assert out_lines(texts) == lines_of(texts, lambda n: annotated(n) and n < 30)
    path = next(copy.glob("0.jsonl-*.parquet"))
    path.write_bytes(path.read_bytes().replace(b"ledgerbeam", b"LEDGERbeam"))
    texts.run(*select("n < 31", "--on-job-change", "restart"), status=3, err="expected the content recorded by")
    with pytest.raises(ledgerbeam.errors.ChangedSourceError, match="expected the content recorded by"):
        len(ledgerbeam.open(str(texts.root / "in" / "0.jsonl"), with_=str(copy), where="n < 30"))  # type: ignore[arg-type]


def test_names_that_differ_in_case_need_a_function(texts: Workspace) -> None:
    (texts.root / "cases.py").write_text("def cases(record):\n    return {'A': record['n'], 'a': -record['n']}\n")
    texts.succeed("annotate", "cases:cases", "in/*.jsonl", "--output", "scores")
    texts.run(*select('"A" > 5'), status=2, err="cannot tell the columns 'A' and 'a' apart")


def test_null_of_a_column_of_any_type_is_null(texts: Workspace) -> None:
    (texts.root / "late.py").write_text("def late(record):\n    return {'n': record['n'], 'd': None}\n")
    texts.succeed("annotate", "late:late", "in/*.jsonl", "--output", "scores")
    texts.succeed(*select("d IS NULL AND n < 3"))
    assert [json.loads(line)["n"] for line in out_lines(texts)] == [0, 1, 2]


def test_a_field_that_no_record_has_is_doubted(quizzes: Workspace) -> None:
    ran = quizzes.succeed(*decontaminate("--output", "clean", "--to", "jsonl", "--field", "txt"))
    assert "none of 400 records has the field 'txt'" in ran.err


def test_what_columns_lack_is_said(texts: Workspace) -> None:
    texts.run(*select("n > 1"), status=2, err="expected a folder of columns")
    texts.succeed(*annotate(sources="in/0.jsonl"))
    (texts.root / "in" / "1.jsonl").write_text('{"n": 1, "text": "x"}\n' * 9000)
    texts.run(*select("n > 1"), status=1, err="has no columns for ")
    (texts.root / "in" / "1.jsonl").write_text('{"n": 1, "text": "x"}\n')
    texts.run(*select("n > 1", "--dry-run"), status=1, err="has no columns for ")
    texts.run(*select("n > 1"), status=3, err="has no columns for ")
    texts.run("select", "in/*.jsonl", "--with", "scores", "--output", "out", "--to", "jsonl", status=2, err="--where")


def test_a_reader_and_an_iterator_have_selected_records_alone(texts: Workspace) -> None:
    texts.succeed(*annotate())
    texts.succeed("index", "in/*.jsonl")
    url, scores = str(texts.root / "in" / "0.jsonl"), str(texts.root / "scores")
    records: Any = ledgerbeam.open(url, with_=scores, where="n % 5 = 0")
    lines = Path(url).read_text(encoding="utf-8").splitlines()
    places = [place for place, line in enumerate(lines) if line and json.loads(line)["n"] % 5 == 0]
    places = [place for place in places if annotated(json.loads(lines[place])["n"])]
    assert [record["n"] for record in records] == [json.loads(lines[place])["n"] for place in places]
    assert records[3] == records[3 - len(records)] == json.loads(lines[places[3]])
    others: Any = ledgerbeam.open(url, with_=scores, where="n IS NULL")
    nulls = [json.loads(line) for line in lines if line and not annotated(json.loads(line)["n"])]
    assert list(others) == others[:] == nulls, "as a job, without blank lines"
    with pytest.raises(ledgerbeam.UsageError, match="where=5: expected SQL or a function, found int"):
        ledgerbeam.open(url, with_=scores, where=5)  # type: ignore[call-overload]
    node = Records(records, shuffle=True, seed=3)
    graph = iter(node)
    first = [next(graph) for _ in range(10)]
    assert sorted(record["n"] for record in [*first, *graph]) == [json.loads(lines[place])["n"] for place in places]


@pytest.fixture
def quizzes(texts: Workspace) -> Workspace:
    for name, question in (("quiz", "Text 25 text 25 text 25?"), ("exam", "So: text 77, TEXT 77 text")):
        (texts.root / f"{name}.jsonl").write_text(json.dumps({"q": question, "a": ["short"]}) + "\n")
    return texts


def decontaminate(*more: str) -> tuple[str, ...]:
    words = ("decontaminate", "in/*.jsonl", "--against", "quiz.jsonl", "--against", "exam.jsonl", "--ngram", "5")
    return (*words, "--task-bytes", "8K", *more)


def test_weights_of_a_column_say_how_often_a_record_is_there(texts: Workspace) -> None:
    texts.succeed(*annotate())
    folder = str(texts.root / "scores")
    url = str(texts.root / "in" / "1.jsonl")
    records = ledgerbeam.open(url, with_=folder, where="n >= 300", weights="share")
    found = [record["n"] for record in records]
    assert found == sorted({*found}), "a share below one selects no record twice"
    annotated_ones = [n for n in range(300, 400) if annotated(n)]
    assert abs(len(found) - sum(n / 400 for n in annotated_ones)) < 15
    whole: Any = ledgerbeam.open(url, with_=folder, where="n < 204", weights="n")
    assert [record["n"] for record in whole] == [n for n in range(200, 204) if annotated(n) for _ in range(n)]
    graph = Records(whole, shuffle=True, seed=3)
    begun = list(itertools.islice(graph, 100))
    again = Records(whole, shuffle=True, seed=3)
    again.load_state_dict(json.loads(json.dumps(graph.state_dict())))
    assert sorted(record["n"] for record in [*begun, *again]) == [record["n"] for record in whole]
    with pytest.raises(ledgerbeam.UsageError, match="no column 'tokens'; the columns are"):
        ledgerbeam.open(url, with_=folder, weights="tokens")


def test_each_record_of_each_source_is_drawn_by_itself(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.root)
    monkeypatch.syspath_prepend(workspace.root)
    Path("in").mkdir()
    Path("weights.py").write_bytes(b"def of(record):\n    return record\n")
    for name in range(40):
        Path(f"in/{name}.jsonl").write_bytes(b'{"w": 0.5}\n{"w": 0.5}\n')
    ledgerbeam.annotate("weights:of", "in/*.jsonl", output="columns", ledger="L", workers=1)
    drawn = [ledgerbeam.open(f"in/{name}.jsonl", with_="columns", weights="w") for name in range(40)]
    taken = [[*one.numbers] for one in drawn]  # type: ignore[union-attr]
    assert {tuple(one) for one in taken} == {(), (0,), (1,), (0, 1)}
    assert 25 < sum(map(len, taken)) < 55


def test_any_name_and_no_records_can_have_columns(workspace: Workspace) -> None:
    (workspace.root / "in").mkdir()
    (workspace.root / "in" / "empty.jsonl").touch()
    mark = ("dedup", "in/*.jsonl", "--by", "id", "--mark", "--output", "marks", "--ledger", "L")
    places = ("--output", "out", "--ledger", "S", "--to", "jsonl")
    chosen = ("select", "in/*.jsonl", "--with", "marks", "--where", "duplicate_of IS NULL", *places)
    workspace.succeed(*mark)
    workspace.succeed(*chosen)
    (workspace.root / "in" / os.fsdecode(b"\xff.jsonl")).write_text('{"id": 1}\n{"id": 1}\n')
    workspace.succeed(*mark)
    workspace.succeed(*chosen)
    assert workspace.records("out") == [{"id": 1}]


def test_a_flow_selects_by_columns_that_it_writes(texts: Workspace) -> None:
    (texts.root / "flow.toml").write_text(
        'root = "work"\n[steps.best]\nselect = true\nsources = "in/*.jsonl"\nwith_from = "scores"\n'
        'where = "n >= 100"\nto = "jsonl"\n[steps.after]\nconvert = true\nfrom = "best"\nto = "jsonl"\n'
        '[steps.scores]\nannotate = "scoring:score"\nsources = "in/*.jsonl"\non_error = "reject"\n'
    )

    def work() -> dict[str, Any]:
        steps = texts.run("plan", "flow.toml", "--json").json["steps"]
        return {one["step"]: sum(v for name, v in one["sources"].items() if name != "complete") for one in steps}

    def written() -> list[int]:
        paths = sorted((texts.root / "work" / "after" / "output").glob("*.jsonl"))
        return [json.loads(line)["n"] for path in paths for line in path.read_text().splitlines()]

    plan = texts.run("plan", "flow.toml", "--json").json["steps"]
    assert [(one["step"], one["command"]) for one in plan][:2] == [("scores", "annotate"), ("best", "select")]
    assert work() == {"scores": 2, "best": 2, "after": 2}
    texts.succeed("run", "flow.toml")
    assert written() == [n for n in range(100, 400) if annotated(n)]
    assert work() == {"scores": 0, "best": 0, "after": 0}
    with (texts.root / "in" / "1.jsonl").open("a") as file:
        file.write('{"n": 411}\n')
    assert work() == {"scores": 1, "best": 2, "after": 2}
    texts.succeed("run", "flow.toml")
    assert written() == [*(n for n in range(100, 400) if annotated(n)), 411]
    scoring = texts.root / "scoring.py"
    scoring.write_text(scoring.read_text().replace('"share"', '"part"'))
    flow = texts.root / "flow.toml"
    flow.write_text(flow.read_text().replace("n >= 100", "part > 0.9"))
    texts.succeed("run", "flow.toml")
    assert written() == [*(n for n in range(361, 400) if annotated(n)), 411]
    flow.write_text(flow.read_text().replace("part > 0.9", "gone > 0.9"))
    for command in ("run", "plan"):
        texts.run(command, "flow.toml", status=2, err="step best: --where gone > 0.9: no column 'gone'")
    flow.write_text(flow.read_text().replace('with_from = "scores"', 'with_from = "after"'))
    texts.run("plan", "flow.toml", status=2, err="expected steps without a cycle")


def test_contaminated_records_are_dropped_or_marked(quizzes: Workspace) -> None:
    ran = quizzes.succeed(*decontaminate("--output", "clean", "--to", "jsonl", "--workers", "2", "--json"))
    found = ran.json
    assert ran.err.count("quiz.jsonl: texts with fewer than 5 words are not searched for: 1") == 1
    assert found["records"]["dropped"] == {"contaminated": 2}
    lines = [path.read_text() for path in sorted((quizzes.root / "clean").glob("*.jsonl"))]
    assert "".join(lines) == "".join(lines_of(quizzes, lambda n: n not in (25, 77)))
    quizzes.succeed(*decontaminate("--mark", "--output", "scores"))
    quizzes.succeed(*select("contaminated_by IS NULL"))
    assert out_lines(quizzes) == lines_of(quizzes, lambda n: n not in (25, 77))
    shown = quizzes.succeed("show", "in/0.jsonl", "26", "79", "0", "--with", "scores", "--json").json["records"]
    assert [row["columns"]["contaminated_by"] for row in shown] == ["quiz.jsonl", "exam.jsonl", None]
    assert shown[0]["columns"]["contaminated_ngram"] == "text 25 text 25 text"
    assert 0 < shown[1]["columns"]["contaminated_share"] < 1


def test_a_changed_evaluation_set_is_another_job(quizzes: Workspace) -> None:
    words = decontaminate("--output", "clean", "--to", "jsonl", "--ledger", "clean-ledger")
    quizzes.succeed(*words)
    (quizzes.root / "exam.jsonl").write_text('{"q": "text 99 text 99 text 99"}\n')
    quizzes.run(*words, status=1, err="exam.jsonl")
    found = quizzes.succeed(*words, "--on-job-change", "restart", "--json").json
    assert found["records"]["dropped"] == {"contaminated": 2}
    quizzes.run(*decontaminate("--output", "x", "--to", "jsonl", "--ngram", "40"), status=2, err="at least 40 words")
    quizzes.run(*decontaminate("--output", "x"), status=2, err="--to FORMAT, or --mark")


FORMATS = ["jsonl", "jsonl.gz", "jsonl.zst", "tar", "parquet", "arrow", "warc", "shar"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_records_of_any_format_are_selected(texts: Workspace, kind: str) -> None:
    sources, to = write(texts, kind)
    more = ("--from", "shar") if kind == "shar" else ()
    texts.succeed(*annotate(*more, sources=sources))
    texts.succeed(*select("share < 0.25 AND lang = 'de'", *more, sources=sources, to=to))
    (texts.root / "numbering.py").write_text(
        "from scoring import number_of\ndef numbered(record):\n    return {'n': number_of(record)}\n"
    )
    found = "out/*.warc.gz" if to == "warc" else f"out/*.{to}"
    texts.succeed("map", "numbering:numbered", found, "--output", "numbers", "--to", "jsonl")
    assert [row["n"] for row in texts.records("numbers")] == [n for n in range(0, 100, 2) if annotated(n)]


def write(workspace: Workspace, kind: str) -> tuple[str, str]:
    """Write the records in a format; return a pattern and the format of outputs."""
    root = workspace.root
    match kind:
        case "jsonl":
            return "in/*.jsonl", "jsonl"
        case "jsonl.gz":
            for path in (root / "in").glob("*.jsonl"):
                (root / "in" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            return "in/*.jsonl.gz", "jsonl"
        case "jsonl.zst":
            workspace.succeed("convert", "in/*.jsonl", "--output", "z", "--to", "jsonl", "--compress", "zstd")
            return "z/*.jsonl.zst", "jsonl"
        case "parquet" | "arrow":
            workspace.succeed("convert", "in/*.jsonl", "--output", "c", "--to", kind, "--task-bytes", "8K")
            return f"c/*.{kind}", kind
        case "warc":
            with gzip.open(root / "in" / "a.warc.gz", "wb") as file:
                file.write(b"".join(record_bytes(page(n)) for n in range(COUNT)))
            return "in/*.warc.gz", "jsonl"
    (root / "sampling.py").write_text(
        "from ledgerbeam.io import Sample\n"
        'CUT = b\'{"id": "%d", "start": 0, "duration": 1, "channel": 0, "type": "MonoCut"}\'\n'
        "def sampled(record):\n"
        "    n = record['n']\n"
        "    return Sample(str(n), {'txt': b'%d' % n, 'json': CUT % n, 'bin': bytes(n)})\n"
    )
    workspace.succeed("map", "sampling:sampled", "in/*.jsonl", "--output", "tars", "--to", "tar")
    if kind == "tar":
        return "tars/*.tar", "tar"
    workspace.succeed("convert", "tars/*.tar", "--output", "shards", "--to", "shar", "--fields", "txt=txt,bin=bin")
    return "shards", "tar"


@pytest.mark.slow
def test_killed_jobs_end_with_the_same_columns_and_records(texts: Workspace) -> None:
    (texts.root / "slowly.py").write_text(
        "import time\nfrom scoring import score\n\n"
        "def slow_score(record):\n    time.sleep(0.01)\n    return score(record)\n\n"
        "def slow_few(batch):\n    time.sleep(0.3)\n"
        "    return [n is not None and n % 3 == 0 for n in batch['n'].to_pylist()]\n"
    )
    words = ("--task-bytes", "4K", "--workers", "2")
    jobs = [
        ("annotate", "slowly:slow_score", "in/*.jsonl", "--on-error", "reject"),
        ("select", "in/*.jsonl", "--with", "scores", "--where", "slowly:slow_few", "--to", "jsonl"),
    ]
    for job, output in zip(jobs, ("scores", "out"), strict=True):
        texts.succeed(*job, "--output", output, "--ledger", f"{output}-ledger", *words)
    expected = contents(texts)
    for folder in ("scores", "scores-ledger", "out", "out-ledger"):
        shutil.rmtree(texts.root / folder)
    kills = 0
    for job, output in zip(jobs, ("scores", "out"), strict=True):
        for seconds in (1.2, 1.6, 2.0, 2.4):
            kills += texts.is_killed(seconds, *job, "--output", output, "--ledger", f"{output}-ledger", *words)
        texts.succeed(*job, "--output", output, "--ledger", f"{output}-ledger", *words)
    assert kills >= 4
    assert contents(texts) == expected


def contents(workspace: Workspace) -> dict[str, bytes]:
    """Return the columns, their catalog and the selected records by file name."""
    paths = [path for folder in ("scores", "out") for path in (workspace.root / folder).rglob("*") if path.is_file()]
    return {
        str(path.relative_to(workspace.root)): path.read_bytes() for path in paths if path.parent.name != MARKS_FOLDER
    }
