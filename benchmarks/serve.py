"""A process that does named work on request: the side that runs in a peer's environment. Standard library only.

Requests and answers are JSON, one a line, on standard input and output: `{"work": NAME, ...arguments}` is answered by
`{"result": VALUE}` or `{"error": TRACEBACK}`. What the work itself prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def serve(works: Mapping[str, Callable[..., Any]]) -> None:
    """Answers requests until standard input ends.

    Args:
        works: Functions by name; they take the request's other keys as keywords and return what JSON can hold.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": works[request.pop("work")](**request)}
        except Exception:  # noqa: BLE001 - the other side raises it
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
