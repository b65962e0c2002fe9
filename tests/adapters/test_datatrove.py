"""Filters, formatters and extractors of datatrove, unchanged, beside datatrove's own `run`.

`make blocks` runs these tests. It installs datatrove into an environment of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from benchmarks.blocks_steps import NAMES
from ledgerbeam import Drop, FunctionError, Reject
from ledgerbeam.adapters import Adapter
from ledgerbeam.adapters.datatrove import DatatroveAdapter
from ledgerbeam.adapters.testing import AdapterContract
from ledgerbeam.pipelines.jobs.user_function import user_function
from ledgerbeam.user_code.functions import made_of
from ledgerbeam.user_code.loading import GivenObject
from ledgerbeam.user_code.objects import UserObject, check_object
from tests.adapters.documents import documents, pages
from tests.cases import each

if "LEDGERBEAM_BLOCKS" not in os.environ:
    pytest.skip('run "make blocks"', allow_module_level=True)

from datatrove.data import Document
from datatrove.pipeline.dedup import MinhashDedupFilter
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import (
    C4BadWordsFilter,
    C4ParagraphFilter,
    C4QualityFilter,
    FastTextClassifierFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LambdaFilter,
    LanguageFilter,
    RegexFilter,
    SamplerFilter,
    UnigramLogProbFilter,
    URLFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.pipeline.formatters import FTFYFormatter, PIIFormatter, SymbolLinesFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.stats import DocStats
from datatrove.pipeline.tokens import DocumentTokenizer, TokensCounter
from datatrove.pipeline.writers import JsonlWriter

DOCUMENTS = documents(260)
PAGES = pages(120)
KILLS = 40
ONE_REPLACEMENT = {"email_replacement": "email@example.com", "ip_replacement": "22.214.171.124"}


def has_digit(doc: Any) -> bool:
    return any(letter.isdigit() for letter in doc.text)


class ShortFilter(BaseFilter):
    """A filter of the user, with batches, statistics and new metadata."""

    name = "short"

    def __init__(self, least: int = 300, batch_size: int = 7) -> None:
        super().__init__(batch_size=batch_size)
        self.least = least

    def filter(self, doc: Any) -> Any:
        raise NotImplementedError("run() calls filter_batch")

    def filter_batch(self, batch: list[Any]) -> list[Any]:
        for doc in batch:
            doc.metadata["length"] = len(doc.text)
            self.stat_update("seen")
            self.stat_update("length", value=len(doc.text))
        return [(len(doc.text) >= self.least, "short") for doc in batch]


STEPS: dict[str, tuple[type, dict[str, Any], Sequence[Mapping[str, Any]]]] = {
    "GopherQualityFilter": (GopherQualityFilter, {"min_doc_words": 30}, DOCUMENTS),
    "GopherRepetitionFilter": (GopherRepetitionFilter, {}, DOCUMENTS),
    "C4QualityFilter": (C4QualityFilter, {"filter_no_terminal_punct": False, "min_num_sentences": 3}, DOCUMENTS),
    "C4ParagraphFilter": (C4ParagraphFilter, {}, DOCUMENTS),
    "FineWebQualityFilter": (FineWebQualityFilter, {"stop_chars": [".", ":"], "new_line_ratio": 0.2}, DOCUMENTS),
    "URLFilter": (URLFilter, {"extra_domains": ["site3.com"]}, DOCUMENTS),
    "RegexFilter": (RegexFilter, {"regex_exp": "[Ll]orem|queue"}, DOCUMENTS),
    "ShortFilter": (ShortFilter, {}, DOCUMENTS),
    "FTFYFormatter": (FTFYFormatter, {}, DOCUMENTS),
    "PIIFormatter": (PIIFormatter, ONE_REPLACEMENT, DOCUMENTS),
    "SymbolLinesFormatter": (SymbolLinesFormatter, {"replace_char": "~"}, DOCUMENTS),
    "Trafilatura": (Trafilatura, {"deduplicate": False}, PAGES),
    "C4BadWordsFilter": (C4BadWordsFilter, {}, DOCUMENTS),
    "FastTextClassifierFilter": (FastTextClassifierFilter, {}, DOCUMENTS),
    "LanguageFilter": (LanguageFilter, {}, DOCUMENTS),
    "UnigramLogProbFilter": (UnigramLogProbFilter, {"logprobs_threshold": -14}, DOCUMENTS),
}
"""Steps with values of ``--set``, and the documents that they get."""


def name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files that four filters would download, and return the path of a model of fastText."""
    from huggingface_hub import cached_assets_path, constants

    lines = [
        f"__label__{'queue' if 'queue' in one['text'] else 'other'} {' '.join(one['text'].split())}"
        for one in DOCUMENTS
    ]
    model = Path(constants.HF_ASSETS_CACHE) / "queue.bin"  # one for all processes of the tests
    if not model.exists():
        _train(lines, model, tmp_path_factory.mktemp("model"))
    words = Counter(word.lower() for one in DOCUMENTS for word in one["text"].split() if word.isalpha())
    frequencies = "word,count\n" + "".join(f"{word},{count}\n" for word, count in words.items())
    url = "https://raw.githubusercontent.com/LDNOOBW/List-of-Dirty-Naughty-Obscene-and-Otherwise-Bad-Words/"
    url += "25e679f03d96baa721cde20db9944649e8d0a844/en"
    lid = "https://dl.fbaipublicfiles.com/fasttext/supervised-models/lid.176.bin"
    for name, data in {
        "filters/unigram_logprob_filter/unigram_freq.csv": frequencies.encode(),
        f"filters/c4_badwords/{url.replace('/', '_')}": b"pickle\nthread\n",
        f"lid/ft176/{lid.replace('/', '_')}": model.read_bytes(),
    }.items():
        namespace, subfolder, file = name.split("/", 2)
        place = cached_assets_path(library_name="datatrove", namespace=namespace, subfolder=subfolder) / file
        place.with_suffix(f".{os.getpid()}").write_bytes(data)
        place.with_suffix(f".{os.getpid()}").replace(place)
        place.with_name(f"{place.name}.completed").touch()
    return model


