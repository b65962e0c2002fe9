"""What `forget_lost` and `unrecorded` find in a folder or a store, without whole jobs; `test_recorded` has those."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.io import Options
from ledgerbeam.io.listing.nested_folders import list_files
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger import Job, LedgerStore, Output, Source
from ledgerbeam.ledger.model.rows import Leaf, OutputColumns
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.jobs.one_stage import IndexJob, MapJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs import recorded
from ledgerbeam.pipelines.outputs.recorded import OutputFolder, count_lost, forget_lost, lost_sources, unrecorded


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    made = open_local_store(str(tmp_path / "ledger"), create=True)
    made.open_job(Job("map", {}))
    yield made
    made.close()


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectFolder:
    return ObjectFolder(str(tmp_path / "out") if request.param == "local" else f"memory://{tmp_path.name}/out")


def record(store: LedgerStore, *sources: list[tuple[str, int]]) -> list[bytes]:
    """Records sources as complete, with outputs of sizes; gives their ids."""
    found = [Source(f"/in/{rows[0][0]}", 10, "1") for rows in sources]
    store.register(found)
    outputs = [tuple(Output(name, size, "sum", 1, 0) for name, size in rows) for rows in sources]
    store.commit([Leaf(of.id, (), "published", rows, 1, 3) for of, rows in zip(found, outputs, strict=True)])
    return [source.id for source in found]


def write(folder: ObjectFolder, store: LedgerStore, count: int = 12) -> list[bytes]:
    """Records and writes outputs: of each source one above and one in a folder of its own."""
    rows = [[(f"{number}.jsonl", 10 + number), (f"{number}/deep.jsonl", 3)] for number in range(count)]
    put(folder, *chain.from_iterable(rows))
    return record(store, *rows)


def put(folder: ObjectFolder, *files: tuple[str, int]) -> None:
    """Write files of sizes."""
    for name, size in files:
        if folder.url.startswith("/"):
            path = Path(folder.url, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * size)
        else:
            folder.create(name, b"x" * size)


def complete(store: LedgerStore, ids: list[bytes]) -> list[int]:
    """Return which sources are still complete."""
    return [number for number, done in enumerate(store.completed_mask(ids)) if done]


class Elsewhere:
    """A ledger in which others work too: its count of outputs is not that of its pages, which are small."""

    def __init__(self, store: LedgerStore, count: int | None = None) -> None:
        self._store = store
        self._count = count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def output_count(self) -> int:
        return self._store.output_count() if self._count is None else self._count

    def output_columns(self) -> Iterator[OutputColumns]:
        for ids, names, sizes in self._store.output_columns():
            for row in range(0, len(ids), 3):
                yield OutputColumns(ids[row : row + 3], names[row : row + 3], sizes[row : row + 3])


def lost(folder: ObjectFolder, store: Any) -> int:
    spec = MapJob(files=ListedFiles(), function="m:f", made_of={"module": {"m": "ab"}}, output=folder.url, to="jsonl")
    return forget_lost(spec, store)


def test_what_is_lost_of_a_folder_is_told_without_forgetting_it(folder: ObjectFolder, store: LedgerStore) -> None:
    ids = write(folder, store, 4)
    outputs = OutputFolder(folder.url, {})
    assert (count_lost(outputs, store), lost_sources(outputs, store)) == (0, set())
    folder.delete(["1.jsonl", "2.jsonl", "2/deep.jsonl"])
    assert (count_lost(outputs, store), lost_sources(outputs, store)) == (3, {ids[1], ids[2]})
    assert complete(store, ids) == [0, 1, 2, 3]
    assert forget_lost(outputs, store) == 3
    assert complete(store, ids) == [0, 3]


def test_nothing_is_lost_of_what_lies_there_as_recorded(folder: ObjectFolder, store: LedgerStore) -> None:
    assert lost(folder, store) == 0
    ids = write(folder, store)
    put(folder, ("of-another", 10))
    assert lost(folder, store) == 0
    assert lost(folder, Elsewhere(store)) == 0
    assert complete(store, ids) == list(range(12))


def test_sources_of_what_is_gone_are_forgotten_and_no_other(folder: ObjectFolder, store: LedgerStore) -> None:
    ids = write(folder, store)
    folder.delete(["0.jsonl", "3/deep.jsonl", "11.jsonl", "11/deep.jsonl"])
    put(folder, *((f"of-another-{number}", 10) for number in range(30)))
    assert lost(folder, Elsewhere(store)) >= 3
    assert complete(store, ids) == [1, 2, *range(4, 11)]
    assert lost(folder, store) == 0


def test_all_is_gone(folder: ObjectFolder, store: LedgerStore) -> None:
    ids = write(folder, store, 5)
    folder.delete(folder.names(""))
    assert lost(folder, store) == 10
    assert complete(store, ids) == []


@pytest.mark.parametrize("size", [0, 1, 16, 1000])
def test_another_size_is_refused_and_told(folder: ObjectFolder, store: LedgerStore, size: int) -> None:
    """Beside many files of others."""
    ids = write(folder, store)
    put(folder, *((f"of-another-{number}", 100 + number) for number in range(30)))
    folder.delete(["5.jsonl"])
    put(folder, ("5.jsonl", size))
    said = f"^{folder.url}/5.jsonl: expected 15 bytes, as .* found {size:,}: it was cut short"
    for ledger in (store, Elsewhere(store)):
        with pytest.raises(StorageError, match=said):
            lost(folder, ledger)
    assert complete(store, ids) == list(range(12))


@pytest.mark.parametrize("count", [1, 23, 25, 1000])
def test_what_another_run_records_or_forgets_meanwhile_does_not_matter(
    folder: ObjectFolder, store: LedgerStore, count: int
) -> None:
    ids = write(folder, store)
    assert lost(folder, Elsewhere(store, count)) == 0
    assert complete(store, ids) == list(range(12))
    folder.delete(["4.jsonl"])
    assert lost(folder, Elsewhere(store, max(count, 24))) == 1
    assert complete(store, ids) == [0, 1, 2, 3, *range(5, 12)]


def test_a_ledger_that_forgets_all_meanwhile_has_lost_nothing(folder: ObjectFolder, store: LedgerStore) -> None:
    put(folder, ("left", 5))
    assert lost(folder, Elsewhere(store, 5)) == 0


class TestIndexes:
    """An index job names its outputs by their URL, and takes any other size as gone."""

    @pytest.fixture
    def listed(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bool]]:
        """What is listed, by a store that gives no more than it is asked for."""
        asked: list[tuple[str, str, bool]] = []

        def strictly(
            folder: str, options: Options | None = None, *, beginning: str = "", recursive: bool = True
        ) -> Iterator[Any]:
            asked.append((folder, beginning, recursive))
            for page in list_files(folder, options):
                wanted = [name.startswith(beginning) and (recursive or "/" not in name) for name in page.names]
                rows = [(name, size) for name, size, is_wanted in zip(*page, wanted, strict=True) if is_wanted]
                yield type(page)([name for name, _ in rows], [size for _, size in rows])

        monkeypatch.setattr(recorded, "list_files", strictly)
        return asked

    def indexes(self, root: str, store: LedgerStore, *names: str) -> list[bytes]:
        folder = ObjectFolder(root)
        put(folder, *((name, 24) for name in names))
        return record(store, *([(f"{root}/{name}", 24)] for name in names))

    @pytest.mark.parametrize(
        "case",
        [
            ("in/*.jsonl", ["in/a.jsonl.idx", "in/b.jsonl.idx"], [("/in", "", False)]),
            ("in/a.jsonl in/b.jsonl", ["in/a.jsonl.idx"], [("/in", "a.jsonl", False), ("/in", "b.jsonl", False)]),
            ("in/{a,b}*.tar", ["in/a.tar.idx", "in/b.tar.idx"], [("/in", "a", False), ("/in", "b", False)]),
            ("in/x*/a.tar.gz", ["in/x1/a.tar.gz.gzidx"], [("/in", "x", True)]),
            ("in/**", ["in/p/q/a.tar.idx"], [("/in", "", True)]),
            ("in/**/a.tar", ["in/a.tar.idx", "in/p/q/a.tar.idx"], [("/in", "", True)]),
            ("in/a[12].tar in/?.tar", ["in/a1.tar.idx", "in/b.tar.idx"], [("/in", "", False), ("/in", "a", False)]),
        ],
    )
    def test_beside_their_sources_only_what_the_patterns_may_name_is_listed(
        self,
        tmp_path: Path,
        store: LedgerStore,
        listed: list[tuple[str, str, bool]],
        case: tuple[str, list[str], list[tuple[str, str, bool]]],
    ) -> None:
        root = f"memory://{tmp_path.name}"
        patterns, names, places = case
        ids = self.indexes(root, store, *names)
        ObjectFolder(root).create("in/a.jsonl", b"x" * 24)
        spec = IndexJob(files=ListedFiles(patterns=tuple(f"{root}/{pattern}" for pattern in patterns.split())))
        assert forget_lost(spec, store) == 0
        assert listed == [(f"{root}{folder}", beginning, recursive) for folder, beginning, recursive in places]
        ObjectFolder(root).delete([names[0]])
        assert forget_lost(spec, store) == 1
        assert complete(store, ids) == list(range(1, len(names)))

    @pytest.mark.parametrize("scheme", ["memory://", "/"])
    def test_below_a_root_of_their_own(self, tmp_path: Path, store: LedgerStore, scheme: str) -> None:
        root = f"{scheme}{str(tmp_path)[1:]}/roots"
        ids = self.indexes(root, store, "s3/in/a.tar.idx", "b.tar.gzidx", "c.tar.idx")
        spec = IndexJob(files=ListedFiles(patterns=("s3://bucket/in/*.tar",), index_root=root))
        assert forget_lost(spec, store) == 0
        ObjectFolder(root).delete(["b.tar.gzidx", "c.tar.idx"])
        ObjectFolder(root).create("c.tar.idx", b"x" * 25)
        assert forget_lost(spec, store) == 2
        assert complete(store, ids) == [0]

    @pytest.mark.parametrize("mixed", [False, True])
    def test_of_a_list_of_sources_each_is_asked_for(
        self, tmp_path: Path, store: LedgerStore, listed: list[tuple[str, str, bool]], mixed: bool
    ) -> None:
        root = str(tmp_path / "in")
        ids = self.indexes(root, store, "a.tar.idx", "b.tar.idx", "c.tar.idx")
        gone: list[bytes] = []
        if mixed:
            ids += self.indexes(f"memory://{tmp_path.name}", store, "d.tar.idx")
        spec = IndexJob(files=ListedFiles(sources_from="/list"))
        assert forget_lost(spec, store) == 0
        ObjectFolder(root).delete(["a.tar.idx", "b.tar.idx"])
        ObjectFolder(root).create("b.tar.idx", b"x" * 23)
        if mixed:
            gone = record(store, *([(f"memory://{tmp_path.name}/gone{size}", size)] for size in range(3)))
        assert forget_lost(spec, store) == 2 + len(gone)
        assert complete(store, ids) == list(range(2, len(ids)))
        assert complete(store, gone) == []
        assert listed == []


def test_what_a_ledger_knows_or_has_superseded_is_recorded(store: LedgerStore) -> None:
    pages = [["a", "b"], [], ["c", "d"], ["x"]]
    assert list(unrecorded(pages, store)) == [["a", "b"], ["c", "d"], ["x"]]
    gone, _ = record(store, [("b", 1), ("c", 1)], [("a", 1)])
    assert list(unrecorded(pages, store)) == [["d"], ["x"]]
    store.forget_sources([gone])
    assert list(unrecorded(pages, store)) == [["d"], ["x"]]
