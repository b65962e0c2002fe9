"""The look-up of adapters by entry points, and the identity of objects of other libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.pipelines.jobs.user_function import user_function
from ledgerbeam.user_code import adapters
from ledgerbeam.user_code.adapters import Adapter, adapted, adapter_of, file_checksums
from ledgerbeam.user_code.functions import made_of
from ledgerbeam.user_code.loading import PickledObject
from ledgerbeam.user_code.objects import UserObject, check_object

LIBRARY = """
class Threshold:
    def __init__(self, least=1, most=None):
        self.least, self.most, self.seen = least, most, []
    def keeps(self, text):
        self.seen.append(text)
        return len(text) >= self.least

class Corpus(Threshold):
    pass
"""
ADAPTER = """
import copy
import inspect
from ledgerbeam import Drop
from ledgerbeam.adapters import Adapter
from ledgerbeam.errors import FunctionError

class LibraryAdapter(Adapter):
    def knows(self, target):
        import itslib
        return issubclass(target if inspect.isclass(target) else type(target), itslib.Threshold)
    def adapt(self, target, *, batched):
        import itslib
        if (target if inspect.isclass(target) else type(target)) is itslib.Corpus:
            raise FunctionError("Corpus: it reads the whole corpus; use `ledgerbeam sort`")
        class Kept:
            __signature__ = inspect.signature(target) if inspect.isclass(target) else inspect.Signature()
            def __init__(self, **values):
                self.filter = target(**values) if inspect.isclass(target) else target
            def __call__(self, given):
                results = [one if self.filter.keeps(one["text"]) else Drop("short") for one in given if batched]
                return results if batched else given if self.filter.keeps(given["text"]) else Drop("short")
        return Kept
    def portable(self, target):
        if inspect.isclass(target):
            return target
        copied = copy.copy(target)
        copied.seen = []
        return copied
    def notes(self, target, values):
        return ["each text is counted alone"]
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a library, and the package of its adapter, into a folder of installed packages."""
    folder = tmp_path / "site-packages"
    for name, files in {
        "itslib-2.5": {},
        "its_adapter-1.0": {"entry_points.txt": "[ledgerbeam.adapters]\nitslib = its_adapter:LibraryAdapter\n"},
    }.items():
        info = folder / f"{name}.dist-info"
        info.mkdir(parents=True)
        distribution, _, version = name.partition("-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        for file, text in files.items():
            (info / file).write_text(text)
    (folder / "itslib.py").write_text(LIBRARY)
    (folder / "its_adapter.py").write_text(ADAPTER)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for module in ("itslib", "its_adapter", "rules"):
        sys.modules.pop(module, None)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Each test reads the entry points again."""
    caches = (adapters._loaded, adapters._names, adapters._version)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def test_an_object_of_a_library_is_adapted_by_the_entry_point_of_its_package(library: Path) -> None:
    ready = UserObject("itslib:Threshold", {"least": 3}).ready()
    assert [ready.call({"text": text}) for text in ("long", "s")] == [{"text": "long"}, adapters_drop("short")]
    many = UserObject("itslib:Threshold", {"least": 3}, batched=True).ready()
    assert many.call([{"text": "long"}]) == [{"text": "long"}]


def adapters_drop(reason: str) -> Any:
    from ledgerbeam import Drop

    return Drop(reason)


