"""Judging mutants with the tests that run the lines they change: one process imports everything, and forks for each.

A mutant in a function takes the place of the function's code in the forked process. One that acts when its module is
imported is judged by a process that imports the library anew. Processes that a test starts load the changed module too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType
from typing import NamedTuple, NoReturn

import pytest

from tests.mutation.loading import ANYWHERE, CHANGED, ROOT, TRACED, arm, begin, resume_tracing
from tests.mutation.operators import Mutant

ALONE = "not engines and not s3 and not stores"
MARKS = f"not slow and {ALONE}"  # tests that need no servers, and those of them that take no time

KILLED, SURVIVED, NOT_APPLIED = 1, 0, 77
_RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
HUNG = "ended or hung"  # in the place of a test: the process ended, or came to no end
_DATA_BYTES = 4 * 2**30
_PATIENCE = 20.0  # seconds, and times what it takes unbroken, after which a test hangs
_BUSY = 8.0  # the same of the processor's time, which a slow disk or other processes do not take
_WEIGHTS = (0.3, 3.0, 30.0)
"""How much it counts that a test has noticed another mutant: any, one of the same module, one of the same function."""

HEAVY = ("apache_beam", "fsspec", "lmdb", "numpy", "orjson", "pyarrow")
"""What takes long to import: once, before any judgement."""

Covers = dict[str, dict[int, set[str]]]  # the tests that run a line of a module, by the module's path and the line


class Gathered(NamedTuple):
    covers: Covers
    seconds: dict[str, float]
    failed: list[str]


def run_tests(arguments: Sequence[str], plugins: Sequence[object], marks: str = MARKS) -> int:
    """Run pytest in this process, its random choices fixed."""
    again = "ignore::pytest.PytestAssertRewriteWarning"  # of plugins, when it runs in a process for the second time
    common = ["-qq", "-n0", "-p", "no:cacheprovider", "--no-summary", "--timeout=120", "-m", marks, "-W", again]
    return int(pytest.main([*common, *arguments], plugins=[_Fixed(), *plugins]))


class _Fixed:
    """A plugin that fixes what hypothesis tries, and has it not search for the smallest failure."""

    def pytest_configure(self) -> None:
        from hypothesis import HealthCheck, Phase, settings

        settings.register_profile(
            "mutation",
            database=None,
            derandomize=True,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutation")


class Gathering:
    """A plugin that has the tests of a run traced, times them, and names those that fail unbroken."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: list[str] = []

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        resume_tracing(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)


class _EndAtFailure:
    """A plugin that ends the process when a test fails, before pytest makes its report, which takes longer."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
            _say(f"{item.nodeid} (hung)" if "Timeout (>" in str(call.excinfo.value) else item.nodeid)
            os._exit(KILLED)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            _say(f"{report.nodeid} (import)")
            os._exit(KILLED)


_says: list[int] = []


def _say(name: str) -> None:
    for descriptor in _says:
        os.write(descriptor, name.encode())


class Kills:
    """How many mutants each test has noticed, to try first what is likely to notice the next one."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, ...]] = Counter()

    def note(self, mutant: Mutant, test: str) -> None:
        self._counts.update((test, *place) for place in _places(mutant))

    def of(self, test: str, mutant: Mutant) -> float:
        """Return how much a test has noticed, above all near a mutant."""
        found = zip(_WEIGHTS, _places(mutant), strict=True)
        return sum(weight * self._counts[test, *place] for weight, place in found)


def _places(mutant: Mutant) -> tuple[tuple[str, ...], ...]:
    return (), (mutant.path,), (mutant.path, mutant.function)


