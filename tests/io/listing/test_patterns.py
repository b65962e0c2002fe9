from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing import patterns
from ledgerbeam.io.listing.patterns import canonical_pattern, common_base, expand_braces, fixed_part, parse
from tests.cases import each

NAMES = st.text("ab.-]!", min_size=1, max_size=6)
_PIECES = st.lists(
    st.sampled_from(["*", "?", "a", "b", ".", "-", "[ab]", "[!a]", "[]a]", "[!]]", "[a-b]", "[b-a]", "[", "]", "!"]),
    min_size=1,
    max_size=6,
)
LEVELS = _PIECES.map("".join).filter(lambda text: text not in {".", ".."})  # which a path resolves


@each(
    ("pattern", "expected"),
    [
        ("x", ["x"]),
        ("{a,b}", ["a", "b"]),
        ("p{a,b}{c,d}s", ["pacs", "pads", "pbcs", "pbds"]),
        ("{a,b{c,d}}", ["a", "bc", "bd"]),
        ("{,x}y", ["y", "xy"]),
        ("{008..011}", ["008", "009", "010", "011"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{0..3}", ["0", "1", "2", "3"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{00..20..10}", ["00", "10", "20"]),
        ("{1..2}{a,{3..4}}", ["1a", "13", "14", "2a", "23", "24"]),
        ("{x}", ["{x}"]),
        ("{a{b,c}}", ["{ab}", "{ac}"]),
        ("{a", ["{a"]),
        ("{a,b", ["{a,b"]),
        ("a}", ["a}"]),
        ("{}", ["{}"]),
        ("s3://b/{x/y,z}/*.tar", ["s3://b/x/y/*.tar", "s3://b/z/*.tar"]),
    ],
)
def test_braces_expand_as_in_a_shell(pattern: str, expected: list[str]) -> None:
    assert expand_braces(pattern) == expected


@pytest.mark.parametrize("pattern", ["{0..99999999}", "{1..5..0}"])
def test_ranges_that_cannot_be_meant_are_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match=re.escape(pattern)):
        expand_braces(pattern)


@each(
    ("pattern", "base"),
    [
        ("/d/x.jsonl", "/d"),
        ("/x.jsonl", "/"),
        ("/*.jsonl", "/"),
        ("/d/x*/y.jsonl", "/d"),
        ("/d/e/{a,b}/y.jsonl", "/d/e"),
        ("/d/{x}/y.jsonl", "/d/{x}"),
        ("/d/**", "/d"),
        ("s3://b/k/x.tar", "s3://b/k"),
        ("s3://b/x*", "s3://b"),
        ("s3a://b/{u,v}/*.tar", "s3://b"),
        ("s3://b/k//*.tar", "s3://b/k/"),
        ("file:///d/[ab]", "/d"),
    ],
)
def test_the_fixed_part_ends_where_names_vary(pattern: str, base: str) -> None:
    assert fixed_part(pattern) == base


@pytest.mark.parametrize("pattern", ["s3://*/x", "s3://b*/x", "s3://{a,b}/x", "s3://b?"])
def test_a_bucket_cannot_vary(pattern: str) -> None:
    with pytest.raises(UsageError, match="bucket"):
        fixed_part(pattern)


@each(
    ("given_patterns", "base"),
    [
        (["/a/b/*.x"], "/a/b"),
        (["/a/b/*.x", "/a/bc/*.x"], "/a"),
        (["/a/*.x", "/b/*.x"], "/"),
        (["s3://b/p/q/*", "s3://b/p/r/s"], "s3://b/p"),
        (["s3://b/x", "s3a://b/y/*"], "s3://b"),
        (["s3://b/x", "s3://c/x"], None),
        (["s3://{b,c}/x"], None),
        (["s3://b/x", "gs://b/x"], None),
        (["s3://b/x", "/b/x"], None),
        ([], None),
    ],
)
def test_patterns_share_the_folder_that_all_of_them_fix(given_patterns: list[str], base: str | None) -> None:
    assert common_base(given_patterns) == base


@given(LEVELS, NAMES)
def test_one_level_matches_as_the_standard_library_says(text: str, name: str) -> None:
    hidden = name.startswith(".") and text[0] in "*?["
    expected = fnmatch.fnmatchcase(name, text) and not hidden
    parsed = patterns.parse(f"/nowhere/*/{text}")
    assert (parsed.parts[-1].select([name]) == [name]) is expected
    assert bool(parsed.regex().fullmatch(f"x/{name}")) is expected


@each("text", ["*", "**", "*x", "*.idx", "*dx", "?.idx", "[a].idx", "a*"])
@each("name", ["a.idx", ".a.jsonl.1-2.lbtmp", "a.lbtmp"])
def test_indexes_and_temporaries_match_no_wildcard(text: str, name: str) -> None:
    parsed = patterns.parse(f"/nowhere/*/{text}")
    assert parsed.parts[-1].select([name]) == []
    assert not parsed.regex().fullmatch(f"x/{name}")


def test_an_index_is_a_source_when_it_is_named() -> None:
    parsed = patterns.parse("/nowhere/*/a.idx")
    assert parsed.parts[-1].select(["a.idx", "b.idx"]) == ["a.idx"]
    assert parsed.regex().fullmatch("x/a.idx")


@pytest.mark.parametrize("name", ["run[1]", "run?", "run*", "{run1,x}", "{1..2}"])
def test_the_name_of_the_working_folder_is_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It would match the files of run1."""
    for folder in (name, "run1"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "b.jsonl").touch()
    here = tmp_path / name
    (here / "a.jsonl").touch()
    monkeypatch.chdir(here)
    for pattern in ("*.jsonl", "./c.jsonl", "file:c.jsonl", "sub/**/*"):
        for act in (canonical_pattern, parse, fixed_part):
            with pytest.raises(UsageError, match=f"found {re.escape(str(here))}. Rename this folder"):
                act(pattern)
    assert canonical_pattern("a.jsonl") == f"{here}/a.jsonl"
    assert parse("a.jsonl").is_plain
    assert canonical_pattern("../run1/*.jsonl") == f"{tmp_path}/run1/*.jsonl"
    assert canonical_pattern("s3://bucket/*.jsonl") == "s3://bucket/*.jsonl"
    assert canonical_pattern(f"{tmp_path}/run[1]/*.jsonl") == f"{tmp_path}/run[1]/*.jsonl"
    with pytest.raises(UsageError, match=r"Rename this folder"):
        canonical_pattern("*.jsonl", "s3://bucket/run[1]")
    assert canonical_pattern("*.jsonl", f"{tmp_path}/run1") == f"{tmp_path}/run1/*.jsonl"
