"""User code: how it is imported, its exceptions in bounded messages, and its exits and forks."""

from __future__ import annotations

import asyncio
import base64
import collections
import importlib
import importlib.util
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.ledger import Source, Task
from ledgerbeam.user_code import guards as no_exit_module
from ledgerbeam.user_code import loading as user_code
from ledgerbeam.user_code.guards import (
    children,
    describe_error,
    end_child,
    failed_by,
    ignore_interrupt,
    is_break,
    is_interrupt,
    no_exit,
    raised_at,
    running_user_code,
)
from ledgerbeam.user_code.loading import SAFE_PATH, GivenObject, PickledObject, import_function, import_object
from tests.cases import each

TASK = Task(Source("/data/a.jsonl", 10, "1"), 0, 1, ((0, 1),))


class LiarError(ValueError):
    """Pretends to be of another class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return KeyboardInterrupt


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as found:  # noqa: BLE001 - what is tested
        return found


@each(
    ("error", "broke"),
    [
        (ValueError("x"), False),
        (asyncio.CancelledError(), True),
        (SystemExit(0), True),
        (GeneratorExit(), True),
        (LiarError("x"), False),
        (raised(FunctionError("cannot be imported"), SystemExit(1)), True),
        (raised(FunctionError("cannot be imported"), ImportError("x")), False),
        (raised(ValueError("x"), SystemExit(1)), False),
        (FunctionError("x"), False),
    ],
)
def test_what_would_have_ended_the_worker_is_told_from_what_would_not(error: BaseException, broke: bool) -> None:
    assert is_break(error) is broke
    failed = failed_by(error, TASK, "message")
    assert (failed.broke, failed.reason, failed.error) == (broke, type(error).__name__, "message")


def test_an_interrupt_is_one_in_the_main_thread_of_a_process_that_heeds_it() -> None:
    found: list[bool] = [is_interrupt(KeyboardInterrupt()), is_interrupt(LiarError()), is_interrupt(SystemExit())]
    thread = threading.Thread(target=lambda: found.append(is_interrupt(KeyboardInterrupt())))
    thread.start()
    thread.join()
    for handler in (ignore_interrupt, signal.SIG_IGN):
        before = signal.signal(signal.SIGINT, handler)
        found.append(is_interrupt(KeyboardInterrupt()))
        signal.signal(signal.SIGINT, before)
    assert found == [True, False, False, False, False, False]


def test_messages_are_cut_and_escaped() -> None:
    text = describe_error(raised(ValueError("é\ud800" + "x" * 5_000_000)))
    assert text.startswith(r"ValueError: é\ud800xxx")
    assert "(5,000,002 characters) (at " in text
    assert "test_loading.py:" in text
    assert len(text) < 2500
    text.encode()


class SilentError(Exception):
    """Has no text, and an exception in place of it that has none either."""

    def __str__(self) -> str:
        raise SilentError


@each(
    ("error", "text"),
    [
        (KeyError("text"), "KeyError: 'text' (at unknown place)"),
        (ValueError(), "ValueError:  (at unknown place)"),
        (SilentError(), "SilentError: (its text cannot be read: SilentError) (at unknown place)"),
        (type("Two\nLines", (Exception,), {})("x"), "Two Lines: x (at unknown place)"),
        (type("N" * 100, (Exception,), {})("x"), f"{'N' * 100}: x (at unknown place)"),
        (type("N" * 101, (Exception,), {})("x"), f"{'N' * 100} ... (101 characters): x (at unknown place)"),
        (ValueError("y" * 2000), f"ValueError: {'y' * 2000} (at unknown place)"),
        (ValueError("y" * 2001), f"ValueError: {'y' * 2000} ... (2,001 characters) (at unknown place)"),
    ],
)
def test_an_error_is_described_in_one_bounded_text(error: BaseException, text: str) -> None:
    assert describe_error(error) == text


def test_the_place_of_an_error_is_where_it_was_raised() -> None:
    def deep() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x") as caught:
        deep()
    line = deep.__code__.co_firstlineno + 1
    assert describe_error(caught.value) == f"ValueError: x (at {__file__}:{line})"


# By name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder. Modules imported from it are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder is not user_code._finder])
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_functions_are_imported_by_name() -> None:
    assert import_function("json:dumps") is json.dumps
    assert import_object("collections:OrderedDict.fromkeys") == collections.OrderedDict.fromkeys
    assert import_object("importlib.util:find_spec") is importlib.util.find_spec
    with pytest.raises(FunctionError, match="sys:path: expected a function, found list"):
        import_function("sys:path")
    assert import_object("sys:path") is sys.path


@each("reference", ["", "json", ":dumps", "json:", "s3://bucket/in.jsonl", "file:in/a.jsonl"])
def test_a_reference_of_another_form_is_refused(reference: str) -> None:
    with pytest.raises(FunctionError, match=rf"'{reference}': expected module:function"):
        import_object(reference)


def test_a_module_of_the_working_folder_is_found_and_the_folder_is_on_no_path(folder: Path) -> None:
    (folder / "own_work.py").write_text("import own_helper\ndef work(task):\n    return own_helper.FACTOR\n")
    (folder / "own_helper.py").write_text("FACTOR = 3\n")
    path = list(sys.path)
    for _ in range(2):
        assert import_function("own_work:work")(None) == 3
    assert sys.path == path
    assert sys.meta_path.count(user_code._finder) == 1
    (folder / "below").mkdir()
    os.chdir(folder / "below")
    (folder / "below" / "other_work.py").write_text("def work(task):\n    return 4\n")
    assert import_function("other_work:work")(None) == 4


def test_a_file_of_the_working_folder_does_not_stand_for_a_module_of_python_or_of_a_package(folder: Path) -> None:
    (folder / "own_work.py").write_text("def work(task): ...\n")
    (folder / "winreg.py").write_text("x = 1\n")  # which Python has on Windows only
    (folder / "no_such_part.py").write_text("x = 1\n")
    import_function("own_work:work")
    for name in ("winreg", "json.no_such_part"):
        with pytest.raises(ImportError):
            importlib.import_module(name)


def test_a_module_that_another_hides_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "colorsys.py").write_text("def work(task): ...\n")
    with pytest.raises(FunctionError, match=r"colorsys:work: .*/colorsys\.py is hidden by another .* 'colorsys', /"):
        import_object("colorsys:work")
    (folder / "sys.py").write_text("path = 1\n")
    with pytest.raises(FunctionError, match="is hidden by another module 'sys', "):
        import_object("sys:path")
    module = sys.modules["left_no_word"] = ModuleType("left_no_word")
    del module.__spec__
    (folder / "left_no_word.py").write_text("x = 1\n")
    with pytest.raises(FunctionError, match="is hidden by another module 'left_no_word', a package"):
        import_object("left_no_word:x")
    (folder / "json").mkdir()  # a folder of data hides nothing
    assert import_object("json:dumps") is json.dumps


def test_a_module_that_is_on_the_path_already_is_not_hidden_by_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own_work.py").write_text("def work(task):\n    return 5\n")
    monkeypatch.syspath_prepend(str(folder))
    assert [import_function("own_work:work")(None) for _ in range(2)] == [5, 5]


NAMES = [f"f{number:02d}" for number in range(12)]
MANY = "".join(f"def {name}(): ...\n" for name in [*reversed(NAMES), "_own"])
UNNAMED = "class Unnamed(str):\n    def __str__(self): raise LookupError\n"
MISSING = "raise ModuleNotFoundError('it', name={})\n"
REFUSED = [
    ("raises:work", "raise OSError('it')\n", r"'raises' cannot be imported: OSError: it \(at FOLDER/raises.py:1\)$"),
    ("half:work", "def work(task)\n    return 1\n", r"'half' cannot be imported: SyntaxError: .*\(half.py, line 1\)$"),
    ("needs:work", "import no_such\n", r"'needs' cannot be imported: .* 'no_such' \(at FOLDER/needs.py:1\)$"),
    ("None:work", MISSING.format("None"), "'None' cannot be imported: ModuleNotFoundError: it"),
    ("unnamed:work", UNNAMED + MISSING.format("Unnamed('unnamed')"), "'unnamed' cannot be imported: ModuleNotF.*: it"),
    ("no_such:work", None, "^no_such:work: there is no module 'no_such'; .*PYTHONPATH.*in FOLDER$"),
    ("no_such.inner:work", None, "^no_such.inner:work: there is no module 'no_such'; .*PYTHONPATH.*in FOLDER$"),
    ("own_package.no_such:work", None, "there is no module 'own_package.no_such'; .*PYTHONPATH.*in FOLDER$"),
    ("own_work.py:work", None, "^own_work.py:work: .*'own_work.py'; .*; name the module, not its file: own_work:work$"),
    ("many:g", MANY, f"'many' has no 'g'; it has {', '.join(NAMES[:10])}$"),
    ("no_function:g", "x = 1\n", "'no_function' has no 'g'; it has no functions"),
    ("__main__:clean", None, "a different module in each process; .* name it cleaning:clean, or"),
    ("__main__:Work.run", None, "a different module in each process; .* name it cleaning:Work.run, or"),
]
"""References, the text of their module, and the message."""


@each(("reference", "text", "said"), REFUSED)
def test_what_cannot_be_imported_is_refused_with_the_cause(
    folder: Path, reference: str, text: str | None, said: str
) -> None:
    (folder / "own_package").mkdir(exist_ok=True)
    for name in ("own_package/__init__.py", "own_work.py"):
        (folder / name).touch()
    if text is not None:
        (folder / f"{reference.partition(':')[0]}.py").write_text(text)
    importlib.invalidate_caches()
    with pytest.raises(FunctionError, match=said.replace("FOLDER", str(folder))):
        import_object(reference)


def test_the_exception_of_a_module_is_the_cause_and_an_interrupt_goes_through(folder: Path) -> None:
    (folder / "raises.py").write_text("raise OSError('no licence')\n")
    with pytest.raises(FunctionError) as caught:
        import_object("raises:work")
    assert isinstance(caught.value.__cause__, OSError)
    (folder / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        import_object("interrupted:work")


def test_a_module_that_is_imported_later_is_looked_for_in_the_folder_of_the_reference(folder: Path) -> None:
    (folder / "own_work.py").write_text("def work(task):\n    import own_late\n    return own_late.FACTOR\n")
    (folder / "own_late.py").write_text("FACTOR = 7\n")
    work = import_function("own_work:work")
    os.chdir("/")
    assert work(None) == 7


def test_a_module_of_which_a_finder_does_not_say_where_it_lies_hides_that_of_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any, target: Any = None) -> None:
            if name == "refused_work":
                raise ImportError(name)

    (folder / "refused_work.py").write_text("def work(task): ...\n")
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    with pytest.raises(FunctionError, match="is hidden by another module 'refused_work', a package"):
        import_object("refused_work:work")


# By itself


def pickled(value: Any, name: str = "__main__:clean") -> PickledObject:
    return PickledObject(name, base64.b64encode(pickle.dumps(value)).decode())


def test_an_object_that_is_not_named_is_loaded_once_in_a_process() -> None:
    one, other = pickled(["one"]), pickled(["other"])
    assert one.load() == import_object(one) == ["one"]
    assert one.load() is pickled(["one"], "again").load(), "it was loaded twice"
    assert other.load() == ["other"]
    assert (str(one), repr(one)) == ("__main__:clean", "<__main__:clean, pickled>")
    given = GivenObject("__main__:clean", one)
    assert import_object(given) is one
    assert f"{given}" == "__main__:clean"
    with pytest.raises(FunctionError, match=r"^__main__:clean: expected a function, found list"):
        import_function(one)


def test_an_object_that_cannot_be_loaded_is_told_and_an_interrupt_goes_through() -> None:
    broken = PickledObject("__main__:clean", base64.b64encode(b"cno_such_module\nclean\n.").decode())
    with pytest.raises(
        FunctionError, match=r"^__main__:clean: it cannot be loaded in a worker: ModuleNotFoundError: .*on PYTHONPATH"
    ) as caught:
        broken.load()
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    with pytest.raises(KeyboardInterrupt):
        pickled(Interrupting()).load()


class Waiting:
    began, go_on = threading.Event(), threading.Event()

    def __reduce__(self) -> Any:
        return _wait, ()


def _wait() -> None:
    Waiting.began.set()
    Waiting.go_on.wait(30)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_loads_what_it_needs_though_a_thread_of_its_parent_was_loading() -> None:
    thread = threading.Thread(target=pickled(Waiting()).load)
    thread.start()
    assert Waiting.began.wait(30)
    child = os.fork()
    if not child:
        signal.alarm(10)
        os._exit(0 if pickled(["in the child"]).load() == ["in the child"] else 1)
    Waiting.go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Interrupting:
    def __reduce__(self) -> Any:
        return exec, ("raise KeyboardInterrupt",)


def test_what_user_code_starts_has_the_path_of_any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, left in ((SAFE_PATH, None), ("1", "1")):
        monkeypatch.setenv("PYTHONSAFEPATH", value)
        import_object("json:dumps")
        assert os.environ.get("PYTHONSAFEPATH") == left


def test_functions_are_found_though_the_working_folder_is_gone(folder: Path) -> None:
    (folder / "gone").mkdir()
    os.chdir(folder / "gone")
    (folder / "gone").rmdir()
    assert import_object("json:dumps") is json.dumps
    with pytest.raises(FunctionError, match=r"no_such_work:work: there is no module 'no_such_work'; .*, and in /$"):
        import_object("no_such_work:work")


def forked(work: Callable[[], object]) -> int:
    """Return the exit status of a child that does this work; it is 0 where the work returns."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:  # noqa: BLE001 - the child ends here
            os._exit(99)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_it_is_an_exception_here_and_an_end_in_children() -> None:
    real = os._exit
    with no_exit():
        named = os._exit
        with pytest.raises(SystemExit, match=r"os\._exit\(3\)"):
            os._exit(3)
        assert [forked(lambda: os._exit(5)), forked(lambda: named(5))] == [5, 5]
    assert os._exit is real
    assert forked(lambda: named(6)) == 6


