"""MkDocs hook: makes pages look the same on the documentation site and on the repository's site.

A link from a page to a file that is not a page leads to the repository's site. In code in a table, the repository's
site needs a backslash before a bar; MkDocs would show the backslash, so it is removed.
"""

from __future__ import annotations

import os
import re
from typing import Any

__all__ = ["on_page_markdown"]

_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[\w-]+)?(?=\))")

_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`]*`")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Return the page with links that work on the documentation site, and without backslashes before bars in tables."""
    root = os.path.dirname(config["config_file_path"])
    folder = os.path.dirname(page.file.abs_src_path)

    def absolute(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(folder, match[1]))
        if target.startswith(config["docs_dir"] + os.sep) or not os.path.exists(target):
            return match[0]  # a page, or a broken link: MkDocs checks it
        kind = "tree" if os.path.isdir(target) else "blob"
        return f"{config['repo_url']}/{kind}/main/{os.path.relpath(target, root)}{match[2] or ''}"

    return _ROW.sub(
        lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), _LINK.sub(absolute, markdown)
    )
