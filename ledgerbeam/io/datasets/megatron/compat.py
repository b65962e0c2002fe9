"""What Megatron's reader does where it does not check: the bytes that it takes, kept within the file.

As read from and tried with `megatron.core.datasets.indexed_dataset` of megatron-core 0.16.1.
"""

from __future__ import annotations

from numpy.typing import NDArray

from ledgerbeam._base.late_numpy import np
from ledgerbeam.errors import UsageError


def compat_slice(
    part: slice, lengths: NDArray[np.int32], pointers: NDArray[np.int64], width: int
) -> tuple[int, int, list[int]]:
    """Find the one run of bytes that Megatron takes for a slice, from the first sequence on.

    Args:
        part: The slice.
        lengths: Of all sequences, in tokens.
        pointers: Of all sequences, in bytes.
        width: Bytes of a token.

    Returns:
        First byte, end, and where the run is cut, in tokens, both ends included. An empty slice is one empty piece.

    Raises:
        IndexError: The slice begins at the end.
        UsageError: Its step is not 1.
    """
    start, _, step = part.indices(len(lengths))
    if step != 1:
        raise UsageError(f"{part} has a step of {step}; Megatron's slices are contiguous. Leave compat out")
    if start >= len(lengths):
        raise IndexError(f"{part} begins at the end of {len(lengths)} sequences, where Megatron finds no pointer")
    cuts = [0, *np.cumsum(lengths[part], dtype=np.int64).tolist()]
    first = int(pointers[start])
    return first, first + cuts[-1] * width, cuts if len(cuts) > 1 else [0, 0]


def compat_part(pointer: int, count: int, offset: int, length: int | None, *, width: int, size: int) -> tuple[int, int]:
    """Find the bytes that Megatron takes for a part of a sequence, which need not be of that sequence.

    Args:
        pointer: Where the sequence begins, in bytes.
        count: Its length in tokens.
        offset: First token, from the beginning of the sequence; may be negative.
        length: How many tokens; negative for all up to the end of the file. Default: up to the end of the sequence.
        width: Bytes of a token.
        size: Size of the `.bin`.
    """
    start = pointer + offset * width
    wanted = count - offset if length is None else length
    return start, size if wanted < 0 else start + wanted * width