def test_the_first_of_two_threads_to_leave_does_not_open_the_door() -> None:
    real, entered, leave = os._exit, threading.Event(), threading.Event()

    def other() -> None:
        with no_exit():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with no_exit():
        thread.start()
        assert entered.wait(30)
    with pytest.raises(SystemExit):
        os._exit(4)  # not 0: if it ended this process, all tests would seem to have passed
    leave.set()
    thread.join()
    assert os._exit is real


def test_who_has_kept_the_name_ends_the_process_once_all_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    with no_exit():
        named = os._exit
    monkeypatch.setattr(no_exit_module, "_real", ended.append)
    with pytest.raises(SystemExit):  # the process of this test continues
        named(7)
    assert ended == [7]


RETURNS = """
import os, sys
from ledgerbeam.user_code.guards import running_user_code
from ledgerbeam.user_code.guards import no_exit

def way(how):
    if os.fork():
        os.wait()
    elif how == "raises":
        raise ValueError("in the child")
    elif how == "exits":
        sys.exit(0)

around = {around}
try:
    with around():
        way("{how}")
except BaseException as error:
    print("went on as", error)
print("went on")
"""


@each("around", ["running_user_code", "no_exit"])
@each("how", ["returns", "raises", "exits"])
def test_a_child_that_comes_back_ends_there_with_a_word(around: str, how: str) -> None:
    code = RETURNS.format(around=around, how=how)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "went on\n")
    assert "returned from the function and ends now" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_child_that_does_its_own_work_is_left_alone(tmp_path: Path) -> None:
    def work() -> None:
        with running_user_code(), no_exit():  # of this process
            (tmp_path / "done").write_text(str(children[0]), encoding="utf-8")

    with running_user_code():
        assert forked(work) == 0
    assert (tmp_path / "done").read_text(encoding="utf-8") == str(os.getpid())
    assert children == []