def _train(lines: Sequence[str], model: Path, folder: Path) -> None:
    """Train in a process of its own: fastText reads memory that it has not set, and sometimes ends with NaN."""
    (folder / "lines.txt").write_text("\n".join(lines))
    program = (
        "import fasttext; fasttext.train_supervised('lines.txt', epoch=5, lr=0.05, dim=10, minCount=1, thread=1, "
        "verbose=0).save_model('model.bin')"
    )
    while subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, check=False).returncode:
        pass
    model.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.link(folder / "model.bin", model)


def values_of(step: str, assets: Path) -> dict[str, Any]:
    if step not in ("FastTextClassifierFilter", "LanguageFilter"):
        return STEPS[step][1]
    import fasttext

    model = fasttext.load_model(str(assets))  # each training has other scores
    scores = sorted(
        dict(zip(*model.predict(one["text"].replace("\n", " "), k=-1), strict=False))["__label__queue"]
        for one in DOCUMENTS
    )
    middle = float(scores[len(scores) // 2])
    if step == "LanguageFilter":
        return {"languages": ["queue"], "language_threshold": middle}
    return {"model_url": str(assets), "keep_labels": [["queue", middle]], "newline_replacement": " "}


def by_run(step: Any, records: Sequence[Mapping[str, Any]]) -> tuple[list[Any], dict[str, int]]:
    """Return the records that datatrove's own `run` keeps, and the numbers of dropped ones by reason."""
    given = [
        Document(one["text"], one["id"], [], {key: value for key, value in one.items() if key not in ("text", "id")})
        for one in records
    ]
    kept = [{"text": one.text, "id": one.id, **one.metadata} for one in step(iter(given))]
    counted = {name: round(one.total) for name, one in step.stats.stats.items()}
    reasons = {name.removeprefix("dropped_"): count for name, count in counted.items() if name.startswith("dropped_")}
    unnamed = counted.get("dropped", 0) - sum(reasons.values())
    return kept, reasons | ({type(step).__name__: unnamed} if unnamed else {})


def by_job(folder: Path, function: Any, records: Sequence[Mapping[str, Any]], **options: Any) -> tuple[list[Any], Any]:
    """Return the records that a job keeps, in order, and the result of the job."""
    source = folder / "a.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in records))
    result = ledgerbeam.map(
        function, str(source), output=str(folder / "out"), ledger=str(folder / "ledger"), to="jsonl", workers=2,
        task_bytes="40K", **options,
    )  # fmt: skip
    result.raise_for_failures()
    files = sorted((folder / "out").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()], result


@pytest.mark.parametrize("step", STEPS)
def test_a_job_has_the_results_and_reasons_of_datatrove(step: str, assets: Path, tmp_path: Path) -> None:
    kind, _, records = STEPS[step]
    values = values_of(step, assets)
    made = {name: tuple(value) if name == "stop_chars" else value for name, value in values.items()}
    peer = kind(**made, timeout=60) if kind is Trafilatura else kind(**made)
    kept, reasons = by_run(peer, records)
    if kind is Trafilatura:
        reasons = {"nothing extracted": len(records) - len(kept)}
    found, result = by_job(tmp_path, name_of(kind), records, set=values)
    assert found == kept
    assert result.records.dropped == {reason: count for reason, count in reasons.items() if count}
    assert kept
    assert kind.__name__.endswith("Formatter") or len(kept) < len(records)
    if kind is ShortFilter:
        assert result.stats["length"]["count"] == result.stats["seen"] == len(records)


@pytest.mark.parametrize("step", STEPS)
def test_a_batch_has_the_results_of_single_records(step: str, assets: Path) -> None:
    kind, _, records = STEPS[step]
    values = values_of(step, assets)
    one = UserObject(name_of(kind), values).ready().call
    many = UserObject(name_of(kind), values, batched=True).ready().call
    assert many(records[:40]) == [one(record) for record in records[:40]]


class TestDatatrove(AdapterContract):
    def adapter(self) -> Adapter:
        return DatatroveAdapter()

    def objects(self) -> Sequence[tuple[Any, Mapping[str, Any]]]:
        return [
            (GopherQualityFilter(min_doc_words=30), {}),
            (URLFilter(extra_domains=["site3.com"], use_integrated_lists=False), {}),
            (SamplerFilter(0.5, seed=3), {}),
            (SamplerFilter, {"rate": 0.3}),
            (LambdaFilter(has_digit), {}),
            (PIIFormatter(), {}),
            (PIIFormatter, {}),
            (Trafilatura(), {}),
            (ShortFilter(), {"text_key": "url"}),
        ]

    def refused(self) -> Sequence[Any]:
        return [
            JsonlReader,
            JsonlReader("."),
            JsonlWriter,
            MinhashDedupFilter,
            DocumentTokenizer,
            TokensCounter,
            DocStats,
        ]

    def records(self) -> Sequence[Any]:
        return [*DOCUMENTS[:30], *PAGES[:10], {"id": "x", "text": None, "url": 3}]


@each(
    ("target", "command"),
    [
        (JsonlReader, "PATTERN"),
        (JsonlWriter, "--output"),
        (MinhashDedupFilter, "ledgerbeam dedup --near"),
        (DocumentTokenizer, "ledgerbeam tokenize"),
        (DocStats, "ledgerbeam.stats"),
    ],
)
def test_a_step_that_cannot_be_exact_names_the_command_to_use(target: Any, command: str) -> None:
    with pytest.raises(FunctionError, match=command):
        check_object(name_of(target), {})


def test_a_filter_that_writes_or_has_no_seed_is_refused(tmp_path: Path) -> None:
    writing = GivenObject("f", GopherQualityFilter(exclusion_writer=JsonlWriter(str(tmp_path))))
    with pytest.raises(FunctionError, match="--keep-dropped"):
        check_object(writing, {})
    with pytest.raises(FunctionError, match="it has no seed"):
        user_function(SamplerFilter(0.5))
    with pytest.raises(FunctionError, match="--record-timeout"):
        user_function(name_of(Trafilatura), {"timeout": 3})
    with pytest.raises(FunctionError, match="module:object"):
        user_function(name_of(LambdaFilter), {"filter_function": "rules:keep"})


def test_a_sample_is_the_same_in_each_order_and_about_its_rate() -> None:
    sampled = UserObject(name_of(SamplerFilter), {"rate": 0.3, "seed": 5}).ready().call
    kept = [one["id"] for one in DOCUMENTS if not isinstance(sampled(one), Drop)]
    assert kept == [one["id"] for one in reversed(DOCUMENTS) if not isinstance(sampled(one), Drop)][::-1]
    assert 0.2 < len(kept) / len(DOCUMENTS) < 0.4
    other = UserObject(name_of(SamplerFilter), {"rate": 0.3, "seed": 6}).ready().call
    assert kept != [one["id"] for one in DOCUMENTS if not isinstance(other(one), Drop)]


def test_documents_are_made_of_records_of_other_keys_and_nested_metadata() -> None:
    """Writers of datatrove store metadata under one key, and its readers move the keys up."""
    keep = LambdaFilter(lambda doc: bool(doc.metadata.update(seen=doc.metadata["url"], place=doc.id) or True))
    call = UserObject(GivenObject("keep", keep), {"text_key": "body", "id_key": "name"}).ready().call
    nested = {"name": "n", "metadata": {"url": "u", "old": 1}, "body": "text", "old": 2}
    assert call(nested) == {
        "name": "n",
        "metadata": {"url": "u", "old": 1, "seen": "u", "place": "n"},
        "body": "text",
        "old": 2,
    }
    assert call({"url": "u", "body": "text"}) == {"url": "u", "body": "text", "seen": "u", "place": ""}
    assert call({"url": "u"}).reason == "no text"
    assert isinstance(call("text"), Reject)


def test_the_identity_has_versions_parameters_and_assets(assets: Path, tmp_path: Path) -> None:
    model = {"model_url": str(assets)}
    found = made_of(name_of(FastTextClassifierFilter), model)
    assert found["package"]["datatrove"] == "0.10.1"
    assert found["package"].keys() == {"datatrove", "fasttext-numpy2-wheel", "fasteners"}
    changed = tmp_path / "model.bin"
    changed.write_bytes(assets.read_bytes() + b"\0")
    assert made_of(name_of(FastTextClassifierFilter), {"model_url": str(changed)})["asset"] != found["asset"]
    assert made_of(name_of(GopherQualityFilter))["package"].keys() == {"datatrove", "spacy"}
    assert "lxml" in made_of(name_of(Trafilatura))["package"]
    assert len(made_of(name_of(URLFilter))["asset"]) == 4
    with pytest.raises(FunctionError, match=r"missing\.bin: this asset is missing"):
        made_of(name_of(FastTextClassifierFilter), {"model_url": str(tmp_path / "missing.bin")})


def test_an_instance_that_was_used_or_not_is_the_same_job() -> None:
    used, new = (LambdaFilter(lambda doc: len(doc.text) > 100) for _ in range(2))
    assert list(used(iter([Document("a", "1")]))) == []
    assert user_function(used).made_of == user_function(new).made_of
    cycle = PIIFormatter()
    cycle.format("a@example.net")
    assert user_function(cycle).made_of == user_function(PIIFormatter()).made_of


def test_the_identity_is_the_same_in_each_process(tmp_path: Path) -> None:
    """Some defaults are made from sets, whose order depends on the seed of hashes of a process."""
    (tmp_path / "held.py").write_text(
        "from tests.adapters.test_datatrove import STEPS\n"
        "for _name in ('FineWebQualityFilter', 'GopherQualityFilter', 'C4QualityFilter', 'SymbolLinesFormatter',\n"
        "              'PIIFormatter', 'FTFYFormatter', 'Trafilatura', 'C4ParagraphFilter'):\n"
        "    globals()[_name] = STEPS[_name][0]()\n"
    )
    program = (
        "import held\n"
        "from ledgerbeam.user_code.functions import made_of\n"
        "from ledgerbeam.pipelines.jobs.user_function import user_function\n"
        "for name, value in vars(held).items():\n"
        "    if hasattr(value, 'stats'):\n"
        "        print(name, made_of(f'held:{name}'), user_function(value).made_of)\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
            check=True,
            capture_output=True,
        ).stdout
        for seed in range(3)
    }
    assert len(found) == 1
    assert len(found.pop().splitlines()) == 8


def test_an_instance_given_in_python_runs_in_workers(tmp_path: Path) -> None:
    found, result = by_job(tmp_path, GopherQualityFilter(min_doc_words=30), DOCUMENTS)
    kept, reasons = by_run(GopherQualityFilter(min_doc_words=30), DOCUMENTS)
    assert (found, result.records.dropped) == (kept, reasons)


def command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "ledgerbeam", "map", *words, "--output", str(folder / "out"), "--to", "jsonl",
            "--ledger", str(folder / "ledger"), "--workers", "2", "--quiet"]  # fmt: skip


