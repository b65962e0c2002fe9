"""Changes the library in small ways, and tells which changes no test notices.

    python -m tests.mutation [--module ledger/lmdb/commit.py]... [--since COMMIT] [--sample N [--seed S]]
                             [--below SECONDS] [--at-import] [--unexplained] [--again REPORT] [TESTS...]

Ends with one line: `mutants N, killed N, explained N, survived N`; the status is 1 if any survived. With `--since` only
lines count that were written after a commit: what was judged then need not be judged again. With `--at-import` only
what acts when its module is imported is judged: constants, attributes of classes, default values. With `--unexplained`
explanations are taken at their word, with `--again` only what survived by the report of an earlier run is judged.
"""

from __future__ import annotations

import argparse
import ast
import glob
import importlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence

from tests.mutation.explained import EXPLAINED
from tests.mutation.judge import HEAVY, Judge, Kills, judge_anew, ordered, run_tests
from tests.mutation.kept import Kept
from tests.mutation.loading import ROOT
from tests.mutation.operators import Mutant, mutants_of

PATTERNS = (
    "ledger/**/*.py",
    "sources/*.py",
    "transforms/*.py",
    "descriptors.py",
    "disk.py",
    "interrupts.py",
    "io/storage/fetch.py",
    "io/storage/foreign.py",
    "io/storage/objects.py",
    "io/storage/publish.py",
    "io/storage/ranges.py",
    "io/storage/stat.py",
    "io/storage/unchanged.py",
    "io/exchange/*.py",
    "pipelines/calls/exchange.py",
    "pipelines/calls/exchange_stages.py",
    "pipelines/jobs/buckets.py",
    "pipelines/jobs/opening.py",
    "pipelines/jobs/owner.py",
    "pipelines/jobs/recorded.py",
    "pipelines/jobs/removal.py",
)
FIRST = 10
"""Tests that judge what acts at import before the files of all others are loaded, which takes longer."""

EXCHANGES = (
    "against",
    "course",
    "dedup",
    "gone",
    "group",
    "join",
    "near",
    "own_exchange",
    "prepared",
    "split",
    "stages",
    "stars",
    "values",
    "verify",
)
JOBS = (
    "buckets",
    "look_at_files",
    "lost_outputs",
    "opening",
    "output_owner",
    "own_files",
    "partition",
    "recorded",
    "removal",
    "removed_outputs",
)
TESTS = (
    "tests/ledger",
    "tests/sources",
    "tests/transforms",
    "tests/io/storage",
    "tests/io/exchange",
    *(f"tests/pipelines/exchanges/test_{name}.py" for name in EXCHANGES),
    *(f"tests/pipelines/jobs/test_{name}.py" for name in JOBS),
    "tests/pipelines/test_interrupts.py",
    "tests/test_descriptors.py",
    "tests/fault/test_simulation.py",
    "tests/fault/test_replay.py",
    "tests/fault/test_fuzz.py",
)


def modules(wanted: Sequence[str]) -> list[str]:
    """Paths of the modules to change, relative to the repository."""
    patterns = wanted or PATTERNS
    found = {path for pattern in patterns for path in glob.glob(f"ledgerbeam/{pattern}", root_dir=ROOT, recursive=True)}
    if not found:
        raise SystemExit(f"no module of ledgerbeam/ matches {', '.join(patterns)}")
    return sorted(found)


def lines_since(path: str, commit: str) -> set[int]:
    """Return the lines of a file that a commit did not have, from 1.

    Raises:
        subprocess.CalledProcessError: There is no such commit.
    """
    command = ["git", "diff", "--unified=0", commit, "--", path]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines: set[int] = set()
    for first, count in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", found, re.MULTILINE):
        lines |= set(range(int(first), int(first) + int(count or 1)))
    return lines


def mutants(paths: Sequence[str], since: str | None = None) -> list[Mutant]:
    """List the changes of modules; of the lines alone that a commit did not have, if one is given."""
    found: list[Mutant] = []
    for path in paths:
        with open(path, "rb") as file:
            every = mutants_of(path, file.read())
        lines = None if since is None else lines_since(path, since)
        found += [one for one in every if lines is None or not lines.isdisjoint(range(one.line, one.last + 1))]
    return found


def survivors_in(report: str) -> set[tuple[str, str, str, str]]:
    """Return the keys of the mutants that survived, as a run has printed them."""
    with open(report, encoding="utf-8") as file:
        rows = [row.strip() for row in file if row.startswith("    (") and row.endswith(': "",\n')]
    return {ast.literal_eval(row.removesuffix(': "",')) for row in rows}