class Judge:
    """A plugin whose run of the tests is to judge mutants of functions with those that cover them.

    `choose` gives the tests to judge a mutant with, in order, by what each has noticed before, `seconds` what a test
    takes unbroken, if known. `note` is told of each mutant the name of the test that noticed it, or None.
    """

    def __init__(
        self,
        mutants: Iterable[Mutant],
        choose: Callable[[Mutant, Sequence[str], Kills], list[str]],
        seconds: dict[str, float],
        note: Callable[[Mutant, str | None], None],
    ) -> None:
        self._mutants = mutants
        self._choose = choose
        self._seconds = seconds
        self._note = note
        self._kills = Kills()
        self._functions: dict[str, list[FunctionType]] = defaultdict(list)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        session.config.pluginmanager.register(_EndAtFailure())
        session.config.pluginmanager.unregister(name="terminalreporter")
        base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        library = os.path.join(ROOT, "ledgerbeam") + os.sep
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(library):
                self._functions[os.path.relpath(thing.__code__.co_filename, ROOT)].append(thing)
        gc.freeze()
        for mutant in self._mutants:
            names = self._choose(mutant, list(items), self._kills)
            judged = [items[name] for name in names]
            killer: str | None = None
            if judged:
                limit = sum(self._seconds.get(name, 1.0) for name in names)
                killer = judge_in_fork(lambda m=mutant, j=judged: self._judge(m, j), limit)  # type: ignore[misc]
                if killer == "":
                    killer = judge_in_fork(lambda m=mutant, n=names: _judge_anew(m, n), limit + 10)  # type: ignore[misc]
            if killer is not None:
                self._kills.note(mutant, killer)
            self._note(mutant, killer)
            base.mkdir(parents=True, exist_ok=True)  # a mutant may have removed it
            for left in os.listdir(base):
                shutil.rmtree(base / left, ignore_errors=True)
        return True

    def _judge(self, mutant: Mutant, items: Sequence[pytest.Item]) -> int:
        if not self._apply(mutant):
            return NOT_APPLIED
        with tempfile.NamedTemporaryFile(suffix=".py", delete=False) as file:
            file.write(mutant.source)
        arm(CHANGED, f"{mutant.path}\n{file.name}")
        for item, following in zip(items, [*items[1:], None], strict=True):
            unbroken = 1 + self._seconds.get(item.nodeid, 1.0)
            item.add_marker(pytest.mark.timeout(_PATIENCE * unbroken), append=False)
            signal.setitimer(signal.ITIMER_PROF, _BUSY * unbroken)  # a busy loop may not hear of a limit
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        os.unlink(file.name)
        return SURVIVED

    def _apply(self, mutant: Mutant) -> bool:
        """Return the functions of a module the code that the changed text has at their places."""
        changed: dict[tuple[str, int], CodeType] = {}
        waiting = [compile(mutant.source, os.path.join(ROOT, mutant.path), "exec", dont_inherit=True)]
        while waiting:
            code = waiting.pop()
            changed[code.co_qualname, code.co_firstlineno] = code
            waiting += [part for part in code.co_consts if isinstance(part, CodeType)]
        applied = False
        for function in self._functions[mutant.path]:
            code = changed.get((function.__code__.co_qualname, function.__code__.co_firstlineno))  # type: ignore[assignment]
            if code is None or code == function.__code__:
                continue
            if len(code.co_freevars) != len(function.__code__.co_freevars):
                return False
            function.__code__ = code
            applied = True
        return applied


def ordered(mutant: Mutant, covers: Covers, seconds: dict[str, float], kills: Kills) -> list[str]:
    """Return the tests that run a line of a mutant, those that noticed most for their time first."""
    names = set(covers.get(ANYWHERE, {}).get(0, ()))
    lines = covers.get(mutant.path, {})
    for line in lines if mutant.at_import else range(mutant.line, mutant.last + 1):
        names |= lines.get(line, set())
    return sorted(names, key=lambda name: ((seconds[name] + 0.01) / (1 + kills.of(name, mutant)), name))