def written(folder: Path, records: Sequence[Mapping[str, Any]]) -> str:
    source = folder / "a.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in records))
    return str(source)


def test_an_error_of_an_extractor_rejects_the_record(tmp_path: Path) -> None:
    """datatrove's `run` drops every page of an installation without lxml_html_clean."""
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "lxml_html_clean.py").write_text("raise ImportError('not installed')\n")
    words = [name_of(Trafilatura), written(tmp_path, PAGES[:5]), "--on-error", "reject"]
    env = {**os.environ, "PYTHONPATH": str(shadow)}
    done = subprocess.run(command(tmp_path, *words), env=env, capture_output=True, text=True, check=False)
    assert "5 rejected" in done.stderr + done.stdout
    rows = [json.loads(line) for path in (tmp_path / "out" / "_rejects").rglob("*.jsonl") for line in path.open()]
    assert len(rows) == 5
    assert all("ImportError" in row["reason"] + row["error"] for row in rows)


def test_the_audit_finds_the_state_of_deduplicate_when_it_is_forced_on(tmp_path: Path) -> None:
    source = written(tmp_path, PAGES)
    off = subprocess.run(
        command(tmp_path, name_of(Trafilatura), source, "--audit", "100%"), capture_output=True, text=True, check=False
    )
    assert off.returncode == 0, off.stderr
    assert "deduplicate is off" in off.stderr
    other = tmp_path / "on"
    other.mkdir()
    words = [name_of(Trafilatura), source, "--audit", "100%", "--set", "deduplicate=true"]
    on = subprocess.run(command(other, *words), capture_output=True, text=True, check=False)
    assert on.returncode != 0
    assert "deduplicate is off" not in on.stderr
    assert "audit" in on.stderr