def test_a_class_of_the_user_that_extends_the_library_is_adapted(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.py").write_text(
        "import itslib\nclass Own(itslib.Threshold): pass\nown = Own(2)\nthreshold = itslib.Threshold(5)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for reference in ("rules:Own", "rules:own"):
        assert UserObject(reference, {}).ready().call({"text": "abc"}) == {"text": "abc"}
    found = made_of("rules:threshold")
    assert found["package"] == {"itslib": "2.5"}
    assert found["attribute"] == {"least": "5", "most": "None"}
    assert {"rules"} <= found["module"].keys()


def test_an_instance_is_sent_without_its_state(library: Path) -> None:
    import itslib  # type: ignore[import-not-found]

    used, new = itslib.Threshold(4), itslib.Threshold(4)
    used.keeps("text")
    one, other = user_function(used), user_function(new)
    assert isinstance(one.reference, PickledObject)
    assert one == other
    assert one.made_of != user_function(itslib.Threshold(5)).made_of
    assert UserObject(one.reference, {}).ready().call({"text": "abc"}) == adapters_drop("short")
    assert used.seen == ["text"]


def test_values_are_checked_and_refusals_name_a_command(library: Path) -> None:
    with pytest.raises(UsageError, match="no such parameter; it takes least, most"):
        check_object("itslib:Threshold", {"lest": 1})
    with pytest.raises(FunctionError, match="use `ledgerbeam sort`"):
        check_object("itslib:Corpus", {})


def test_the_notes_of_an_adapter_are_logged_once_by_the_launcher(
    library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = user_function("itslib:Threshold")
    UserObject(made.reference, {}).ready()
    assert [record.message for record in caplog.records] == ["itslib:Threshold: each text is counted alone"]


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("itslib = its_adapter:Missing", "adapter 'itslib' of the entry points ledgerbeam.adapters: it cannot be"),
        ("itslib = no_such_module:Adapter", "correct or uninstall its package"),
    ],
)
def test_an_adapter_that_cannot_be_loaded_is_named(library: Path, point: str, said: str) -> None:
    (library / "its_adapter-1.0.dist-info" / "entry_points.txt").write_text(f"[ledgerbeam.adapters]\n{point}\n")
    with pytest.raises(UsageError, match=said):
        check_object("itslib:Threshold", {})
    assert adapter_of(json.dumps) is None  # a broken adapter does not affect other objects


def test_a_style_is_named_and_unknown_styles_are_refused(library: Path) -> None:
    def double(example: Any) -> Any:
        return {"text": 2 * example["text"]}

    assert adapted(double) is double
    assert UserObject(reference_of_test("double_text"), {}, style="datasets").ready().call({"text": "a", "id": 1}) == {
        "text": "aa",
        "id": 1,
    }
    with pytest.raises(UsageError, match="--style tables: expected one of datasets, datatrove, itslib"):
        adapted(double, "tables")


def double_text(example: Any) -> Any:
    return {"text": 2 * example["text"]}


def reference_of_test(name: str) -> str:
    return f"{__name__}:{name}"


def test_a_style_does_not_change_objects_with_an_adapter(library: Path) -> None:
    import itslib

    assert isinstance(adapter_of(itslib.Threshold), Adapter)
    assert adapter_of(itslib.Threshold, "datasets") is adapter_of(itslib.Threshold)


def test_functions_and_classes_of_the_user_read_no_entry_points(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import functools\n"
        "def plain(record): return record\n"
        "part = functools.partial(plain)\n"
        "class Model:\n    def __call__(self, record): return record\n"
        "model = Model()\n"
    )
    program = (
        "import sys\n"
        "from ledgerbeam.user_code.objects import UserObject\n"
        "from ledgerbeam.user_code.functions import made_of\n"
        "for name in ('plain', 'part', 'Model', 'model', 'Model.__call__'):\n"
        "    made_of(f'own:{name}')\n"
        "UserObject('own:plain', {}).ready()\n"
        "UserObject('own:Model', {}).ready()\n"
        "from ledgerbeam.user_code import adapters\n"
        "assert not adapters._names.cache_info().currsize, 'entry points were read'\n"
        "assert 'ledgerbeam.adapters.datatrove' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def test_assets_are_identified_by_their_content(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("one")
    first = file_checksums({"words": str(words)})
    words.write_text("two!")
    assert file_checksums({"words": str(words)}) != first
    with pytest.raises(FunctionError, match=r"missing\.txt: this asset cannot be read"):
        file_checksums({"words": str(tmp_path / "missing.txt")})


def test_an_object_is_adapted_once_in_a_process(library: Path) -> None:
    import itslib

    made: Callable[..., Any] = adapted(itslib.Threshold)
    assert adapted(itslib.Threshold) is made
    assert adapted(itslib.Threshold, batched=True) is not made
