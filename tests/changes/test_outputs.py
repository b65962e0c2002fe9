"""What changes the outputs of a job that is done, and who else writes to its folder."""

from __future__ import annotations

import json

import pytest

from tests.changes.places import OWNER_FOLDER, LocalPlace, Place, check_refused, check_right, lines

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(name="done")
def _done(place: Place) -> Place:
    place.write_sources()
    ran = place.job()
    assert ran.status == 0, ran.err
    return place


def _a_shard(place: Place, ending: str = ".jsonl") -> str:
    return next(name for name in sorted(place.outputs()) if name.startswith("a.jsonl") and name.endswith(ending))


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.idx"])
def test_a_deleted_output_is_made_again(done: Place, ending: str) -> None:
    done.delete(f"out/{_a_shard(done, ending)}")
    ran = done.job()
    assert "missing since earlier runs" in ran.err
    check_right(done, ran)


@pytest.mark.parametrize("content", [b"", b"somebody's own\n"])
def test_a_truncated_output_or_a_foreign_file_in_its_place_is_told_and_not_touched(done: Place, content: bytes) -> None:
    shard = _a_shard(done)
    done.put(f"out/{shard}", content)
    check_refused(done, done.job(), shard, before=done.outputs())
    assert done.run("ledger", "verify", done.url("ledger")).status == 1
    done.delete(f"out/{shard}")
    check_right(done, done.job())


def test_an_output_with_other_bytes_of_its_size_is_found_by_verify(done: Place) -> None:
    """A rerun looks at names and sizes; reading all outputs is what `ledger verify` is for."""
    shard = _a_shard(done)
    done.put(f"out/{shard}", bytes(len(done.get(f"out/{shard}"))))
    verified = done.run("ledger", "verify", done.url("ledger"))
    assert verified.status == 1
    assert shard in verified.out


def test_all_outputs_deleted_are_made_again(done: Place) -> None:
    done.remove("out")
    done.put("out/notes.md", done.get("in/notes.md"))
    check_right(done, done.job())


class TestAnotherJobOverTheSameOutputs:
    """Of 50,000 records such a folder could hold 88,636 lines."""

    def test_another_task_size(self, done: Place) -> None:
        check_refused(done, done.job(task_bytes="4000"), "task_bytes", "--on-job-change", before=done.outputs())
        restarted = done.job(task_bytes="4000", more=["--on-job-change", "restart"])
        assert restarted.status == 0, restarted.err
        assert sum(data.count(b"\n") for name, data in done.outputs().items() if name.endswith(".jsonl")) == 400
        back = done.job(more=["--on-job-change", "restart"])
        check_right(done, back)

    def test_an_edited_function(self, done: Place) -> None:
        function = next(done.code.glob("*.py"))
        done.write_function(function.read_text().replace(".upper()", ".lower()"))
        check_refused(done, done.job(), "module ", "--on-job-change", before=done.outputs())
        ran = done.job(more=["--on-job-change", "restart"])
        check_right(done, ran)
        assert b"first 00000 of a" in done.get(f"out/{_a_shard(done)}")

    @pytest.mark.parametrize("change", ["overwritten", "replaced, with an older time", "appended", "truncated"])
    def test_an_edited_function_and_a_changed_source(self, done: Place, change: str) -> None:
        """A local ledger still knows after the restart what it knew of the source; a store, that the index is older."""
        if change.startswith("replaced") and not isinstance(done, LocalPlace):
            pytest.skip("an object store has no files to replace")
        function = next(done.code.glob("*.py"))
        done.write_function(function.read_text().replace(".upper()", ".lower()"))
        done.change(change)
        ran = done.job(more=["--on-job-change", "restart"])
        check_right(done, ran)

    def test_another_ledger(self, done: Place) -> None:
        refused = done.job(ledger="another", task_bytes="4000")
        check_refused(done, refused, "--existing", before=done.outputs())
        ran = done.job(ledger="another", task_bytes="4000", more=["--existing", "replace"])
        assert ran.status == 0, ran.err
        assert sum(data.count(b"\n") for name, data in done.outputs().items() if name.endswith(".jsonl")) == 400
        done.check_bystanders()
        check_refused(done, done.job(), "--existing", before=done.outputs())

    def test_another_ledger_that_keeps_what_is_there(self, done: Place) -> None:
        before = done.outputs()
        done.put("more/c.jsonl", done.get("in/b.jsonl"))
        command = [word.replace("in/*.jsonl", "more/*.jsonl") for word in done.command(ledger="another")]
        refused = done.workspace.run(*command, env=done.env)
        check_refused(done, refused, "--existing", before=before)
        kept = done.workspace.run(*command[:7], "--existing", "keep", *command[7:], env=done.env, timeout=240)
        assert kept.status == 0, kept.err
        after = done.outputs()
        assert {name: after[name] for name in before} == before
        assert any(name.startswith("c.jsonl") for name in after)
        done.remove("more")
        again = done.job()
        assert again.status == 0, again.err


def test_outputs_below_the_pattern_are_no_sources(place: Place) -> None:
    place.write_sources()
    command = [word.replace("in/*.jsonl", "**/*.jsonl") for word in place.command()]
    for _ in range(3):
        ran = place.workspace.run(*command, env=place.env, timeout=240)
        assert ran.status == 0, ran.err
        assert ran.json["sources"]["complete"] == 3  # two, and the spare one


def test_another_job_claims_a_folder_below_while_the_job_works(place: Place) -> None:
    """Both would write files of the same names there: the one that finds those of the other there says so."""
    place.write_sources(do="claimed")
    place.put("in/sub/c.jsonl", lines("c"))
    command = [word.replace("in/*.jsonl", "in/**/*.jsonl") for word in place.command()]
    ran = place.workspace.run(*command, env=place.env, timeout=240)
    if [name for name in place.names("out/sub") if name.startswith(OWNER_FOLDER)]:
        assert ran.status in (1, 2), (ran.status, ran.out, ran.err)
        assert "out/sub" in ran.err
        place.remove("out/sub")
        ran = place.workspace.run(*command, env=place.env, timeout=240)
    assert ran.status == 0, ran.err  # it was first
    found = place.files("out/sub")
    shards = [found[name] for name in sorted(found) if name.endswith(".jsonl")]
    made = [json.loads(line) for shard in shards for line in shard.splitlines()]
    assert made == [{**record, "text": record["text"].upper()} for record in map(json.loads, lines("c").splitlines())]
    place.check_bystanders()
