"""What `OutputOwner` makes of marks, shards and ledgers, one rule at a time; `test_owner` has whole jobs."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import StorageError, UsageError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.listing import nested_folders
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage import objects
from ledgerbeam.io.storage.objects import ObjectFolder, list_files
from ledgerbeam.ledger import LedgerStore, Output, Source, Totals
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.console.reporter import Reporter
from ledgerbeam.pipelines.datasets.megatron import MergedParts
from ledgerbeam.pipelines.jobs.listing import JobListing
from ledgerbeam.pipelines.jobs.map import MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.one_stage import ConvertJob
from ledgerbeam.pipelines.jobs.shard_job import shard_form
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.outputs import owner as owner_module
from ledgerbeam.pipelines.outputs.owner import Existing, OutputOwner
from ledgerbeam.pipelines.report.run_info import DONE, run_info
from ledgerbeam.pipelines.runners.run import run_job
from ledgerbeam.pipelines.runners.waves import Waves

SHARD = "a.jsonl-0000000000.jsonl"
SOURCE = Source(f"/in/{SHARD}", 10, "1")


class Place:
    """An output folder, and the ledgers of jobs that write there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.out = root / "out"
        self.stores: dict[str, LedgerStore] = {}

    def spec(
        self,
        ledger: str = "L",
        *,
        output: str | None = None,
        to: str = "jsonl",
        dataset: MergedParts | None = None,
        **of_files: Any,
    ) -> JobSpec:
        """A job: one that merges its parts if it has a dataset."""
        files = ListedFiles(**{"patterns": (f"{self.root}/in/*.jsonl",), "base": f"{self.root}/in/", **of_files})
        where = output or str(self.out)
        job: JobSpec = (
            MapJob(
                files=files,
                functions=(MappedFunction("f", "m:f", {"module": {"m": "ab"}}),),
                output=where,
                to=to,
                audit="off",
            )
            if dataset is None
            else ConvertJob(files=files, output=where, to="megatron", dataset=dataset)
        )
        return job.resolve_ledger(str(self.root / ledger))

    def store(self, spec: JobSpec) -> LedgerStore:
        """Return the ledger of a job, taken for it if it is new."""
        if spec.ledger not in self.stores:
            store = open_local_store(spec.ledger, create=True)
            if store.job() is None:
                store.open_job(spec.identity())
            self.stores[spec.ledger] = store
        return self.stores[spec.ledger]

    def owner(self, spec: JobSpec, existing: Existing | None = None) -> OutputOwner:
        """Return a claim that was checked."""
        owner = OutputOwner(spec, existing)
        owner.check(self.store(spec) if Path(spec.ledger).exists() else None)
        owner.replace()
        return owner

    def claim(self, spec: JobSpec, owner: OutputOwner) -> str:
        """Begin a run and claims the folder for it, as `run_job`; return its token."""
        store = self.store(spec)
        info = run_info(store, spec, "local")
        store.begin_run({**info, "existing": "keep"} if owner.keeps else info)
        owner.claim(store, info["token"])
        return str(info["token"])

    def own(self, ledger: str = "L", existing: Existing | None = None, **fields: Any) -> JobSpec:
        """Do what a run does before it writes."""
        spec = self.spec(ledger, **fields)
        self.claim(spec, self.owner(spec, existing))
        return spec

    def marks(self) -> dict[str, Any]:
        """Return the marks, by the ledger's name."""
        found = [json.loads(path.read_bytes()) for path in (self.out / "_ledgerbeam").iterdir()]
        return {Path(mark["url"]).name: mark for mark in found}

    def shard(self, name: str = SHARD) -> Path:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
        return path

    def files(self) -> list[str]:
        found = [path for path in self.out.rglob("*") if path.is_file() and path.parent.name != "_ledgerbeam"]
        return sorted(str(path.relative_to(self.out)) for path in found)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for store in made.stores.values():
        store.close()


def record(store: LedgerStore, *names: str) -> None:
    """Records outputs of a source each."""
    for name in names:
        source = Source(f"/in/{name}", 10, "1")
        store.register([source])
        store.commit([Leaf(source.id, (), "published", (Output(name, 3, "sum", 1, 0),), 1, 3)])