def check_explanations(paths: Sequence[str]) -> None:
    """Raise SystemExit if an explanation fits no mutant."""
    every: set[tuple[str, str, str, str]] = set()
    for path in {key[0] for key in EXPLAINED} | set(paths):
        if os.path.exists(os.path.join(ROOT, path)):
            with open(os.path.join(ROOT, path), "rb") as file:
                every |= {mutant.key for mutant in mutants_of(path, file.read())}
    left = [key for key in EXPLAINED if key not in every]
    if left:
        raise SystemExit(
            "\n".join(["explained.py: these fit no mutant; delete them or write them anew:", *map(repr, left)])
        )


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "tests", nargs="*", default=list(TESTS), help="the judges (default: ledger, sources, transforms, storage)"
    )
    parser.add_argument("--module", action="append", default=[], help="below ledgerbeam/, a pattern; may be repeated")
    parser.add_argument("--since", metavar="COMMIT", help="change lines alone that this commit did not have")
    parser.add_argument("--sample", type=int, help="judge so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--below", type=float, default=1e9, help="judge with tests that take less than so many seconds")
    parser.add_argument("--at-import", action="store_true", help="judge only what acts when its module is imported")
    parser.add_argument("--unexplained", action="store_true", help="judge only what `explained.py` does not explain")
    parser.add_argument("--again", metavar="REPORT", help="judge what survived, as an earlier run has printed it")
    parser.add_argument("--cache", default=os.path.join(ROOT, ".cache", "mutation"))
    options = parser.parse_args()
    os.chdir(ROOT)
    paths = modules(options.module)
    check_explanations(paths)
    every = mutants(paths, options.since)
    if options.at_import:
        every = [mutant for mutant in every if mutant.at_import]
    if options.again is not None:
        survived = survivors_in(options.again)
        every = [mutant for mutant in every if mutant.key in survived]
    if options.sample is not None:
        every = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    every.sort(key=lambda mutant: (mutant.path, mutant.line))
    for name in HEAVY:
        importlib.import_module(name)
    kept = Kept(options.cache)
    covers, seconds = kept.covers(options.tests, set(paths))
    seconds = {name: took for name, took in seconds.items() if took < options.below}
    covers = {
        path: {line: {name for name in names if name in seconds} for line, names in lines.items()}
        for path, lines in covers.items()
    }
    every = [mutant for mutant in every if mutant.is_valid() and not (options.unexplained and mutant.key in EXPLAINED)]
    counts = Counter[str]()
    kills = Kills()
    by_module: dict[str, Counter[str]] = {path: Counter() for path in paths}
    began = time.monotonic()

    def tests_of(mutant: Mutant, kills: Kills) -> list[str]:
        return ordered(mutant, covers, seconds, kills)

    def judged(mutant: Mutant, killer: str | None) -> None:
        kept.note(mutant, tests_of(mutant, Kills()), killer)
        note(mutant, killer)

    def note(mutant: Mutant, killer: str | None) -> None:
        kind = "killed" if killer is not None else "explained" if mutant.key in EXPLAINED else "survived"
        counts[kind] += 1
        by_module[mutant.path][kind] += 1
        if kind == "survived":
            reason = "" if tests_of(mutant, Kills()) else "    no test runs it\n"
            print(f'survived {mutant}\n{reason}    {mutant.key!r}: "",', flush=True)
        elif kind == "killed" and mutant.key in EXPLAINED:
            print(f"explained, but {killer} noticed it: {mutant.key!r}", flush=True)
        if sum(counts.values()) % 100 == 0:
            print(f"... {sum(counts.values())} of {len(every)}, {time.monotonic() - began:.0f} s", flush=True)

    unknown: list[Mutant] = []
    for mutant in every:
        known = kept.verdict(mutant, tests_of(mutant, Kills()))
        if known is None:
            unknown.append(mutant)
        else:
            note(mutant, known or None)
    print(f"{len(every) - len(unknown)} of {len(every)} were judged before, and nothing of it has changed", flush=True)
    functions = [mutant for mutant in unknown if not mutant.at_import]
    wanted = sorted({name.partition("::")[0] for name in seconds})
    if functions and wanted:

        def choose(mutant: Mutant, names: Sequence[str], kills: Kills) -> list[str]:
            known = set(names)
            return [name for name in tests_of(mutant, kills) if name in known]

        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a mutant may leave what stays mounted
            run_tests(["--basetemp", f"{folder}/t", *wanted], [Judge(functions, choose, seconds, judged)])
    for mutant in unknown:
        if mutant.at_import:  # these take longer
            names = tests_of(mutant, kills)
            killer: str | None = None
            for some in filter(None, (names[:FIRST], names[FIRST:])):
                killer = killer or judge_anew(mutant, some, sum(seconds[name] for name in some))
            kills.note(mutant, killer or "")
            judged(mutant, killer)
    for path, found in by_module.items():
        print(f"{path}: " + ", ".join(f"{kind} {found[kind]}" for kind in ("killed", "explained", "survived")))
    print(f"{time.monotonic() - began:.0f} s")
    print(
        f"mutants {sum(counts.values())}, killed {counts['killed']}, explained {counts['explained']}, "
        f"survived {counts['survived']}"
    )
    return 1 if counts["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
