"""The location of the index of a source: beside it, below a mirrored root, or at a given URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ledgerbeam._base.names import INDEX_ENDING, beside, check_root, relative_name
from ledgerbeam.errors import DiskFullError, StorageError, UsageError
from ledgerbeam.io.compression.gzip_points import LOOKS_OF_POINTS, POINTS_ENDING
from ledgerbeam.io.index.file import LOOKS_OF_INDEX
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.overwrite import refuse_foreign, refuse_links
from ledgerbeam.io.storage.publish import publish_bytes, require_atomic
from ledgerbeam.io.storage.urls import canonical_url, is_local, split_scheme, store_of

Rule = Literal["scheme", "lhotse"]
"""Rule for the mirrored paths below a root."""


@dataclass(frozen=True)
class IndexLocation:
    """The rule for the URL of the index of a source.

    Without arguments the index of `X` is `X.idx`. A root mirrors the tree of the sources:

    - rule `scheme`: `s3://b/x` has `ROOT/s3/b/x.idx`, `/b/x` has `ROOT/file/b/x.idx`. No two sources share an index.
    - rule `lhotse`: `s3://b/x` and `/b/x` both have `ROOT/b/x.idx`, where lhotse's `indexes_root` expects it.

    Names that are too long or lead out of the root are encoded as in `ledgerbeam._base.names`.

    Attributes:
        root: A folder or URL prefix on any store; None for beside the source.
        rule: How `root` mirrors the paths.
        explicit: Path or URL of the index, if the job has only one source. Not together with `root`.
    """

    root: str | None = None
    rule: Rule = "scheme"
    explicit: str | None = None

    def __post_init__(self) -> None:
        if self.root is not None and self.explicit is not None:
            raise UsageError(f"index: expected one location, found {self.explicit} and {self.root}; give only one")
        if self.rule not in get_args(Rule):
            raise UsageError(f"index: expected a rule of {get_args(Rule)}, found {self.rule!r}; choose one of these")

    def url_for(self, source_url: str) -> str:
        """Return the canonical URL of the index of a source.

        Raises:
            UsageError: `canonical_url` refuses the name of the source, or with the rule `lhotse` a part `..` leads out
                of the root.
        """
        if self.explicit is not None:
            return canonical_url(self.explicit)
        source = canonical_url(source_url)
        if self.root is None:
            return beside(source, INDEX_ENDING)
        root = check_root(canonical_url(self.root)).rstrip("/")
        scheme, rest = split_scheme(source)
        if self.rule == "lhotse":
            path = rest.lstrip("/")
            if ".." in path.split("/"):
                raise UsageError(f"{source}: its index would be outside {self.root}; use the rule 'scheme'")
            return beside(f"{root}/{path}", INDEX_ENDING)
        name = relative_name(f"{scheme}/{rest.removeprefix('/')}", len(INDEX_ENDING), below=root or "/")
        return f"{root}/{name}{INDEX_ENDING}"

    def publish(
        self, url: str, data: bytes, options: Options | None = None, *, not_before_ns: int = 0, force: bool = False
    ) -> None:
        """Publish an index or seek points, and replace an earlier version. A new object takes one request.

        Args:
            url: URL of the file, from `url_for`.
            data: Its content.
            options: Storage options.
            not_before_ns: As in `publish_bytes`.
            force: Whether to replace a file of any kind.

        Raises:
            DiskFullError: No space is left; nothing was published.
            StorageError: No permission, or the store refused.
            UsageError: The store cannot publish it, or a file of another kind has the name.
        """
        url = canonical_url(url)
        try:
            if self.root is not None:
                refuse_links(canonical_url(self.root), [url.rpartition("/")[0]])
            if not force:
                if _is_created(url, data, options):
                    return
                looks = LOOKS_OF_POINTS if url.endswith(POINTS_ENDING) else LOOKS_OF_INDEX
                remedy = "or have it replaced by: ledgerbeam index --force SOURCE"
                refuse_foreign({url: looks}, options, kind="an index", remedy=remedy)
            publish_bytes(url, data, options, not_before_ns=not_before_ns)
        except DiskFullError:
            raise
        except (StorageError, UsageError) as error:
            where = "beside their sources" if self.root is None else f"below {self.root}"
            # Keep the class, so that a StorageError remains one.
            raise type(error)(
                f"{error}; indexes are stored {where}: give a writable folder as --index-root, also to the commands "
                "that read them"
            ) from error


def _is_created(url: str, data: bytes, options: Options | None) -> bool:
    """Create a new object, if the store supports exclusive creation; return whether it was created."""
    if is_local(url):
        return False
    require_atomic(url)
    scheme, rest = split_scheme(url)
    bucket, _, key = rest.partition("/")  # a folder has no slash at its end, but parts of a key may be empty
    return store_of(url).creates_exclusively and ObjectFolder(f"{scheme}://{bucket}", options).create_new(key, data)


def index_beside(url: str) -> str:
    """Return the canonical URL of the index beside a source, the default of writers and readers."""
    return IndexLocation().url_for(url)