def test_a_new_ledger_takes_a_folder_that_holds_no_shards(place: Place) -> None:
    names = ["a.jsonl", "notes-1234567890.txt", "notes.txt"]
    for name in names:
        place.shard(name)
    for existing in (None, "replace", "keep"):
        owner = place.owner(place.spec(), existing)
        assert (owner.is_new, owner.keeps) == (True, False)
    spec = place.own()
    assert list(place.marks()) == ["L"]
    assert place.files() == names
    assert not place.owner(spec).is_new


def test_a_mark_says_which_run_of_which_ledger_wrote_it_and_no_secret(place: Place) -> None:
    spec = place.spec(patterns=("https://me:hunter2@host/in/*.jsonl",), base="https://me:hunter2@host/in/")
    owner = place.owner(spec)
    tokens = [place.claim(spec, owner), place.claim(spec, owner)]
    ((name, mark),) = [(path.name, path.read_text()) for path in (place.out / "_ledgerbeam").iterdir()]
    assert "hunter2" not in mark
    found = json.loads(mark)
    assert name == f"{place.store(spec).ledger_id()}.json"
    assert (found["format"], found["run"]) == (1, tokens[1])
    assert (found["job"], found["url"]) == (spec.identity().fingerprint, spec.ledger)
    assert (found["command"], found["sources"]) == ("map", ["https://me:***@host/in/*.jsonl"])
    place.own("M", "keep", base=None)
    assert place.marks()["M"]["base"] is None


@pytest.mark.parametrize("shards", [False, True])
def test_the_mark_of_another_ledger_is_refused(place: Place, shards: bool) -> None:
    place.own("L")
    if shards:
        place.shard()
    before = place.marks()
    with pytest.raises(UsageError) as refused:
        place.owner(place.spec("M"))
    said = str(refused.value)
    assert f"it belongs to another ledger, {place.root}/L, see _ledgerbeam/" in said
    assert f"give another --output, the owner's ledger: --ledger {place.root}/L, or choose" in said
    assert (f"such as {SHARD}" in said) == shards
    assert "more ledger" not in said
    assert "Restore" not in said
    assert place.marks() == before


@pytest.mark.parametrize("shards", [False, True])
def test_a_ledger_that_was_lost_is_to_be_restored_and_is_not_proposed(place: Place, shards: bool) -> None:
    spec = place.own("L")
    if shards:
        place.shard()
    place.stores.pop(spec.ledger).close()
    shutil.rmtree(spec.ledger)
    holds = f"; it holds shards such as {SHARD}" if shards else ""
    with pytest.raises(UsageError) as refused:
        place.owner(spec)
    said = re.sub("[0-9a-f]{16,}", "N", str(refused.value))
    assert said.startswith(
        f"{place.out}: it belongs to an earlier ledger at {spec.ledger}, see _ledgerbeam/N.json{holds}. "
        "Restore that ledger; otherwise\ngive another --output, or choose"
    )


def test_marks_of_several_ledgers_are_counted_and_none_is_proposed(place: Place) -> None:
    place.own("L")
    for number, name in enumerate(("M", "N"), 1):
        place.own(name, "keep")
        with pytest.raises(UsageError, match=rf"\(and {number} more ledgers?\)") as refused:
            place.owner(place.spec("O"))
        assert "--ledger" not in str(refused.value)


@pytest.mark.parametrize("mark", [b"{", b"[1]", b"{}", b'{"url": 5, "run": "x"}'])
def test_a_mark_that_does_not_read_is_still_of_another(place: Place, mark: bytes) -> None:
    (place.out / "_ledgerbeam").mkdir(parents=True)
    (place.out / "_ledgerbeam" / "0.json").write_bytes(mark)
    with pytest.raises(UsageError, match=r"belongs to another ledger, unknown, see _ledgerbeam/0\.json") as refused:
        place.owner(place.spec())
    assert "--ledger" not in str(refused.value)


