"""Files and packages that steps of datatrove use: word lists, models, tokenizers.

A worker downloads nothing. datatrove stores downloads in a folder of the user, and a job reads them only from there.
Their checksums are part of the job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Lock
from typing import Any, Protocol

from ledgerbeam.errors import FunctionError

_FILTERS = "datatrove.pipeline.filters"
_ARCHIVE = "url_filterblacklistsv0_3_0.tar.gz"
_LISTS = (_ARCHIVE, "banned_words.txt", "banned_subwords.txt", "soft_banned_words.txt")

_USED = {"trafilatura": ("lxml", "lxml_html_clean", "justext")}  # packages that decide the results of another one
_TOKENIZERS = {
    "SpaCyTokenizer": ("spacy", "pyvi", "jieba", "sudachipy"),
    "StanzaTokenizer": ("stanza",),
    "NLTKTokenizer": ("nltk",),
    "ThaiTokenizer": ("pythainlp",),
    "IndicNLPTokenizer": ("indic-nlp-library",),
    "KiwiTokenizer": ("kiwipiepy",),
    "KhmerTokenizer": ("khmer-nltk",),
    "LaoTokenizer": ("laonlp",),
    "TibetanTokenizer": ("botok",),
    "BurmeseTokenizer": ("pyidaungsu-numpy2",),
}
"""Distributions behind the classes of `datatrove.utils.word_tokenizers`."""

_patching = Lock()


class Settings(Protocol):
    """Parameters of a step by name."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter."""


def require_loadable(kind: Any) -> None:
    """Raise FunctionError if a package that a step needs is missing."""
    try:
        kind.__new__(kind)  # datatrove looks for the packages there
    except ImportError as error:
        raise FunctionError(f"{kind.__module__}:{kind.__qualname__}: {error}") from error
    except TypeError:  # an abstract class; the error of its constructor says more
        return


def step_packages(kind: type, settings: Settings) -> list[str]:
    """Return the names of the packages, besides datatrove, that decide the results of a step."""
    found: dict[str, None] = {}
    for base in kind.__mro__:
        for needed in vars(base).get("_requires_dependencies", ()):
            found |= dict.fromkeys([needed] if isinstance(needed, str) else needed[1:])
    language = settings.get("language")
    if isinstance(language, str):
        tokenizers = import_module("datatrove.utils.word_tokenizers")
        with suppress(ValueError):  # a language without a tokenizer; each record raises then
            try:
                tokenizer = tokenizers.load_word_tokenizer(language)
            except ImportError as error:
                raise FunctionError(f"{kind.__module__}:{kind.__qualname__}: {error}") from error
            found |= dict.fromkeys(_TOKENIZERS.get(type(tokenizer).__name__, ()))
    for name in list(found):
        found |= dict.fromkeys(_USED.get(name, ()))
    return list(found)


def asset_files(kind: type, settings: Settings) -> dict[str, str]:
    """Return the paths of the files that a step reads, by names that are equal on every host.

    Raises FunctionError if a file is missing that datatrove would download.
    """
    for base in kind.__mro__:
        find = _FILES.get(base.__name__) if base.__module__.startswith("datatrove.pipeline.") else None
        if find is not None:
            return find(settings)
    return {}


def load_assets(step: Any) -> None:
    """Load the models of a step, and keep the step from downloads. Replace its client of the list of public suffixes.

    `tldextract` would download that list. The one in its package is the same on every host.
    """
    if hasattr(step, "model_url"):  # FastTextClassifierFilter
        with _without_downloads():
            _ = step.model
    elif hasattr(getattr(step, "model", None), "MODEL_URL"):  # LanguageFilter
        with _without_downloads():
            _ = step.model.model
    if hasattr(step, "_badwords_regex"):  # C4BadWordsFilter, which loads the words of a language with its first record
        load = step._get_badwords  # noqa: SLF001 - the only place that reads the file

        def load_without_downloads(language: str) -> Any:
            with _without_downloads():
                return load(language)

        step._get_badwords = load_without_downloads  # noqa: SLF001
    if hasattr(step, "banned_subwords"):  # URLFilter
        _mend_url_filter(step)


def _mend_url_filter(step: Any) -> None:
    step.tldextractor = import_module("tldextract").TLDExtract(suffix_list_urls=(), cache_dir=None)
    if hasattr(step, "banned_subwords_automaton"):
        return
    corasick = import_module("ahocorasick")  # a copied step has no automaton; this one is made as in the constructor
    step.banned_subwords_automaton = corasick.Automaton(corasick.STORE_INTS)
    for number, word in enumerate(step.banned_subwords):
        step.banned_subwords_automaton.add_word(word, number)
    if not step.use_integrated_lists:
        step.banned_subwords_automaton.make_automaton()


