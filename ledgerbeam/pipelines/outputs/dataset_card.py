"""Dataset cards: the README.md that lists the files and splits of a dataset for the Hugging Face Hub and `datasets`.

The front matter names a config with the files of each split, as globs where a folder has files of only one split. The
rest of an existing README.md stays unchanged: its text, other keys of the front matter, and other configs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from ledgerbeam.errors import SourceNotFoundError, UsageError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish_bytes

_CONFIG = "default"
_SPLIT = re.compile(r"\w+(?:\.\w+)*")
_HEAD = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_CONFIGS = re.compile(r"^configs:[^\n]*\n(?:(?:[ \t-][^\n]*)?\n)*", re.MULTILINE)
_NAMED = re.compile(r"""config_name:\s*["']?([^"'\n#]*?)["']?\s*(?:#.*)?$""", re.MULTILINE)


def write_card(
    root: str, splits: Mapping[str, Sequence[str]], options: Options, *, name: str, suffix: str
) -> list[str]:
    """Write the README.md of a dataset beside its files, or update the config in an existing README.md.

    Args:
        root: URL of the folder of the dataset.
        splits: Names of the files of each split, relative to `root`.
        options: Storage options.
        name: Name of the dataset, for the title of a new README.md.
        suffix: Suffix of all file names.

    Returns:
        The URL of the README.md.

    Raises:
        UsageError: The name of a split is invalid, or the existing README.md is not UTF-8.
    """
    for split in splits:
        if not _SPLIT.fullmatch(split):
            raise UsageError(
                f"--part {split}: expected letters, digits, _ and . as the name of a split on the Hub; name the splits "
                "yourself: --part NAME=PATTERN, such as --part 'part_0=part-0/*'"
            )
    url = f"{root}/README.md"
    try:
        before = read_bytes(url, options).decode()
    except SourceNotFoundError:
        before = f"# {name}\n"
    except UnicodeDecodeError as error:
        raise UsageError(f"{url}: not UTF-8 ({error}); move it away and publish again") from error
    text = card_text(before, split_patterns(splits, suffix))
    publish_bytes(url, text.encode(), options)
    return [url]


def split_patterns(splits: Mapping[str, Sequence[str]], suffix: str) -> dict[str, list[str]]:
    """Return patterns that match the files of each split, and no other file of the dataset.

    Args:
        splits: Names of the files of each split.
        suffix: Suffix of all file names.
    """
    folders: dict[str, set[str]] = {}
    for split, names in splits.items():
        for name in names:
            folders.setdefault(_folder(name), set()).add(split)
    found: dict[str, list[str]] = {}
    for split, names in splits.items():
        patterns = (
            f"{_escaped(_folder(name))}*{suffix}" if folders[_folder(name)] == {split} else _escaped(name)
            for name in names
        )
        found[split] = list(dict.fromkeys(patterns))
    return found


def card_text(before: str, patterns: Mapping[str, Sequence[str]]) -> str:
    """Return the text of a README.md with the config of the splits.

    Args:
        before: Previous text.
        patterns: Patterns of the files of each split.
    """
    config = [f"- config_name: {_CONFIG}", "  data_files:"]
    for split, paths in patterns.items():
        config += [f"  - split: {split}", "    path:", *(f"    - {json.dumps(path)}" for path in paths)]
    before = before.replace("\r\n", "\n")
    head = _HEAD.match(before)
    kept = "" if head is None else head[1]
    text = before if head is None else before[head.end() :]
    block = _CONFIGS.search(kept)
    others = [] if block is None else list(_other_configs(block[0]))
    configs = "\n".join(["configs:", *config, *others]) + "\n"
    kept = f"{kept}{configs}" if block is None else f"{kept[: block.start()]}{configs}{kept[block.end() :]}"
    return f"---\n{kept}---\n{text}" if head is not None else f"---\n{kept}---\n\n{text}"


def _other_configs(block: str) -> Iterable[str]:
    """Yield the lines of the configs with other names."""
    lines = [line for line in block.splitlines()[1:] if line.strip()]
    indent = next((len(line) - len(line.lstrip()) for line in lines), 0)
    items: list[list[str]] = []
    for line in lines:
        if line[indent : indent + 1] == "-":
            items.append([])
        if items:
            items[-1].append(line[indent:])
    for item in items:
        named = _NAMED.search("\n".join(item))
        if named is not None and named[1] != _CONFIG:
            yield from item


def _folder(name: str) -> str:
    return name[: name.rfind("/") + 1]


def _escaped(name: str) -> str:
    """Return a pattern that matches only this name."""
    return re.sub(r"([*?\[])", r"[\1]", name)
