"""Ways to break durability in a traced process, each of which the replay must find."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def _open_lmdb(**changes: Any) -> None:
    import lmdb

    opened = lmdb.open
    lmdb.open = lambda path, **options: opened(path, **{**options, **changes})  # type: ignore[assignment]


def _no_sync() -> None:
    """LMDB leaves it to the kernel when its pages are written."""
    _open_lmdb(sync=False)


def _no_metasync() -> None:
    """LMDB leaves it to the kernel when a commit's last page is written."""
    _open_lmdb(metasync=False)


def _no_fsync_of_outputs() -> None:
    """Outputs are renamed before their bytes are on the disk."""
    from ledgerbeam.io.storage import publish

    _forget_fsync(publish, lambda descriptor: not os.path.isdir(f"/proc/self/fd/{descriptor}"))


def _no_fsync_of_folders() -> None:
    """Name of outputs are not on the disk when they are recorded."""
    from ledgerbeam.io.storage import publish

    vars(publish)["sync_folder"] = lambda folder: None


def _record_first() -> None:
    """Return tasks are recorded before their outputs are published."""
    from tests.fault.replay_stories import OutputsStory

    publish = OutputsStory.publish

    def record_first(self: OutputsStory, leaves: Any) -> None:
        self.store.commit(leaves)
        publish(self, leaves)

    OutputsStory.publish = record_first  # type: ignore[method-assign]


def _no_fsync_of_objects() -> None:
    """Objects get their names before their bytes are on the disk."""
    from ledgerbeam.io.storage import objects

    _forget_fsync(objects, lambda descriptor: not os.path.isdir(f"/proc/self/fd/{descriptor}"))


def _forget_fsync(module: Any, forgotten: Callable[[int], bool]) -> None:
    class Forgetful:
        """The module `os`, but for its fsync."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        @staticmethod
        def fsync(descriptor: int) -> None:
            if not forgotten(descriptor):
                os.fsync(descriptor)

    module.os = Forgetful()


BREAKAGES: dict[str, Callable[[], None]] = {
    "no sync": _no_sync,
    "no metasync": _no_metasync,
    "no fsync of outputs": _no_fsync_of_outputs,
    "no fsync of folders": _no_fsync_of_folders,
    "record first": _record_first,
    "no fsync of objects": _no_fsync_of_objects,
}