def test_only_json_is_a_mark(place: Place) -> None:
    (place.out / "_ledgerbeam").mkdir(parents=True)
    (place.out / "_ledgerbeam" / "README").write_text("what is this?")
    place.own()


def test_a_ledger_that_has_its_folder_alone_replaces_nothing_there(place: Place) -> None:
    spec = place.own()
    place.shard("mine-0000000000.jsonl")
    place.owner(spec, "replace")
    assert (place.out / "mine-0000000000.jsonl").exists()


def test_a_run_that_the_ledger_does_not_know_was_of_a_later_state_of_it(place: Place) -> None:
    place.own("L")
    place.stores.pop(place.spec("L").ledger).close()
    shutil.copytree(place.root / "L", place.root / "older")
    place.own("L")
    for existing in (None, "keep", "replace"):
        owner = OutputOwner(place.spec("older"), existing)
        if existing is None:
            with pytest.raises(
                UsageError, match=f"a newer copy of the ledger .*older has written here: .*; it was at {place.root}/L"
            ):
                owner.check(place.store(place.spec("older")))
        else:
            owner.check(place.store(place.spec("older")))
            assert (owner.keeps, owner.is_new, owner.is_alone) == (existing == "keep", False, existing == "replace")
            owner.replace()
    place.own("older")
    with pytest.raises(UsageError, match="a newer copy of the ledger"):
        place.owner(place.spec("L"))


@pytest.mark.parametrize("remote", [False, True])
def test_a_later_state_of_the_ledger_in_its_place_is_to_be_restored(place: Place, remote: bool) -> None:
    spec = place.spec()
    store = place.store(spec)
    if remote:
        spec = dataclasses.replace(spec, ledger="s3://bucket/L")
    place.owner(spec).claim(store, "a run that is not in this state")
    with pytest.raises(UsageError) as refused:
        OutputOwner(spec, None).check(store)
    other_host = ", or resume on the host whose local copy is complete" if remote else ""
    assert str(refused.value).startswith(
        f"{place.out}: a newer copy of the ledger {spec.ledger} has written here: this ledger is an older copy. "
        f"Restore the newer one{other_host}; otherwise\ngive another --output, or choose"
    )


def test_the_first_of_two_runs_of_a_ledger_is_known_too(place: Place) -> None:
    """Two launchers of one ledger: the one that marked the folder last may be the one that began first."""
    spec = place.own()
    store = place.store(spec)
    store.begin_run(run_info(store, spec, "local"))
    place.owner(spec)


def test_a_ledger_that_has_written_there_needs_no_mark(place: Place) -> None:
    spec = place.own()
    shutil.rmtree(place.out / "_ledgerbeam")
    place.shard()
    owner = place.owner(spec)
    assert not owner.is_new
    place.claim(spec, owner)
    assert list(place.marks()) == ["L"]


def test_a_ledger_that_has_written_elsewhere_is_new_there(place: Place) -> None:
    spec = place.own()
    place.out = place.root / "other"
    assert place.owner(dataclasses.replace(spec, output=str(place.out))).is_new
    place.shard()
    with pytest.raises(UsageError, match=f"no ledger owns them: {SHARD}"):
        place.owner(dataclasses.replace(spec, output=str(place.out)))


def test_a_folder_that_was_moved_with_its_mark_has_its_owner(place: Place) -> None:
    spec = place.own()
    place.shard()
    place.out = place.out.rename(place.root / "moved")
    assert not place.owner(dataclasses.replace(spec, output=str(place.out))).is_new


