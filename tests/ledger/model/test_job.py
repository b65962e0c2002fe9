from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import JobMismatchError, UsageError
from ledgerbeam.ledger.model import job
from ledgerbeam.ledger.model.job import (
    LONGEST,
    MOST,
    Job,
    changed_lines,
    known_texts,
    note_text,
    pack_texts,
    shown_value,
    unpack_texts,
)
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.user_code.functions import function_parts
from ledgerbeam.user_code.modules import modules_of


def test_the_fingerprint_stays_what_it_is_for_ever() -> None:
    job = Job("map", {"b": [1, 2.5, None], "function": {"name": "m:f", "source": "00ff"}})
    assert job.fingerprint == "54e219898f345e2f2c7fe8d3ac7db476"


def test_the_order_of_parameters_does_not_matter() -> None:
    assert (
        Job("map", {"a": 1, "b": {"c": 1, "d": 2}}).fingerprint
        == Job("map", {"b": {"d": 2, "c": 1}, "a": 1}).fingerprint
    )


def test_any_parameter_changes_the_fingerprint() -> None:
    jobs = [Job("map", {}), Job("index", {}), Job("map", {"a": 1}), Job("map", {"a": None}), Job("map", {"a": "1"})]
    assert len({job.fingerprint for job in jobs}) == len(jobs)


def test_differences_are_spelled_out_line_by_line() -> None:
    stored = Job("map", {"function": {"name": "m:f", "source": "aa"}, "to": "jsonl", "old": 1})
    now = Job("index", {"function": {"name": "m:f", "source": "bb"}, "to": "jsonl", "new": [1]})
    assert now.differences(stored) == [
        "pipeline: was 'map', is 'index'",
        "function source: was 'aa', is 'bb'",
        "new: was not set, is [1]",
        "old: was 1, is not set",
    ]
    assert now.differences(now) == []


def test_a_value_is_named_by_all_that_it_is_in() -> None:
    stored = Job("map", {"one": {"of": {"k": 1}}, "two": {"of": {"k": 2}}})
    now = Job("map", {"one": {"of": {"k": 3}}, "two": {"of": {"k": 2}}})
    assert now.differences(stored) == ["one of k: was 1, is 3"]


def test_a_value_that_is_empty_or_of_another_type_is_a_difference() -> None:
    job = Job("map", {"a": {}, "b": True, "c": {"d": None}, "e": [1, 2]})
    assert job.differences(Job("map", {"b": 1, "c": {}, "e": [2, 1]})) == [
        "a: was not set, is {}",
        "b: was 1, is True",
        "c: was {}, is not set",
        "c d: was not set, is None",
        "e: was [2, 1], is [1, 2]",
    ]


def test_a_path_that_is_not_utf8_has_a_fingerprint_that_stays_for_ever() -> None:
    path = b"/in/\xff".decode("utf-8", "surrogateescape")
    jobs = [Job("map", {"input": path, "a": 1}), Job("map", {"a": 1, "input": path})]
    assert {job.fingerprint for job in jobs} == {"0df703309a3ff4416cd3b487102fdf70"}
    assert jobs[0].differences(Job("map", {"a": 1})) == [f"input: was not set, is {path!r}"]


def test_a_job_survives_its_json_form() -> None:
    job = Job("map", {"a": [1, {"b": None}]})
    assert Job.from_row(job.as_row()) == job


def test_a_parameter_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="not a JSON value"):
        _ = Job("map", {"a": {1, 2}}).fingerprint  # type: ignore[dict-item]


@pytest.fixture(autouse=True)
def nothing_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_noted", type(job._noted)())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def kept(text: str, *, is_code: bool = True) -> str:
    note_text("key", lambda: text, is_code=is_code)
    return known_texts(iter(["key"]))["key"]


def refused(url: str, was: Job, now: Job) -> str:
    """Return the error of a ledger that one process opened for one job, and another process opens for another."""
    for each in (was, now):
        store = open_local_store(url, create=True)
        try:
            store.open_job(each)
        except JobMismatchError as error:
            return str(error)
        finally:
            store.close()
    return ""


def test_an_edit_of_a_module_is_shown_line_by_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "pt_module.py"
    path.write_text("LIMIT = 5\n\n\ndef clean(r):\n    if r < LIMIT:\n        return None\n    return r\n")
    was = Job("map", {"module": modules_of(["pt_module"])}).with_texts()
    path.write_text(path.read_text().replace("r < LIMIT", "r <= LIMIT"))
    importlib.invalidate_caches()
    now = Job("map", {"module": modules_of(["pt_module"])})
    said = refused(str(folder / "ledger"), was, now)
    assert "  module pt_module: changed\n" in said
    assert "-     if r < LIMIT:\n" in said
    assert "+     if r <= LIMIT:\n" in said
    assert "return" not in said


