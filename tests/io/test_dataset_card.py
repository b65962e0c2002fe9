"""Dataset cards: they name exactly the files of each split, and keep the text of others."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.outputs.metadata import card_text, split_patterns, write_card


def head(text: str) -> dict[str, object]:
    _, yaml, _ = text.split("---\n", 2)
    return dict(YAML(typ="safe").load(yaml))


def test_a_folder_of_one_split_is_a_glob_and_other_files_are_named() -> None:
    splits = {"a": ["x.parquet", "p/x.parquet", "p/y.parquet", "q[1]/x.parquet"], "b": ["q[1]/y*.parquet"]}
    assert split_patterns(splits, ".parquet") == {
        "a": ["*.parquet", "p/*.parquet", "q[[]1]/x.parquet"],
        "b": ["q[[]1]/y[*].parquet"],
    }


def test_a_new_card_has_a_config_and_a_title() -> None:
    text = card_text("# Name\n", {"train": ["*.parquet"], "test": ['a "b"/*.parquet', "ü.parquet"]})
    assert text.endswith("---\n\n# Name\n")
    assert head(text) == {
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": "train", "path": ["*.parquet"]},
                    {"split": "test", "path": ['a "b"/*.parquet', "ü.parquet"]},
                ],
            }
        ]
    }
    assert card_text(text, {"train": ["*.parquet"], "test": ['a "b"/*.parquet', "ü.parquet"]}) == text


@pytest.mark.parametrize(
    "configs",
    [
        "",
        "configs:\n- config_name: default\n  data_files: old\n",
        "configs:\n  - config_name: 'default'\n    data_files:\n      - split: train\n        path: x\n\n",
        "configs: []\n",
    ],
)
def test_a_card_of_others_keeps_all_but_our_config(configs: str) -> None:
    before = f"---\nlicense: mit\n{configs}tags:\n- x\n---\n# Mine\n\n---\nconfigs:\n"
    text = card_text(before, {"train": ["*.parquet"]})
    assert text.endswith("---\n# Mine\n\n---\nconfigs:\n")
    config = {"config_name": "default", "data_files": [{"split": "train", "path": ["*.parquet"]}]}
    assert head(text) == {"license": "mit", "configs": [config], "tags": ["x"]}


def test_configs_of_other_names_stay() -> None:
    before = (
        "---\nconfigs:\n  - config_name: extra\n    data_files:\n      - split: s\n        path: e/*\n"
        "  - config_name: default\n    data_files: old\n  - config_name: last # one\n    data_files: l\n---\n"
    )
    found = head(card_text(before, {"train": ["*"]}))["configs"]
    assert isinstance(found, list)
    assert [config["config_name"] for config in found] == ["default", "extra", "last"]
    assert found[1]["data_files"] == [{"split": "s", "path": "e/*"}]


def test_a_card_is_written_beside_the_files(tmp_path: Path) -> None:
    (url,) = write_card(str(tmp_path), {"train": ["x.parquet"]}, {}, name="Mine", suffix=".parquet")
    assert url == f"{tmp_path}/README.md"
    text = (tmp_path / "README.md").read_text()
    assert text.endswith("\n# Mine\n")
    write_card(str(tmp_path), {"train": ["x.parquet"]}, {}, name="Other", suffix=".parquet")
    assert (tmp_path / "README.md").read_text() == text
    with pytest.raises(UsageError, match=r"--part a-b: expected letters"):
        write_card(str(tmp_path), {"a-b": ["x.parquet"]}, {}, name="x", suffix=".parquet")
    (tmp_path / "README.md").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        write_card(str(tmp_path), {"train": ["x.parquet"]}, {}, name="x", suffix=".parquet")
