"""NumPy, imported where it is first used.

The import takes longer than a command that finds its job done, and such a command needs no arrays. Modules that every
command imports have `np` from here, and make their arrays, and constants of its types, in functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledgerbeam._base.interrupts import Interruptible

__all__ = ["ArrayLike", "DTypeLike", "NDArray", "np"]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, DTypeLike, NDArray
else:
    ArrayLike = DTypeLike = Any  # in annotations, which are not evaluated

    class NDArray:
        """The same; also in aliases."""

        def __class_getitem__(cls, _: object) -> type[NDArray]:
            return cls

    class _LateNumPy:
        def __getattr__(self, name: str) -> Any:
            with Interruptible():
                import numpy  # noqa: ICN001, PLC0415 - `np` is this object

            found = getattr(numpy, name)
            setattr(self, name, found)  # the next look-up costs what it does in a module
            return found

    np = _LateNumPy()
