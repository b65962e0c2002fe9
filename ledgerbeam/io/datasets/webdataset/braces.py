"""Writing long lists of numbered names short, as Energon's `split.yaml` has them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"([0-9]+)")


def collapse_names(names: Iterable[str]) -> list[str]:
    """Write neighbours that count up in one place as a range: `a-0.tar`, `a-1.tar` as `a-{0..1}.tar`.

    `expand_braces` of the results, joined, is the list again, in its order. The same ranges as those of Energon 7.4.1.

    Args:
        names: Without braces.
    """
    found: list[str] = []
    run: list[list[str]] = []
    place = -1
    for name in names:
        parts = _NUMBER.split(name)
        step = _counts_up(run[-1], parts) if run else -1
        if step >= 0 and (len(run) == 1 or step == place):
            run.append(parts)
            place = step
            continue
        found += _written(run, place)
        run, place = [parts], -1
    return found + _written(run, place)


def _counts_up(before: list[str], after: list[str]) -> int:
    """Return the place in which a number is one more than before and as wide; -1 unless it is the only difference."""
    if len(before) != len(after):
        return -1
    changed = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    if len(changed) != 1 or changed[0] % 2 == 0:
        return -1
    old, new = before[changed[0]], after[changed[0]]
    return changed[0] if len(old) == len(new) and int(new) == int(old) + 1 else -1


def _written(run: list[list[str]], place: int) -> list[str]:
    if len(run) < 2:
        return ["".join(parts) for parts in run]
    parts = list(run[0])
    parts[place] = f"{{{parts[place]}..{run[-1][place]}}}"
    return ["".join(parts)]