SCRIPT = """
WORDS = {"b": ["x"], "a": [1]}
NAME = "first"
class F:
    k = 1
    def __call__(self, r):
        if r > 5:
            return WORDS
        return NAME
clean = F()
"""


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("r > 5", "r > 6", ["code F.__call__: changed", "-     if r > 5:", "+     if r > 6:"]),
        ('["x"]', '["y"]', ["captured value 'WORDS' of F.__call__: changed", "-   - 'x'", "+   - 'y'"]),
        ("first", "second", ["captured value 'NAME' of F.__call__: was 'first', is 'second'"]),
        ("k = 1", "k = 2", ["captured value 'k' of class F: was '1', is '2'"]),
    ],
)
@pytest.mark.parametrize("has_source", [True, False])
def test_a_script_edit_is_shown(tmp_path: Path, before: str, after: str, lines: list[str], has_source: bool) -> None:
    jobs = []
    for number, source in enumerate((SCRIPT, SCRIPT.replace(before, after))):
        path = tmp_path / f"script{number}.py"
        if has_source:
            path.write_text(source)
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(source, str(path), "exec"), names)
        jobs.append(Job("map", dict(function_parts(names["clean"]).as_parameters())).with_texts())
    (found,) = jobs[1].differences(jobs[0])
    if not has_source and before == "r > 5":
        lines = ["code F.__call__: changed", "- load_const 5", "+ load_const 6"]
    assert [line.strip() for line in found.splitlines()] == lines


CREDENTIALS = """
import os
API_KEY = "hunter2"
client = Client(api_key='hunter2', timeout=5)
headers = {"Authorization": "hunter2", "accept": "json"}
os.environ["HF_TOKEN"] = "hunter2"
password: str = "hunter2"
url = "https://me:hunter2@host/a?sig=hunter2"
login("sk-hunter2hunter2hunter2")
x = "f00dhunter2cafe0123456789"  # password: hunter2
KEY = '''-----BEGIN RSA PRIVATE KEY-----
hunter2
-----END RSA PRIVATE KEY-----'''
max_tokens, pad_token, sort_key = 5, "<pad>", "author"
"""


def test_texts_have_no_credentials() -> None:
    found = kept(CREDENTIALS)
    assert "hunter2" not in found
    assert 'max_tokens, pad_token, sort_key = 5, "<pad>", "author"' in found
    assert "timeout=5" in found
    assert kept("user: me\npassword: hunter2\ntoken=hunter2\n", is_code=False) == "user: me\npassword: ***\ntoken=***"
    assert kept("token = tokens[0]\nsignature = sign(x)") == "token = tokens[0]\nsignature = sign(x)"


def test_values_have_no_credentials() -> None:
    value = {"api_key": "hunter2", "inner": [{"password": "hunter2"}], "name": "x", "set": {2, 1}}
    assert "hunter2" not in shown_value("config", value)
    assert "'name': 'x'" in shown_value("config", value)
    assert shown_value("API_KEY", "hunter2") == "***"
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("PASSWORD = 1234567\ndef clean(r): return PASSWORD\n", names)
    assert "1234567" not in str(function_parts(names["clean"]).as_parameters())


def test_values_of_set_that_are_credentials_are_not_shown() -> None:
    was, now = (Job("map", {"set": {"api_key": key, "limit": 5}}) for key in ("hunter2", "hunter3"))
    assert now.differences(was) == ["set api_key: was ***, is ***"]


def test_what_a_ledger_keeps_is_bounded() -> None:
    note_text("long", lambda: "x\n" * LONGEST)
    for number in range(20):
        note_text(f"key {number}", lambda number=number: f"{number} word " * (LONGEST // 8))  # type: ignore[misc]
    texts = known_texts(iter(["long", *(f"key {number}" for number in range(20))]))
    assert "long" not in texts
    assert 0 < sum(map(len, texts.values())) <= MOST
    assert unpack_texts(pack_texts(texts)) == texts


def test_a_text_that_is_not_known_leaves_the_hashes(tmp_path: Path) -> None:
    was, now = Job("map", {"module": {"m": "00ff"}}), Job("map", {"module": {"m": "00fe"}})
    assert now.differences(was) == ["module m: was '00ff', is '00fe'"]
    for damaged in ("", "no base64!", "AAAA", pack_texts({})[:-6]):
        assert unpack_texts(damaged) == {}
    note_text("00ff", lambda: "a\nb")
    note_text("00fe", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert now.differences(was.with_texts()) == ["module m: was '00ff', is '00fe'"]


def test_many_lines_are_cut() -> None:
    lines = changed_lines("\n".join(map(str, range(100))), "\n".join(f"{number} {'x' * 500}" for number in range(100)))
    assert len(lines) < 20
    assert max(map(len, lines)) < 120
    assert "more lines" in lines[-1]
    assert changed_lines("a\x1b[2J", "b") == ["- a\\x1b[2J", "+ b"]
    assert len(changed_lines("a", "a")) == 1


def test_texts_are_no_part_of_a_job() -> None:
    note_text("00ff", lambda: "text")
    job = Job("map", {"module": {"m": "00ff"}})
    assert job.with_texts().texts
    assert job.with_texts() == job
    assert job.with_texts().fingerprint == job.fingerprint
    assert "texts" not in job.with_texts().as_dict()
