"""Steps of datatrove, as both sides of the table of blocks run them: `python -m benchmarks.blocks_steps SOURCE FOLDER`.

The program runs them with datatrove's local executor of two tasks. A job of ledgerbeam names the objects of this
module. Both run in the environment of `make blocks`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

TASKS = 2
NAMES = (
    *("urls", "extract", "unmangle", "repetition", "quality", "lines", "paragraphs", "fineweb", "pattern", "length"),
    *("sample", "private", "symbols"),
)
"""Names of the steps in their order: 9 filters, 3 formatters and Trafilatura."""

MOST_CHARACTERS = 1_000_000


def is_short(document: Any) -> bool:
    return len(document.text) < MOST_CHARACTERS


def __getattr__(name: str) -> Any:
    """Return a step by its name. datatrove is imported only then: this module is also read without it."""
    if name not in NAMES:
        raise AttributeError(name)
    return _step(name)


@functools.cache
def _step(name: str) -> Any:
    filters: Any = importlib.import_module("datatrove.pipeline.filters")
    formatters: Any = importlib.import_module("datatrove.pipeline.formatters")
    match name:
        case "urls":
            return filters.URLFilter(use_integrated_lists=False, extra_domains=["www.site3.com"])
        case "extract":
            extractors: Any = importlib.import_module("datatrove.pipeline.extractors")
            return extractors.Trafilatura(deduplicate=False, timeout=600)
        case "unmangle":
            return formatters.FTFYFormatter()
        case "repetition":
            return filters.GopherRepetitionFilter()
        case "quality":
            return filters.GopherQualityFilter()
        case "lines":
            return filters.C4QualityFilter(filter_no_terminal_punct=False, filter_curly_bracket=False)
        case "paragraphs":
            paragraphs = filters.C4ParagraphFilter()
            paragraphs.min_paragraph_len = 50
            return paragraphs
        case "fineweb":
            return filters.FineWebQualityFilter()
        case "pattern":
            return filters.RegexFilter("lorem ipsum")
        case "length":
            return filters.LambdaFilter(is_short)
        case "sample":
            return filters.SamplerFilter(rate=1.0, seed=1)  # keeps all: another rate keeps other records in each tool
        case "private":
            return formatters.PIIFormatter(email_replacement="email@example.com", ip_replacement="22.214.171.124")
    return formatters.SymbolLinesFormatter()


def main(source: str, folder: str) -> None:
    """Run the steps over one file, as datatrove's documentation shows."""
    executor: Any = importlib.import_module("datatrove.executor").LocalPipelineExecutor
    readers: Any = importlib.import_module("datatrove.pipeline.readers")
    writers: Any = importlib.import_module("datatrove.pipeline.writers")
    path = Path(source)
    executor(
        pipeline=[
            readers.JsonlReader(str(path.parent), glob_pattern=path.name),
            *map(_step, NAMES),
            writers.JsonlWriter(folder, compression=None),
        ],
        tasks=TASKS,
        workers=TASKS,
        logging_dir=f"{folder}-logs",
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
