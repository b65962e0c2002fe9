"""The two implementations of the hot loops: tests that ask for `implementation` run with each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledgerbeam.io import native
from tests.io.places import nobody, place, s3_place

__all__ = ["implementation", "nobody", "place", "s3_place"]


@pytest.fixture(scope="module", params=["compiled", "python"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Has all of a module done by the compiled module, then by Python."""
    if request.param == "compiled" and native.compiled is None:
        pytest.skip('no compiled module: run "make setup" where there is a C compiler, LEDGERBEAM_PURE_PYTHON unset')
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(native, "compiled", None)
        yield request.param
