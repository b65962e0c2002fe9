"""The environment of an installation without extras, for the jobs of tests: see `sitecustomize`, which makes it."""

from __future__ import annotations

import os
from collections.abc import Mapping


def without_extras(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose Python processes import Beam without what the extras for tests bring.

    Args:
        env: Environment variables.
    """
    # Last, so that a sitecustomize of somebody else, such as that of tests/mutation, comes first.
    path = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), os.path.dirname(__file__))))
    return {**env, "PYTHONPATH": path}
