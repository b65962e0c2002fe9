"""What earlier runs have found out, which holds for as long as nothing has changed that decided it.

What a test does is decided by its file, by the modules that this imports and by those whose lines the test runs, by
what these import in their turn, and by what everything is run with. So what was learnt of the tests of a file, and the
judgements that they made, hold while all these texts are the same.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import os
import pickle
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from tests.mutation.judge import HUNG, Covers, Gathered, gather
from tests.mutation.loading import ANYWHERE, ROOT, module_name
from tests.mutation.operators import Mutant

_ALWAYS = ("pyproject.toml", "tests/mutation/judge.py", "tests/mutation/loading.py")
_COMPILED = (".pyc", ".so")
_OURS = f"ledgerbeam {metadata.version('ledgerbeam')}"  # found once or twice, as the working folder has it


class Texts:
    """The texts of the library and of its tests as they are when this is made, and which of them import which.

    Args:
        root: Of the repository.
    """

    def __init__(self, root: str = ROOT) -> None:
        found = (
            name
            for folder in ("ledgerbeam", "tests")
            for name in glob.glob(f"{folder}/**", root_dir=root, recursive=True)
        )
        paths = {name for name in found if os.path.isfile(os.path.join(root, name)) and not name.endswith(_COMPILED)}
        self._texts: dict[str, bytes] = {}
        for path in sorted({path for path in paths if not path.startswith("tests/mutation/")}.union(_ALWAYS)):
            if os.path.exists(os.path.join(root, path)):
                with open(os.path.join(root, path), "rb") as file:
                    self._texts[path] = file.read()
        self._by_module = {module_name(path): path for path in self._texts if path.endswith(".py")}
        self._always = {
            path for path in self._texts if not path.endswith(".py") or path in _ALWAYS
        }  # any test reads them
        self._imports: dict[str, set[str]] = {}
        packages = sorted({f"{one.metadata['Name']} {one.version}" for one in metadata.distributions()} - {_OURS})
        self._run_with = repr((sys.version, packages)).encode()

    def stamp(self, paths: Iterable[str]) -> str:
        """Return what changes if one of the texts changes, or one that they import, or what all is run with."""
        digest = hashlib.blake2b(self._run_with, digest_size=16)
        for path in sorted(self._reached({*self._always, *paths})):
            digest.update(b"%s\0%d\0%s" % (path.encode(), len(self._texts[path]), self._texts[path]))
        return digest.hexdigest()

    def every(self) -> list[str]:
        """Return the paths of all texts."""
        return list(self._texts)

    def imports(self, path: str, other: str) -> bool:
        """Return whether one module names another one in an import."""
        return other in self._imported(path)

    def _reached(self, paths: set[str]) -> set[str]:
        found: set[str] = set()
        waiting = list(paths)
        while waiting:
            path = waiting.pop()
            if path not in found and path in self._texts:
                found.add(path)
                waiting += self._imported(path)
        return found

    def _imported(self, path: str) -> set[str]:
        """Return the paths of what a module imports anywhere in it, and of the packages that these lie in."""
        if path not in self._imports:
            names: set[str] = set()
            if path.endswith(".py"):
                names.add(module_name(path))
                for node in ast.walk(ast.parse(self._texts[path])):
                    if isinstance(node, ast.Import):
                        names.update(alias.name for alias in node.names)
                    elif isinstance(node, ast.ImportFrom) and node.module:
                        names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
            packages = {name.rsplit(".", dots)[0] for name in names for dots in range(name.count(".") + 1)}
            self._imports[path] = {self._by_module[name] for name in packages if name in self._by_module}
        return self._imports[path]


class _Known(NamedTuple):
    """What was learnt of the tests of a file.

    Attributes:
        ran: The modules whose lines they ran.
        stamp: Of these and of the file.
        gathered: What was found.
    """

    ran: list[str]
    stamp: str
    gathered: Gathered


class Kept:
    """What is kept of earlier runs, in a folder.

    Args:
        folder: It is made if it is not there.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._texts = Texts()
        self._stamps: dict[str, str] = {}  # by the file of tests
        os.makedirs(os.path.join(folder, "covers"), exist_ok=True)
        self._verdicts: dict[str, str] = {}
        self._file = os.path.join(folder, "verdicts")
        if os.path.exists(self._file):
            with open(self._file, encoding="utf-8") as file:
                for row in file:
                    key, separator, killer = row.rstrip("\n").partition(" ")
                    if separator:
                        self._verdicts[key] = killer

    # What the tests cover

    def covers(self, tests: Sequence[str], modules: Collection[str]) -> tuple[Covers, dict[str, float]]:
        """Return what `gather` finds of modules, or found before of files of tests of which nothing has changed.

        At line 0 of a module stand the tests of the files that import it.
        """
        files = _files_of(tests)
        found = {file: known for file in files if (known := self._known(file)) is not None}
        missing = [file for file in files if file not in found]
        if missing:
            print(f"running {len(missing)} files of tests unbroken, to learn which lines each test runs", flush=True)
            for file, gathered in _by_file(gather(missing), missing).items():
                found[file] = self._keep(file, gathered)
        covers: Covers = defaultdict(lambda: defaultdict(set))
        seconds: dict[str, float] = {}
        for file, known in found.items():
            self._stamps[file] = known.stamp
            for name in known.gathered.failed:
                print(f"left out, it fails unbroken: {name}", flush=True)
            seconds.update(known.gathered.seconds)
            for path, lines in known.gathered.covers.items():
                for line, names in lines.items() if path in modules or path == ANYWHERE else ():
                    covers[path][line] |= names
        for path in modules:  # what acts at import may run no line: of what only declares, or of a made constructor
            for file, known in found.items():
                if self._texts.imports(file.partition("::")[0], path):
                    covers[path][0] |= known.gathered.seconds.keys()
        return covers, seconds

    def _place(self, file: str) -> str:
        return os.path.join(self._folder, "covers", hashlib.blake2b(file.encode(), digest_size=8).hexdigest())

    def _known(self, file: str) -> _Known | None:
        try:
            with open(self._place(file), "rb") as kept:
                known = _Known(*pickle.load(kept))  # ours
        except FileNotFoundError:
            return None
        return known if known.stamp == self._stamp(file, known.ran) else None

    def _keep(self, file: str, gathered: Gathered) -> _Known:
        ran = self._texts.every() if ANYWHERE in gathered.covers else sorted(gathered.covers)
        known = _Known(ran, self._stamp(file, ran), gathered)
        with open(f"{self._place(file)}.new", "wb") as kept:
            pickle.dump(tuple(known), kept)
        os.replace(f"{self._place(file)}.new", self._place(file))
        return known

    def _stamp(self, file: str, ran: Iterable[str]) -> str:
        path = file.partition("::")[0]
        folders = [path[: place + 1] for place, letter in enumerate(path) if letter == "/"]
        return self._texts.stamp({path, *ran, *(f"{folder}conftest.py" for folder in folders)})

    # What was judged

    def verdict(self, mutant: Mutant, names: Sequence[str]) -> str | None:
        """Return what an earlier run found of a mutant: the test that noticed it, "" for none, None for not judged.

        Args:
            mutant: The mutant.
            names: Of the tests that would judge it.
        """
        about = _about(mutant)
        for name in names:
            if self._kill_key(about, name) in self._verdicts:
                return name
        return self._verdicts.get(self._whole_key(about, names))

    def note(self, mutant: Mutant, names: Sequence[str], killer: str | None) -> None:
        """Keep what was found of a mutant."""
        about = _about(mutant)
        if killer in names:
            key, said = self._kill_key(about, str(killer)), str(killer)
        elif killer in (None, HUNG) and names:
            key, said = self._whole_key(about, names), killer or ""
        else:
            return  # who noticed it is not known for certain
        self._verdicts[key] = said
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(f"{key} {said}\n")

    def _stamp_of(self, name: str) -> str:
        return self._stamps.get(name) or self._stamps[name.partition("::")[0]]

    def _kill_key(self, about: bytes, name: str) -> str:
        return hashlib.blake2b(about + f"{self._stamp_of(name)} {name}".encode(), digest_size=12).hexdigest()

    def _whole_key(self, about: bytes, names: Sequence[str]) -> str:
        every = "\n".join(f"{self._stamp_of(name)} {name}" for name in sorted(names))
        return hashlib.blake2b(about + b"all " + every.encode(), digest_size=12).hexdigest()


