"""Server of a process that does named work on request, such as a peer. It needs only the standard library.

Requests and answers are lines of JSON on standard input and output. The answer to `{"work": NAME, ...arguments}` is
`{"result": VALUE}` or `{"error": TRACEBACK}`. Output that the work prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def serve(works: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests until standard input ends.

    Args:
        works: Functions by name. They take the other keys of a request as keywords, and return a JSON value.
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
