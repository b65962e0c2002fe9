"""Change a module in small ways, and report the changes that no test notices.

    python -m tests.mutation MODULE [TESTS...] [--since COMMIT] [--sample N [--seed S]]

``MODULE`` is a path or a pattern below ``ledgerbeam/``, such as ``ledger/lmdb/commit.py``. Without ``TESTS`` the tests
of the same package judge. Not every survivor needs a test: leave a change that no caller can notice.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence

from tests.mutation.judge import HEAVY, Judge, Kills, gather, judge_anew, ordered, run_tests
from tests.mutation.loading import ROOT
from tests.mutation.operators import Mutant, mutants_of


def modules(pattern: str) -> list[str]:
    """Return the paths of the modules that match, relative to the repository."""
    found = sorted(glob.glob(f"ledgerbeam/{pattern.removeprefix('ledgerbeam/')}", root_dir=ROOT, recursive=True))
    if not found:
        raise SystemExit(f"{pattern}: no module below ledgerbeam/ matches; name one such as ledger/lmdb/commit.py")
    return found


def nearest_tests(path: str) -> str:
    """Return the deepest folder of tests that mirrors a module's package."""
    folder = os.path.dirname(path.replace("ledgerbeam", "tests", 1))
    while not glob.glob(f"{folder}/**/test_*.py", root_dir=ROOT, recursive=True):
        folder = os.path.dirname(folder)
    return folder


def lines_since(path: str, commit: str) -> set[int]:
    """Return the lines of a file, from 1, that a commit did not have."""
    command = ["git", "diff", "--unified=0", commit, "--", path]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines: set[int] = set()
    for first, count in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", found, re.MULTILINE):
        lines |= set(range(int(first), int(first) + int(count or 1)))
    return lines


def mutants(paths: Sequence[str], since: str | None) -> list[Mutant]:
    """Return the valid mutants of modules, in order; with `since`, only those of newer lines."""
    found: list[Mutant] = []
    for path in paths:
        with open(path, "rb") as file:
            every = mutants_of(path, file.read())
        lines = None if since is None else lines_since(path, since)
        found += [one for one in every if lines is None or not lines.isdisjoint(range(one.line, one.last + 1))]
    return sorted(filter(Mutant.is_valid, found), key=lambda mutant: (mutant.path, mutant.line))


def main() -> int:
    """Run the command and return its exit status: 0 whatever survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("module", help="path or pattern below ledgerbeam/")
    parser.add_argument("tests", nargs="*", help="tests that judge (default: those of the same package)")
    parser.add_argument("--since", metavar="COMMIT", help="change only lines that this commit did not have")
    parser.add_argument("--sample", type=int, metavar="N", help="judge N mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    os.chdir(ROOT)
    paths = modules(options.module)
    every = mutants(paths, options.since)
    if options.sample is not None:
        every = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    tests = options.tests or sorted({nearest_tests(path) for path in paths})
    for name in HEAVY:
        importlib.import_module(name)
    covers, seconds, failed = gather(tests)
    for name in failed:
        print(f"left out, it fails without a change: {name}", flush=True)
    counts = Counter[str]()

    def note(mutant: Mutant, killer: str | None) -> None:
        counts["survived" if killer is None else "killed"] += 1
        if killer is None:
            print(f"survived {mutant}{'' if ordered(mutant, covers, seconds, Kills()) else ': no test runs it'}")
        if counts.total() % 100 == 0:
            print(f"... {counts.total()} of {len(every)}", flush=True)

    def choose(mutant: Mutant, names: Sequence[str], kills: Kills) -> list[str]:
        known = set(names)
        return [name for name in ordered(mutant, covers, seconds, kills) if name in known]

    functions = [mutant for mutant in every if not mutant.at_import]
    if functions and seconds:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a mutant may leave a mount
            run_tests(["--basetemp", f"{folder}/t", *tests], [Judge(functions, choose, seconds, note)])
    for mutant in every:
        if mutant.at_import:
            names = ordered(mutant, covers, seconds, Kills()) or list(seconds)
            note(mutant, judge_anew(mutant, names, sum(seconds[name] for name in names)))
    print(f"mutants {counts.total()}, killed {counts['killed']}, survived {counts['survived']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