@pytest.mark.timeout(1800)
def test_a_killed_job_of_all_steps_ends_with_the_same_bytes_reasons_and_counts(tmp_path: Path) -> None:
    broken = [{**PAGES[0], "id": "broken", "text": 5}]  # no step takes it
    records = [{**one, "id": f"{one['id']}-{copy}"} for copy in range(12) for one in PAGES + broken]
    first, *others = (f"benchmarks.blocks_steps:{name}" for name in NAMES)
    then = [word for name in others for word in ("--then", name)]
    words = [first, *then, written(tmp_path, records), "--on-error", "reject", "--keep-dropped", "--task-bytes", "20K"]
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    quiet.mkdir()
    killed.mkdir()
    subprocess.run(command(quiet, *words), check=True, capture_output=True)
    chance, kills, finished = random.Random(40), 0, 0
    while kills < KILLS or not finished:
        before = len(outputs(killed))
        started = subprocess.Popen(command(killed, *words), stderr=subprocess.DEVNULL, start_new_session=True)
        if kills < KILLS:
            _wait_for(killed, before + 1 + chance.randrange(3), started)
            time.sleep(chance.random() / 4)
            workers = descendants(started.pid)
            if workers and chance.random() < 0.3:
                os.kill(chance.choice(workers), signal.SIGKILL)
                time.sleep(chance.random() * 4)
                kills += 1
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                kills += 1
        if started.wait() >= 0:
            assert started.returncode == 0
            assert outputs(killed) == outputs(quiet)
            assert counts(killed) == counts(quiet)
            finished += 1
            if kills < KILLS:
                shutil.rmtree(killed)
                killed.mkdir()


def outputs(folder: Path) -> dict[str, bytes]:
    found = folder / "out"
    return {
        str(path.relative_to(found)): path.read_bytes()
        for path in found.rglob("*.jsonl*")
        if not path.name.startswith(".")
    }


def descendants(parent: int) -> list[int]:
    """Return the processes of a session except its leader."""
    done = subprocess.run(["ps", "-o", "pid=", "--sid", str(parent)], capture_output=True, text=True, check=False)
    return [pid for pid in map(int, done.stdout.split()) if pid != parent]


def counts(folder: Path) -> Any:
    words = [sys.executable, "-m", "ledgerbeam", "ledger", "status", str(folder / "ledger"), "--json"]
    status = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return status["records"], status.get("functions")


def _wait_for(folder: Path, outputs: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and len(list((folder / "out").glob("*.jsonl"))) < outputs:
        time.sleep(0.02)