def _judge_anew(mutant: Mutant, names: Sequence[str]) -> int:
    """Judge in a process that imports the library with the mutant in it."""
    for name in list(sys.modules):
        if name == "ledgerbeam" or (
            name.startswith(("ledgerbeam.", "tests.")) and not name.startswith("tests.mutation")
        ):
            del sys.modules[name]
    with tempfile.NamedTemporaryFile(suffix=".py", delete=False) as file:
        file.write(mutant.source)
    arm(CHANGED, f"{mutant.path}\n{file.name}")
    begin()
    with tempfile.TemporaryDirectory() as folder:
        status = run_tests(["-s", "--basetemp", f"{folder}/t", *names], [_EndAtFailure()], ALONE)
    os.unlink(file.name)
    return SURVIVED if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else KILLED


def judge_anew(mutant: Mutant, names: Sequence[str], seconds: float) -> str | None:
    """Judge a mutant that acts at import. Returns as `judge_in_fork`."""
    return judge_in_fork(lambda: _judge_anew(mutant, names), seconds + 15)


def judge_in_fork(judge: Callable[[], int], seconds: float) -> str | None:
    """Run a judgement in a process; return the test that failed, None if all passed, "" if nothing was changed."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a process that ends cleans up nothing
        os.chmod(folder, 0o755)  # a test may become another user
        child = os.fork()
        if child == 0:
            _judge_here(judge, seconds, writing, folder)
        os.close(writing)
        status = _wait(child, 30 + 10 * seconds)
    said = os.read(reading, 4096).decode() if status == KILLED else ""
    os.close(reading)
    if status == NOT_APPLIED:
        return ""
    return None if status == SURVIVED else said or HUNG


def _judge_here(judge: Callable[[], int], seconds: float, writing: int, folder: str) -> NoReturn:
    """Run a judgement, and end this process with its status."""
    status = KILLED
    try:
        os.setsid()
        _says[:] = [writing]
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        resource.setrlimit(resource.RLIMIT_CPU, (int(10 + 10 * seconds),) * 2)
        resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.dup2(null, 1)
        status = judge()
    except BaseException as error:  # noqa: BLE001 - the process ends with it
        _say(f"{type(error).__name__}: {error}"[:200])
    finally:
        os._exit(status)


def _wait(child: int, limit: float) -> int:
    """Wait for a process, and end all that it left. Returns its exit status; -1 if it was ended."""
    until = time.monotonic() + limit
    pause = 0.002
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or time.monotonic() > until:
            break
        time.sleep(pause)
        pause = min(0.05, pause * 1.3)
    with contextlib.suppress(ProcessLookupError):  # it left nothing
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
        return -1
    return os.waitstatus_to_exitcode(status)


def gather(paths: Sequence[str]) -> Gathered:
    """Run the tests unbroken, and note which of them runs which lines, in processes that they start too."""
    with tempfile.TemporaryDirectory() as folder:
        lines, times = f"{folder}/lines", f"{folder}/times"

        def run() -> int:
            arm(TRACED, lines)
            begin()
            plugin = Gathering()
            status = run_tests(["--basetemp", f"{folder}/t", *paths], [plugin])
            if status not in _RAN:
                _say(f"pytest ended with status {status}; is each of {', '.join(paths)} there, and does it load?")
                return KILLED
            with open(times, "w", encoding="utf-8") as file:
                for name, seconds in plugin.seconds.items():
                    file.write(f"{seconds}\t{name in plugin.failed}\t{name}\n")
            return SURVIVED

        ended = judge_in_fork(run, 1800)
        if ended is not None:
            raise RuntimeError(f"the tests did not end unbroken: {ended}")
        found = Gathered(defaultdict(lambda: defaultdict(set)), {}, [])
        with open(times, encoding="utf-8") as file:
            for row in file:
                took, failed, name = row.rstrip("\n").split("\t")
                if failed == "True":
                    found.failed.append(name)
                else:
                    found.seconds[name] = float(took)
        with open(lines, encoding="utf-8") as file:
            for row in file:
                test, path, line = row.rstrip("\n").split("\t")
                if test in found.seconds:
                    found.covers[path][int(line)].add(test)
        return found
