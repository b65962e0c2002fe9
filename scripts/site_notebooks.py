"""MkDocs hook: notebooks below docs/ become pages, with the printed output of their cells.

The page is made from the notebook when the site is built, so both are always equal. Links name the notebook
(`training.ipynb`), so they also work on the repository's site.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["as_markdown", "on_files", "on_page_read_source"]

SUFFIX = ".ipynb"


def as_markdown(notebook: str) -> str:
    """Return a notebook, given as JSON, as a page in Markdown."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join(_text(output) for output in cell["outputs"]).rstrip()
        if printed:
            parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts) + "\n"


def _text(output: dict[str, Any]) -> str:
    """Return the printed output of a cell, or the value that it shows."""
    lines = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
    return "".join(lines).rstrip() + "\n"


def on_files(files: Any, *, config: Any) -> Any:
    """Turn notebooks into pages."""
    from mkdocs.structure.files import File

    class Notebook(File):
        def is_documentation_page(self) -> bool:
            return True

    for file in [file for file in files if file.src_uri.endswith(SUFFIX)]:
        files.remove(file)
        files.append(Notebook(file.src_uri, config["docs_dir"], config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_read_source(*, page: Any, config: Any) -> str | None:  # noqa: ARG001
    """Return the page of a notebook; None for other pages, which MkDocs reads itself."""
    if not page.file.src_uri.endswith(SUFFIX):
        return None
    with open(page.file.abs_src_path, encoding="utf-8") as file:
        return as_markdown(file.read())