def _about(mutant: Mutant) -> bytes:
    return hashlib.blake2b(mutant.path.encode() + b"\0" + mutant.source, digest_size=16).digest()


def _files_of(tests: Sequence[str]) -> list[str]:
    """Return the files of tests below some folders; a name of one test stays as it is."""
    found: dict[str, None] = {}
    for name in tests:
        if os.path.isdir(os.path.join(ROOT, name)):
            below = glob.glob(f"{name.rstrip('/')}/**/test_*.py", root_dir=ROOT, recursive=True)
            found.update(dict.fromkeys(sorted(below)))
        else:
            found[name] = None
    return list(found)


def _by_file(gathered: Gathered, files: Sequence[str]) -> Mapping[str, Gathered]:
    """Return what was gathered, for each file of tests, or test, apart."""
    asked = set(files)

    def file_of(name: str) -> str:
        return name if name in asked else name.partition("::")[0]

    parts = {file: Gathered(defaultdict(lambda: defaultdict(set)), {}, []) for file in files}
    for name, took in gathered.seconds.items():
        parts[file_of(name)].seconds[name] = took
    for name in gathered.failed:
        parts[file_of(name)].failed.append(name)
    for path, lines in gathered.covers.items():
        for line, names in lines.items():
            for name in names:
                parts[file_of(name)].covers[path][line].add(name)
    for file, part in parts.items():  # plain, to be pickled
        parts[file] = part._replace(covers={path: dict(lines) for path, lines in part.covers.items()})
    return parts
