"""MkDocs hook: notebooks below docs/ are pages, with what their cells have printed.

The page is made from the notebook when the site is built, so there is nothing to keep equal. Links lead to the notebook
itself (`training.ipynb`), which the repository's site shows, too.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["as_markdown", "on_files", "on_page_read_source"]

SUFFIX = ".ipynb"


def as_markdown(notebook: str) -> str:
    """Return a notebook, given as JSON, as a page."""
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
    """Return what a cell has printed, or the value that it shows."""
    lines = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
    return "".join(lines).rstrip() + "\n"


def on_files(files: Any, *, config: Any) -> Any:
    """Make pages of the notebooks."""
    from mkdocs.structure.files import File

    class Notebook(File):
        def is_documentation_page(self) -> bool:
            return True

    for file in [file for file in files if file.src_uri.endswith(SUFFIX)]:
        files.remove(file)
        files.append(Notebook(file.src_uri, config["docs_dir"], config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_read_source(*, page: Any, config: Any) -> str | None:  # noqa: ARG001
    """Return a notebook's text; MkDocs reads the other pages."""
    if not page.file.src_uri.endswith(SUFFIX):
        return None
    with open(page.file.abs_src_path, encoding="utf-8") as file:
        return as_markdown(file.read())
