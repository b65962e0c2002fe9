"""Filters, formatters and extractors of datatrove as functions of jobs. Needs the extra `datatrove`.

A job calls `filter`, `filter_batch`, `format` and `extract`, and never `run`: `run` turns errors of extractors into
dropped documents. A record is an object: one of its keys is the text of the document, one its ID, and the others are
its metadata.

The result for a record may depend on this record only. Random numbers are drawn from a generator that is seeded by the
record. `PIIFormatter` starts with its first replacement for each record. `Trafilatura` compares no paragraphs of
different pages unless a job sets ``deduplicate=true``. Steps that read, write or compare whole datasets are refused.
"""

from __future__ import annotations

import copy
import inspect
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib import import_module
from typing import Any

from ledgerbeam import stats
from ledgerbeam.adapters.datatrove_assets import asset_files, load_assets, require_loadable, step_packages
from ledgerbeam.errors import FunctionError
from ledgerbeam.results import Drop, Reject
from ledgerbeam.user_code.adapters import ASSETS, PACKAGES, Adapter, file_checksums, package_versions

_PIPELINE = "datatrove.pipeline"
_NESTED = "metadata"  # key of a record under which writers of datatrove store metadata
_SEED_BITS = 64  # a generator without a seed gets one of 128 bits from the operating system

_COMMANDS = {
    "readers": "name the files as PATTERN of the command, such as 'data/*.jsonl.gz' or 'hf://datasets/NAME/**/*.parquet'",
    "writers": "use --output and --to",
    "dedup.minhash": "use `ledgerbeam dedup --near`",
    "dedup": "use `ledgerbeam dedup --by KEY` or `ledgerbeam dedup --content` for exact duplicates of records",
    "tokens": "use `ledgerbeam tokenize`",
    "stats": "call `ledgerbeam.stats` in a function of your own, and read `ledgerbeam ledger stats`",
    "decont": "build the index with datatrove; NGramsDecontFilter reads it",
    "inference": "call the model in a class of your own, of which each worker builds one object",
    "media": "use a function of your own for each record",
}
"""Remedies for steps that are refused, by the start of the name of their module below `datatrove.pipeline`."""