def test_what_is_forked_elsewhere_is_no_child_of_a_function() -> None:
    with running_user_code():
        pass
    assert forked(lambda: os._exit(len(children))) == 0


def ended_child(before: Callable[[], object]) -> int:
    def work() -> None:
        children.append(1)
        before()
        end_child()

    return forked(work)


def test_a_child_without_standard_error_ends_too() -> None:
    assert ended_child(lambda: os.close(2)) == 1


@pytest.mark.parametrize("is_named", [True, False], ids=["that the process names", "that is left where it names none"])
def test_the_word_goes_to_the_standard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool) -> None:
    with open(tmp_path / "said", "w", encoding="utf-8") as said:
        monkeypatch.setattr(sys, "__stderr__", said if is_named else None)
        assert ended_child(lambda: is_named or os.dup2(said.fileno(), 2)) == 1
    assert "returned from the function and ends now" in (tmp_path / "said").read_text(encoding="utf-8")


def test_pools_work() -> None:
    with running_user_code(), multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]


@pytest.mark.parametrize(
    "path", ["faller.py", "stumbled/over.py", "stumbled/deep/over.py", "stumbled/deep/__init__.py"]
)
def test_the_folder_of_an_installation_is_no_part_of_a_place(
    path: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    for inner in Path(path).parents[:-1]:
        (folder / inner / "__init__.py").touch()
    file.write_text("def fall():\n    raise ValueError('down')\n")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(ValueError, match="down") as caught:
        importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")).fall()
    assert raised_at(caught.value) == f"{path}:2"


def test_what_was_never_raised_has_no_place() -> None:
    assert raised_at(ValueError("down")) == ""


def test_the_place_is_that_of_the_innermost_call() -> None:
    names: dict[str, Any] = {"__name__": "deep.down"}
    source = "def first(): second()\ndef second(): third()\ndef third(): raise ValueError\nfirst()\n"
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it has no message
        exec(compile(source, "/a/b/deep/down.py", "exec"), names)
    assert raised_at(caught.value) == "deep/down.py:3"


@pytest.mark.parametrize("names", [{}, {"__name__": 5}, {"__name__": None}])
def test_of_code_without_a_module_the_file_alone_is_told(names: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it has no message
        exec(compile("raise ValueError", "/a/b/cell.py", "exec"), dict(names))
    assert raised_at(caught.value) == "cell.py:1"