def test_a_mark_that_goes_while_marks_are_read_is_nobodys(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ObjectFolder.names
    monkeypatch.setattr(ObjectFolder, "names", lambda *args: ["_ledgerbeam/gone.json", *names(*args)])
    assert place.owner(place.spec()).is_new


def test_a_folder_that_has_gone_with_its_mark_since_the_run_began_is_told(place: Place) -> None:
    spec = place.spec()
    owner = place.owner(spec)
    place.claim(spec, owner)
    owner.check_kept(place.store(spec))
    place.out.rename(place.root / "moved")
    place.out.mkdir()
    with pytest.raises(StorageError, match=r"expected the mark of this run, _ledgerbeam/.*move it back"):
        owner.check_kept(place.store(spec))


def test_another_launcher_may_remove_the_shards_of_a_stage_with_their_mark(place: Place) -> None:
    spec = place.spec(to="megatron", dataset=MergedParts(str(place.root / "all"), ("", "-text"), "int32"))
    owner = place.owner(spec)
    place.claim(spec, owner)
    shutil.rmtree(place.out)
    owner.check_kept(place.store(spec))


def test_an_owner_goes_on_beside_one_that_came_later(place: Place) -> None:
    spec = place.own("L")
    place.own("M", "keep")
    before = place.marks()["L"]["run"]
    place.claim(spec, place.owner(spec))
    assert sorted(place.marks()) == ["L", "M"]
    assert place.marks()["L"]["run"] != before


def test_who_claims_a_folder_notes_it_in_one_around_it_that_has_an_owner(place: Place) -> None:
    place.own("L")
    place.own("M", output=f"{place.out}/inner")
    assert list(nested_folders.nested_owners(str(place.out))) == ["inner"]


@pytest.mark.parametrize(
    ("name", "existing", "is_told"),
    [("inner/a", None, True), ("inner/a", "keep", False), ("innermost/a", None, False), ("a", None, False)],
)
def test_who_has_written_into_a_folder_that_another_has_claimed_since_is_told(
    place: Place, name: str, existing: Existing | None, is_told: bool
) -> None:
    spec = place.spec("L")
    owner = place.owner(spec)
    place.claim(spec, owner)
    record(place.store(spec), "b", name)
    if existing:
        place.shard(f"inner/{SHARD}")
    inner = place.own("M", existing, output=f"{place.out}/inner")
    place.own("N", existing, output=f"{place.out}/inner/most")
    place.claim(inner, place.owner(inner))  # another run, which need not be told again to keep what is there
    told = pytest.raises(StorageError, match=rf"out/inner/a: .*{place.out}/inner/ is now the output folder of .*_")
    with told if is_told else nullcontext():
        owner.check_kept(place.store(spec))


@pytest.mark.parametrize("existing", [None, "keep", "replace"])
def test_who_claims_a_folder_looks_once_more_for_what_the_owner_of_one_around_it_has_written(
    place: Place, existing: Existing | None
) -> None:
    place.own("L")
    if existing:
        place.shard(f"inner/{SHARD}")
    spec = place.spec("M", output=f"{place.out}/inner")
    owner = place.owner(spec, existing)
    shard = place.shard("inner/b.jsonl-0000000000.jsonl")
    refused = pytest.raises(
        UsageError, match=rf"out/inner: the job that owns {place.out} has just written .*: {shard.name}\nrun one of"
    )
    with nullcontext() if existing == "keep" else refused:
        place.claim(spec, owner)
    assert ObjectFolder(f"{place.out}/inner").names("_ledgerbeam") == (
        [f"_ledgerbeam/{place.store(spec).ledger_id()}.json"] if existing == "keep" else []
    )


def test_a_folder_below_whose_mark_is_gone_by_then_is_nobodys(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = place.spec("L")
    owner = place.owner(spec)
    place.claim(spec, owner)
    record(place.store(spec), "inner/a")
    place.own("M", output=f"{place.out}/inner")
    monkeypatch.setattr(owner_module, "nested_owners", lambda *_: {"inner": "_ledgerbeam/gone.json"})
    owner.check_kept(place.store(spec))


def test_a_shard_that_came_since_the_check_is_a_strangers_if_nobody_owns_a_folder_around(place: Place) -> None:
    spec = place.spec("L")
    owner = place.owner(spec)
    place.shard()
    place.claim(spec, owner)
    assert owner.strangers(place.store(spec)) == [SHARD]


def test_who_claims_a_folder_again_has_shards_of_its_own_there(place: Place) -> None:
    place.own("L")
    spec = place.own("M", output=f"{place.out}/inner")
    place.shard(f"inner/{SHARD}")
    shutil.rmtree(place.out / "inner/_ledgerbeam")
    place.claim(spec, place.owner(spec))


def test_of_two_new_ledgers_at_once_the_second_gives_way(place: Place) -> None:
    first, second = place.spec("L"), place.spec("M")
    owners = [place.owner(spec) for spec in (first, second)]
    place.claim(first, owners[0])
    with pytest.raises(UsageError, match=f"another ledger, {place.root}/L, .*\n.*run one of the two jobs with another"):
        place.claim(second, owners[1])
    assert list(place.marks()) == ["L"]
    place.claim(first, owners[0])


def test_who_marks_a_folder_looks_for_others_afterwards(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = place.spec("L"), place.spec("M")
    owners = [place.owner(spec) for spec in (first, second)]

    def comes_second(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        place.claim(second, owners[1])
        publish_bytes(*args, **options)

    monkeypatch.setattr(owner_module, "publish_bytes", comes_second)
    with pytest.raises(UsageError, match=f"another ledger, {place.root}/M"):
        place.claim(first, owners[0])
    assert list(place.marks()) == ["M"]


@pytest.mark.parametrize("replaced", ["L", "older"])
def test_who_replaces_what_is_there_gives_way_to_who_came_since(place: Place, replaced: str) -> None:
    """Also a copy of a ledger, which finds a mark of its own: it is gone then."""
    first = place.own("L")
    place.stores.pop(first.ledger).close()
    shutil.copytree(place.root / "L", place.root / "older")
    place.own("L")
    running, second = place.owner(first), place.spec("older" if replaced == "older" else "M")
    owner = place.owner(second, "replace")
    if replaced == "L":
        place.claim(first, running)
    else:
        place.own("N")
    with pytest.raises(UsageError, match="run one of the two jobs"):
        place.claim(second, owner)
    assert list(place.marks()) == ["L" if replaced == "L" else "N"]


def test_who_keeps_what_is_there_gives_way_to_who_came_since(place: Place) -> None:
    place.own("L")
    second, third = place.spec("M"), place.spec("N")
    owners = [place.owner(spec, "keep") for spec in (second, third)]
    assert all(owner.keeps for owner in owners)
    place.claim(second, owners[0])
    with pytest.raises(UsageError, match="run one of the two jobs"):
        place.claim(third, owners[1])
    assert sorted(place.marks()) == ["L", "M"]
    place.claim(second, owners[0])  # a job that is merged runs again: what came since was told to keep


def let_run(monkeypatch: pytest.MonkeyPatch, work: Callable[[JobListing], object]) -> None:
    """Have runs do this in the place of their waves."""

    class Runner:
        deaths, done, records, stopped, submitted, spent = 0, Totals(), RecordCounts(), False, False, ""

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def run(self, listed: JobListing) -> None:
            work(listed)

    monkeypatch.setattr("ledgerbeam.pipelines.runners.run.LocalRunner", Runner)


def test_nothing_runs_before_the_mark_is_there_or_without_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    let_run(monkeypatch, lambda _: ran.append(list(place.marks())))
    specs = [place.spec(name) for name in "LM"]
    owners = [place.owner(spec) for spec in specs]
    for spec, owner in zip(specs, owners, strict=True):
        with nullcontext() if not ran else pytest.raises(UsageError, match="run one of the two jobs"):
            console = Reporter(as_json=False, quiet=True)
            run_job(spec, place.store(spec), iter(()), console, waves=Waves("warning"), owner=owner)
    assert ran == [["L"]]
    assert [run["outcome"] for run in place.store(specs[1]).runs()] == ["failed"]


def test_nothing_is_removed_from_what_took_the_folders_place(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def move(listed: JobListing) -> None:
        place.out.rename(place.root / "moved")
        place.shard()

    let_run(monkeypatch, move)
    spec = place.own()
    store = place.store(spec)
    record(store, SHARD)
    now = Source(SOURCE.url, SOURCE.size, "2")
    store.register([now])
    store.commit([Leaf(now.id, (), "published", (), 1, 3)])
    assert store.stale_outputs() == [SHARD]
    console = Reporter(as_json=False, quiet=True)
    with pytest.raises(StorageError, match="expected the mark of this run"):
        run_job(spec, store, iter(()), console, waves=Waves("warning"), owner=place.owner(spec))
    assert place.files() == [SHARD]


def test_a_launcher_that_looked_before_another_one_of_its_ledger_began_goes_on(place: Place) -> None:
    spec = place.spec()
    owner = OutputOwner(spec, None)
    place.own()
    owner.check(None)
    place.claim(spec, owner)


def test_a_later_run_of_one_owner_does_not_ask_again(place: Place) -> None:
    spec = place.spec("L")
    owner = place.owner(spec)
    place.claim(spec, owner)
    place.own("M", "keep")
    place.claim(spec, owner)
    assert sorted(place.marks()) == ["L", "M"]


def test_what_is_replaced_are_shards_and_marks_and_nothing_else(place: Place) -> None:
    place.own("L")
    for name in (SHARD, "sub/b.jsonl-0000000010-000001.jsonl.idx", "a.jsonl", "c-0000000000.tar"):
        place.shard(name)
    spec = place.spec("M")
    owner = place.owner(spec, "replace")
    assert place.files() == ["a.jsonl", "c-0000000000.tar"]
    assert place.marks() == {}
    assert not owner.keeps
    place.claim(spec, owner)
    assert list(place.marks()) == ["M"]


@pytest.mark.parametrize(
    ("pattern", "shard"),
    [
        ("out/*.jsonl", SHARD),
        ("out/**/*.jsonl", f"de/{SHARD}"),
        ("out/{de,en}/a*", f"de/{SHARD}"),
        ("out/de/*.jsonl", f"de/{SHARD}"),
        ("link/*.jsonl", SHARD),
    ],
)
def test_what_the_patterns_name_in_the_output_folder_is_not_replaced(place: Place, pattern: str, shard: str) -> None:
    """Whose sources are shards of an earlier job would lose them."""
    (place.root / "link").symlink_to("out")
    path = place.shard(shard)
    spec = place.spec(patterns=(f"{place.root}/in/*.jsonl", f"{place.root}/{pattern}"), base=f"{place.root}/")
    with pytest.raises(UsageError, match=f"{shard}: --existing replace would remove it, and a pattern of the sources"):
        place.owner(spec, "replace")
    assert path.exists()
    assert place.owner(spec, "keep").keeps


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "out/b*.jsonl", "out/*/*.jsonl", "in/*.jsonl"])
def test_shards_that_no_pattern_names_where_they_lie_are_replaced(place: Place, pattern: str) -> None:
    path = place.shard()
    place.own(existing="replace", patterns=(f"{place.root}/{pattern}",), base=f"{place.root}/")
    assert not path.exists()


def test_the_marks_go_after_the_shards(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.own("L")
    shard = place.shard()
    delete = ObjectFolder.delete

    def fail(folder: ObjectFolder, names: Any) -> None:
        if SHARD in (asked := list(names)):
            raise StorageError("no")
        delete(folder, asked)

    monkeypatch.setattr(ObjectFolder, "delete", fail)
    with pytest.raises(StorageError):
        place.owner(place.spec("M"), "replace")
    assert shard.exists()
    assert list(place.marks()) == ["L"]


def test_who_keeps_what_is_there_is_not_alone_and_who_replaces_it_is_again(place: Place) -> None:
    place.shard()
    spec = place.spec("L")
    assert not place.owner(spec, "keep").is_alone
    assert place.owner(spec, "replace").is_alone
    place.shard()
    place.own("L", "keep")
    shutil.rmtree(place.out / "_ledgerbeam")
    place.own("M", "keep")
    assert not place.owner(spec, "replace").is_alone, "it has kept something before"
    place.own("N")
    assert place.owner(place.spec("O"), "replace").is_alone


def test_who_has_kept_what_is_there_in_any_run_is_not_alone(place: Place) -> None:
    place.shard()
    spec = place.own(existing="keep")
    place.claim(spec, place.owner(spec))
    assert not place.owner(spec).is_alone


def test_what_is_kept_is_all(place: Place) -> None:
    place.own("L")
    place.shard()
    place.own("M", "keep")
    assert place.files() == [SHARD]
    assert sorted(place.marks()) == ["L", "M"]


def test_shards_in_a_folder_with_an_owner_of_its_own_are_left(place: Place) -> None:
    place.shard(f"inner/{SHARD}")
    place.shard(f"inner/deep/{SHARD}")
    place.shard(f"innermost/{SHARD}")
    place.shard()
    (place.out / "inner/_ledgerbeam").mkdir()
    (place.out / "inner/_ledgerbeam/0.json").write_text("{}")
    place.owner(place.spec(), "replace")
    assert place.files() == [f"inner/{SHARD}", f"inner/deep/{SHARD}"]


def test_shards_of_an_inner_owner_are_left_in_a_store_too(place: Place) -> None:
    """A store lists all folders in one page."""
    url = f"memory://{place.root.name}"
    folder = ObjectFolder(url)
    for name in (f"inner/{SHARD}", "inner/_ledgerbeam/0.json", SHARD, f"other/{SHARD}"):
        folder.create(name, b"{}")
    place.owner(place.spec(output=url), "replace")
    assert folder.names("") == ["inner/_ledgerbeam/0.json", f"inner/{SHARD}"]


@pytest.mark.parametrize(("shards", "listings"), [(["", "b"], 1), (["x/", "y/", "z/"], 2)])
def test_a_folder_is_listed_once_and_for_inner_owners_once_more(
    place: Place, monkeypatch: pytest.MonkeyPatch, shards: list[str], listings: int
) -> None:
    for beginning in shards:
        place.shard(f"{beginning}{SHARD}")
    seen: list[str] = []

    def counted(url: str, *args: Any, **options: Any) -> Any:
        seen.append(url)
        return list_files(url, *args, **options)

    for module in (owner_module, nested_folders):
        monkeypatch.setattr(module, "list_files", counted)
    assert len(list(chain.from_iterable(owner_module.shards_below(str(place.out), shard_form("jsonl"), {})))) == len(
        shards
    )
    assert len(seen) == listings


@pytest.mark.parametrize("name", ["all.bin", "all.idx", "all-text.bin", "all-text.idx"])
def test_a_merged_dataset_of_nobody_is_refused_and_replaced(place: Place, name: str) -> None:
    dataset = MergedParts(str(place.root / "all"), ("", "-text"), "int32")
    spec = place.spec(dataset=dataset)
    place.owner(spec)
    merged = place.root / name
    merged.write_text("precious")
    with pytest.raises(UsageError, match=f"{merged}: this job would replace this file"):
        place.owner(spec)
    assert merged.exists()
    place.owner(spec, "replace")
    assert not merged.exists()
    place.own(dataset=dataset)
    merged.write_text("ours")
    place.owner(spec)


class TestStrangers:
    def test_shards_that_the_ledger_does_not_know_are_told(self, place: Place) -> None:
        spec = place.own()
        known = [SHARD, *(f"{letter}.jsonl-0000000000.jsonl" for letter in "cdef")]
        record(place.store(spec), *known)
        told = ["a.jsonl-0000000009.jsonl", "b.jsonl-0000000000.jsonl"]
        for name in (*known, *told, "a.jsonl"):
            place.shard(name)
        assert sorted(place.owner(spec).strangers(place.store(spec))) == told

    def test_no_more_than_the_first_few_are_named(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(owner_module, "MOST_STRANGERS", 2)
        spec = place.own()
        for number in range(3):
            place.shard(f"a.jsonl-000000000{number}.jsonl")
        assert len(place.owner(spec).strangers(place.store(spec))) == 2

    def test_they_are_looked_for_in_all_of_the_folder(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(objects, "_PAGE", 1)
        spec = place.own()
        names = [f"{letter}.jsonl-0000000000.jsonl" for letter in "abc"]
        for name in names:
            place.shard(name)
        assert sorted(place.owner(spec).strangers(place.store(spec))) == names

    @pytest.mark.parametrize("mine", [False, True], ids=["theirs", "mine"])
    def test_where_others_write_too_nothing_is_told(self, place: Place, mine: bool) -> None:
        """The former owner has its shards there, whether it marks the folder still or has left."""
        place.own("L")
        spec = place.own("M", "keep")
        place.own("M")
        place.shard()
        for path in (place.out / "_ledgerbeam").iterdir():
            if mine and place.store(spec).ledger_id() not in path.name:
                path.unlink()
        assert place.owner(spec).strangers(place.store(spec)) == []
        assert place.files() == [SHARD]

    def test_they_are_looked_for_where_outputs_were_gone(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who has removed outputs may have put others there, also behind a run that ended in good order."""

        def write(listed: JobListing) -> None:
            assert [[one.url for one in page] for page in listed.open_sources()] == [[SOURCE.url]]
            record(place.store(spec), SHARD)
            place.shard()

        let_run(monkeypatch, write)
        spec = place.own()
        store = place.store(spec)
        record(store, SHARD)
        place.shard("b.jsonl-0000000000.jsonl")
        (run,) = store.runs()
        store.end_run(run["id"], DONE, tidied=True)
        pages = iter([Page([SOURCE.url], [SOURCE.size], [SOURCE.version])])
        console = Reporter(as_json=False, quiet=True)
        outcome = run_job(spec, store, pages, console, waves=Waves("warning"), owner=place.owner(spec))
        assert outcome.is_complete
        assert outcome.unrecorded == 1

    def test_what_is_kept_is_not_told(self, place: Place) -> None:
        place.shard()
        owner = place.owner(place.spec(), "keep")
        assert owner.keeps
        assert owner.strangers(place.store(place.spec())) == []


@pytest.mark.parametrize("what", ["link", "file"])
def test_a_mark_is_not_written_through_a_link(place: Place, what: str) -> None:
    place.out.mkdir()
    (place.root / "victim").mkdir()
    marks = place.out / "_ledgerbeam"
    marks.symlink_to(place.root / "victim") if what == "link" else marks.write_text("x")
    with pytest.raises(StorageError, match=f"{marks}: expected a folder.*Move it away"):
        place.own()
    assert list((place.root / "victim").iterdir()) == []


class TestRestart:
    """A ledger that is taken for another job: what a killed run of the former has left goes."""

    LOST = "a.jsonl-0000000009.jsonl"

    def restarted(self, place: Place, spec: JobSpec, **fields: Any) -> list[str]:
        place.owner(place.spec(**fields)).begin_restart(place.store(spec))
        return place.files()

    @pytest.fixture
    def spec(self, place: Place) -> JobSpec:
        spec = place.own()
        record(place.store(spec), SHARD)
        for name in (SHARD, self.LOST, "a.jsonl", "c-0000000000.tar"):
            place.shard(name)
        return spec

    @pytest.mark.parametrize(("fields", "goes"), [({"task_bytes": 7}, True), ({"to": "tar"}, True), ({}, False)])
    def test_what_was_not_recorded_goes_for_another_job(
        self, place: Place, spec: JobSpec, fields: dict[str, Any], goes: bool
    ) -> None:
        left = ["a.jsonl", SHARD, *([] if goes else [self.LOST]), "c-0000000000.tar"]
        assert self.restarted(place, spec, **fields) == left

    def test_nothing_goes_where_the_ledger_has_not_written(self, place: Place, spec: JobSpec) -> None:
        place.out = place.root / "other"
        place.shard(self.LOST)
        other = dataclasses.replace(spec, output=str(place.out))
        place.owner(other, "keep").begin_restart(place.store(spec))
        assert place.files() == [self.LOST]

    def test_nothing_goes_where_others_write_too(self, place: Place, spec: JobSpec) -> None:
        place.own("M", "keep")
        assert self.LOST in self.restarted(place, spec, task_bytes=7)

    def test_nothing_goes_if_there_was_no_job(self, place: Place, spec: JobSpec) -> None:
        store = open_local_store(str(place.root / "N"), create=True)
        place.owner(spec).begin_restart(store)
        store.close()
        assert self.LOST in place.files()