@contextmanager
def _without_downloads() -> Iterator[None]:
    """Let datatrove open assets in its folder, and local files unchanged in their place, but download none."""
    modules: list[Any] = [
        import_module(name) for name in (f"{_FILTERS}.c4_filters", f"{_FILTERS}.fasttext_filter", "datatrove.utils.lid")
    ]
    with _patching:
        known = [module.cached_asset_path_or_download for module in modules]
        for module in modules:
            module.cached_asset_path_or_download = _local_path
        try:
            yield
        finally:
            for module, function in zip(modules, known, strict=True):
                module.cached_asset_path_or_download = function


def _local_path(url: str, *_: Any, namespace: str = "default", subfolder: str = "default", **__: Any) -> str:
    """Return the path of an asset. Raises FunctionError if it would have to be downloaded."""
    if os.path.exists(url):
        return url
    path = _stored(url, namespace, subfolder)
    has_stopped = os.path.exists(f"{path}.lock") and not os.path.exists(f"{path}.completed")
    if "://" not in url:
        raise FunctionError(f"{url}: this asset is missing; correct the path")
    if has_stopped or not os.path.exists(path):
        state = "its download was interrupted" if has_stopped else "this asset is missing"
        raise FunctionError(f"{path}: {state}, and jobs download none; use the object once outside a job (from {url})")
    return path


def _stored(url: str, namespace: str, subfolder: str) -> str:
    """Return the path at which `cached_asset_path_or_download` stores an asset."""
    strip_protocol = import_module("datatrove.io").strip_protocol
    return os.path.join(_folder(namespace, subfolder), strip_protocol(url).replace("/", "_"))


def _folder(namespace: str, subfolder: str) -> str:
    cached_assets_path = import_module("huggingface_hub").cached_assets_path
    return str(cached_assets_path(library_name="datatrove", namespace=namespace, subfolder=subfolder))


def _bad_words(settings: Settings) -> dict[str, str]:
    """Return all lists of the folder, since each record names its language. The list of the default must be there."""
    module = import_module(f"{_FILTERS}.c4_filters")
    folder, language = _folder("filters", "c4_badwords"), settings.get("default_language", "en")
    url = module._EN_BADWORDS_URL if language == "en" else module._BADWORDS_URL + language  # noqa: SLF001
    _local_path(url, namespace="filters", subfolder="c4_badwords")
    return {
        name: os.path.join(folder, name) for name in os.listdir(folder) if not name.endswith((".lock", ".completed"))
    }


def _language_model(settings: Settings) -> dict[str, str]:
    module = import_module("datatrove.utils.lid")
    model = settings.get("model")
    if model is None:  # of a class
        model = module.FT176LID() if settings.get("backend") == "ft176" else module.GlotLID()
    return _named(_local_path(model.MODEL_URL, namespace="lid", subfolder=model.MODEL_SUBFOLDER))


def _classifier(settings: Settings) -> dict[str, str]:
    return _named(_local_path(str(settings.get("model_url")), namespace="filters", subfolder="fasttext"))


def _frequencies(_: Settings) -> dict[str, str]:
    path = os.path.join(_folder("filters", "unigram_logprob_filter"), "unigram_freq.csv")
    if not os.path.isfile(path):
        url = import_module(f"{_FILTERS}.unigram_log_probs").UNIGRAM_DOWNLOAD
        raise FunctionError(f"{path}: this asset is missing, and jobs download none; download {url} to this path")
    return _named(path)


def _url_lists(settings: Settings) -> dict[str, str]:
    if not settings.get("use_integrated_lists", True):
        return {}
    folder = import_module("datatrove.utils._import_utils").ASSETS_PATH
    return {name: os.path.join(folder, name) for name in _LISTS}


def _n_grams(settings: Settings) -> dict[str, str]:
    folder = import_module("datatrove.io").get_datafolder(settings.get("index_folder"))
    if not folder.is_local():
        raise FunctionError(f"{folder.path}: the index of n-grams must be in a local folder; copy it there")
    found = {name: os.path.join(folder.path, name) for name in folder.list_files(glob_pattern="**/*.index.hashes")}
    if not found:
        raise FunctionError(f"{folder.path}: expected files *.index.hashes, found none; build them with datatrove")
    return found


def _named(path: str) -> dict[str, str]:
    return {os.path.basename(path): path}


_FILES: dict[str, Callable[[Settings], dict[str, str]]] = {
    "C4BadWordsFilter": _bad_words,
    "FastTextClassifierFilter": _classifier,
    "LanguageFilter": _language_model,
    "NGramsDecontFilter": _n_grams,
    "URLFilter": _url_lists,
    "UnigramLogProbFilter": _frequencies,
}
"""Functions that find the files of a step, by the name of its class."""