class DatatroveAdapter(Adapter):
    """Adapter of filters, formatters and extractors: instances, and classes whose parameters ``--set`` gives.

    ``--set`` also gives `text_key` and `id_key`, the keys of a record with the text and the ID of the document.
    """

    def knows(self, target: Any) -> bool:
        """Return whether an object is a step of datatrove, also one that is refused."""
        base = sys.modules.get(f"{_PIPELINE}.base")
        return base is not None and issubclass(_class_of(target), base.PipelineStep)

    def adapt(self, target: Any, *, batched: bool) -> Callable[..., Any]:
        """Return a class of functions of records, or of lists of records."""
        kind = _class_of(target)
        role = next((role for base, role in _roles() if issubclass(kind, base)), None)
        if role is None:
            raise FunctionError(f"{_name(kind)}: {_refusal(kind)}")
        if getattr(target, "exclusion_writer", None) is not None:
            raise FunctionError(
                f"{_name(kind)}: its exclusion_writer writes a file for each rank; leave it out, and store dropped "
                "records with --keep-dropped"
            )
        call = role.many if batched else role.one
        body = {"given": target, "__call__": call, "__signature__": _signature(target), "__module__": __name__}
        return type(kind.__name__, (role,), body)

    def identity(self, target: Any, values: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        """Return the versions of datatrove and of the packages that the step uses, and checksums of its assets."""
        kind = _class_of(target)
        require_loadable(kind)
        if isinstance(values.get("filter_function"), str):
            raise FunctionError(
                f"{_name(kind)}: --set gives texts and numbers, no functions; put LambdaFilter(your_function) into a "
                "module, and name it module:object"
            )
        if "timeout" in values:
            raise FunctionError(f"{_name(kind)}: timeout is not used; limit each record with --record-timeout SECONDS")
        if not inspect.isclass(target):
            _seeds(target)  # raises for a generator without a seed
        setting = _Settings(target, values)
        found = {PACKAGES: package_versions(["datatrove", *step_packages(kind, setting)])}
        assets = file_checksums(asset_files(kind, setting))
        return {**found, ASSETS: assets} if assets else found

    def portable(self, target: Any) -> Any:
        """Return a copy of a step without counters, loaded models and parts that cannot be copied."""
        if inspect.isclass(target):
            return target
        if getattr(target, "_downloaded", False):
            raise FunctionError(
                f"{_name(type(target))}: this object has loaded its lists in this process; pass a new object"
            )
        copied = copy.copy(target)
        for name, value in vars(target).items():
            if name in {"stats", "stat_update", "tldextractor", "banned_subwords_automaton"}:
                del copied.__dict__[name]
            elif name == "stop_chars":  # by default in the order of a set, which differs in each process
                copied.__dict__[name] = tuple(sorted(value))
            elif name == "_model":
                copied.__dict__[name] = None
            elif {"_model", "_replace_i"} & vars(value).keys() if hasattr(value, "__dict__") else False:
                copied.__dict__[name] = _as_new(value)
        for name, seed in _seeds(target).items():
            copied.__dict__[name] = _Seed(seed)
        return copied

    def notes(self, target: Any, values: Mapping[str, Any]) -> list[str]:
        """Return the differences from datatrove that a job has because a result may depend on its record only."""
        setting, found = _Settings(target, values), []
        if _deduplicates(target) and not values.get("deduplicate"):
            found.append(
                "deduplicate is off: it removes paragraphs that occurred in earlier pages, so results would depend on "
                "the order of the pages; --set deduplicate=true turns it on"
            )
        if setting.get("seed", 0) is None and setting.get("keep_fraction", 1):
            found.append("seed is 0: without a seed each run would keep other records")
        return found


def _as_new(part: Any) -> Any:
    """Return a copy of a part of a step as its constructor made it: a model or a cycle of replacements."""
    copied = copy.copy(part)
    copied.__dict__ |= {name: value for name, value in {"_model": None, "_replace_i": 0}.items() if name in vars(part)}
    return copied


class _Seed:
    """The seed of a random generator, in the place of the generator in a copied step."""

    def __init__(self, seed: Sequence[int]) -> None:
        self.seed = tuple(seed)


class _Settings:
    """The parameters of a step: values of ``--set``, attributes of an instance, and defaults of the constructor."""

    def __init__(self, target: Any, values: Mapping[str, Any]) -> None:
        self._values = values
        self._instance = None if inspect.isclass(target) else target
        self._defaults = _parameters(target) if inspect.isclass(target) else {}

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter by its name."""
        if self._instance is not None:
            return getattr(self._instance, name, default)
        if name in self._values:
            return self._values[name]
        found = self._defaults.get(name)
        return default if found is None or found.default is found.empty else found.default


class _Step(ABC):
    """A step of datatrove as a function. One object for each worker process."""

    given: Any  # the instance or class that the job names

    def __init__(self, text_key: str = "text", id_key: str = "id", **parameters: Any) -> None:
        self._text_key, self._id_key = text_key, id_key
        self.step = _built(self.given, parameters)
        self._draws = _seeds(self.step)
        replacers = import_module(f"{_PIPELINE}.formatters.pii").PIIReplacer
        self._cycles = [value for value in vars(self.step).values() if isinstance(value, replacers)]

    @abstractmethod
    def one(self, record: Any) -> Any:
        """Return the result for a record."""

    def many(self, records: list[Any]) -> list[Any]:
        """Return the results for records."""
        return [self.one(record) for record in records]

    def text(self, record: Any) -> str | Reject:
        """Return the text of a record, and reset the state that the step keeps between documents."""
        if type(record) is not dict:
            return Reject("no object", f"expected a record that is an object, found {type(record).__name__}")
        text = record.get(self._text_key)
        if type(text) is not str:
            return Reject(
                "no text", f"expected text under {self._text_key!r}, found {type(text).__name__}; --set text_key=KEY"
            )
        for cycle in self._cycles:
            cycle._replace_i = 0  # noqa: SLF001 - the state of datatrove's replacer
        for name, seed in self._draws.items():
            digest = blake2b(f"{record.get(self._id_key)}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16)
            setattr(self.step, name, _generator([*seed, int.from_bytes(digest.digest())]).uniform)
        return text

    def with_text(self, record: dict[str, Any], text: Any) -> dict[str, Any]:
        """Return a record with another text."""
        return record if text == record[self._text_key] else {**record, self._text_key: text}


class _Formatter(_Step):
    def one(self, record: Any) -> Any:
        text = self.text(record)
        return text if type(text) is Reject else self.with_text(record, self.step.format(text))


class _Extractor(_Step):
    def one(self, record: Any) -> Any:
        text = self.text(record)
        if type(text) is Reject:
            return text
        found = self.step.extract(text)
        return self.with_text(record, found) if found else Drop("nothing extracted")


class _Filter(_Step):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._document = import_module("datatrove.data").Document
        base = import_module(f"{_PIPELINE}.filters.base_filter").BaseFilter
        has_batches = type(self.step).filter_batch is not base.filter_batch  # the only method that `run` calls
        self._keeps = self._keeps_one if has_batches else self.step.filter

    def one(self, record: Any) -> Any:
        document = self._read(record)
        return document if type(document) is Reject else self._result(record, document, self._keeps(document))

    def many(self, records: list[Any]) -> list[Any]:
        if self._draws:  # the generator is seeded by each record
            return super().many(records)
        results = [self._read(record) for record in records]
        documents = [found for found in results if type(found) is not Reject]
        kept = list(self.step.filter_batch(documents)) if documents else []
        if len(kept) != len(documents):
            raise FunctionError(f"filter_batch returned {len(kept)} results for {len(documents)} documents")
        answers = iter(kept)
        return [
            found if type(found) is Reject else self._result(record, found, next(answers))
            for record, found in zip(records, results, strict=True)
        ]

    def _keeps_one(self, document: Any) -> Any:
        (kept,) = self.step.filter_batch([document])
        return kept

    def _read(self, record: Any) -> Any:
        text = self.text(record)
        if type(text) is Reject:
            return text
        metadata = {**record}
        del metadata[self._text_key]
        metadata.pop(self._id_key, None)
        if type(metadata.get(_NESTED)) is dict:  # a key beside the nested ones has priority, as in datatrove's readers
            metadata = {**metadata.pop(_NESTED), **metadata}
        return self._document(text, record.get(self._id_key, ""), [], metadata)

    def _result(self, record: dict[str, Any], document: Any, kept: Any) -> Any:
        """Return the record that a document stands for, or the reason why it is dropped."""
        reason = None
        if isinstance(kept, tuple):
            kept, reason = kept
        if not kept:
            return Drop(str(reason) if reason else type(self.step).__name__)
        left = document.metadata
        nested = record.get(_NESTED)
        outer = [key for key in record if key not in (self._text_key, self._id_key)]
        changed: dict[str, Any] = {}
        for key in record:
            if key == self._text_key:
                changed[key] = document.text
            elif key == self._id_key:
                changed[key] = document.id
            elif key == _NESTED and type(nested) is dict:
                inner = {name: left.get(name) for name in nested if name in left and name not in outer}
                inner |= {name: value for name, value in nested.items() if name in outer}
                changed[key] = inner | {name: value for name, value in left.items() if name not in (*nested, *outer)}
            elif key in left:
                changed[key] = left[key]
        if type(nested) is not dict:
            changed |= {name: value for name, value in left.items() if name not in changed}
        if self._id_key not in record and document.id:
            changed[self._id_key] = document.id
        return changed


def _roles() -> Iterator[tuple[type, type[_Step]]]:
    """Yield the base classes of steps that a job can call, each with the class that calls them."""
    for module, name, role in (
        ("filters.base_filter", "BaseFilter", _Filter),
        ("formatters.base", "BaseFormatter", _Formatter),
        ("extractors.base", "BaseExtractor", _Extractor),
    ):
        yield getattr(import_module(f"{_PIPELINE}.{module}"), name), role


def _refusal(kind: type) -> str:
    inner = next((base.__module__ for base in kind.__mro__ if base.__module__.startswith(f"{_PIPELINE}.")), "")
    place = inner.removeprefix(f"{_PIPELINE}.")
    for start, remedy in _COMMANDS.items():
        if f"{place}.".startswith(f"{start}."):
            return f"this step of datatrove reads, writes or compares whole datasets; {remedy}"
    return (
        "a job calls filters, formatters and extractors of datatrove only; derive the step from BaseFilter, "
        "BaseFormatter or BaseExtractor, or write a function of a record"
    )


def _signature(target: Any) -> inspect.Signature:
    """Return the parameters that ``--set`` can give: parameters of the constructor of a class, and of `_Step`."""
    own = [
        inspect.Parameter("text_key", inspect.Parameter.KEYWORD_ONLY, default="text"),
        inspect.Parameter("id_key", inspect.Parameter.KEYWORD_ONLY, default="id"),
    ]
    if not inspect.isclass(target):
        if _deduplicates(target):
            own.append(inspect.Parameter("deduplicate", inspect.Parameter.KEYWORD_ONLY, default=False))
        return inspect.Signature(own)
    given = [one for one in _parameters(target).values() if one.name != "exclusion_writer"]
    last = [one for one in given if one.kind is one.VAR_KEYWORD]
    first = [
        one.replace(kind=one.KEYWORD_ONLY) for one in given if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    return inspect.Signature([*first, *own, *last])


def _built(given: Any, parameters: dict[str, Any]) -> Any:
    """Return a step for one worker process."""
    if inspect.isclass(given):
        values = {name: _as_declared(given, name, value) for name, value in parameters.items()}
        declared = _parameters(given)
        if _deduplicates(given):
            values.setdefault("deduplicate", False)
        if "seed" in declared and values.get("seed") is None:
            values["seed"] = 0
        step: Any = given(**values)
    else:
        step = DatatroveAdapter().portable(given)
        step.stats = import_module("datatrove.utils.stats").Stats(str(step))
        if _deduplicates(given):
            step.deduplicate = bool(parameters.get("deduplicate", False))
    step.stat_update = _count
    log = logging.getLogger("trafilatura")  # three messages for each page without text; the job counts these pages
    if _is_trafilatura(step) and log.level == logging.NOTSET:
        log.setLevel(logging.CRITICAL)
    load_assets(step)
    return step


def _as_declared(kind: type, name: str, value: Any) -> Any:
    """Return a list of JSON as a tuple if the parameter is declared as a tuple and not as a list."""
    found = _parameters(kind).get(name)
    declared = str(getattr(found, "annotation", ""))
    return tuple(value) if isinstance(value, list) and "tuple" in declared and "list" not in declared else value


def _count(*labels: str, value: float | None = None, unit: str | None = None) -> None:  # noqa: ARG001
    """Record statistics of a step: a count, or the distribution of values that the step gives."""
    for label in labels:
        if value is None:
            stats.count(label)
        else:
            stats.observe(label, value)


def _is_trafilatura(target: Any) -> bool:
    return issubclass(_class_of(target), import_module(f"{_PIPELINE}.extractors.trafilatura").Trafilatura)


def _deduplicates(target: Any) -> bool:
    """Return whether a step is `Trafilatura`, and its default or its attribute is to remove repeated paragraphs."""
    if not _is_trafilatura(target):
        return False
    return "deduplicate" in _parameters(target) if inspect.isclass(target) else bool(target.deduplicate)


def _seeds(step: Any) -> dict[str, list[int]]:
    """Return the seeds of the generators that a step draws from, by the name of the attribute with the method."""
    found = {}
    for name, value in vars(step).items():
        if isinstance(value, _Seed):
            found[name] = list(value.seed)
            continue
        made: Any = getattr(value, "__self__", None)
        if type(made).__name__ == "Generator" and type(made).__module__.startswith("numpy.random"):
            seed = made.bit_generator.seed_seq.entropy
            numbers = list(seed) if isinstance(seed, Sequence) else [seed]
            if any(number.bit_length() > _SEED_BITS for number in numbers):
                raise FunctionError(
                    f"{_name(type(step))}: it has no seed, so each worker would keep other records; give a seed of at "
                    f"most {_SEED_BITS} bits"
                )
            found[name] = numbers
    return found


def _generator(seed: Sequence[int]) -> Any:
    return import_module("numpy.random").default_rng(seed)


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of the constructor of a class. `inspect.signature` of a step may return `__new__`."""
    found = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
    return dict(list(found.items())[1:])


def _class_of(target: Any) -> type:
    return target if inspect.isclass(target) else type(target)


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
