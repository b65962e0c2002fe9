"""Credentials are hidden; values with similar names are not."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Iterator

import pytest

import ledgerbeam
from ledgerbeam._base.redaction import command_without_secrets, is_credential, register_secrets, without_secrets
from ledgerbeam.pipelines.cli.parser import build_parser

OF_THE_FIELD = (
    *("max_tokens", "max_new_tokens", "num_tokens", "tokens", "tokens_per_second", "token_budget", "token_count"),
    *("pad_token", "eos_token", "bos_token", "unk_token", "sep_token", "cls_token", "mask_token", "stop_token"),
    *("image_token", "end_of_text_token", "fim_prefix_token", "pad_token_id", "token_id", "token_ids", "token_type"),
    *("tokenizer", "tokenizer_path", "tokenizer_name", "detokenize", "pretokenized", "add_special_tokens"),
    *("key", "keys", "sort_key", "primary_key", "foreign_key", "join_key", "dedup_key", "text_key", "key_field"),
    *("keyword", "keywords", "monkey", "public_key", "author", "authors", "author_id", "authority", "authored_by"),
    *("passage", "passages", "pass", "n_passes", "bypass", "compass", "signature_size", "num_signatures"),
    *("minhash_signature", "secretary", "privacy", "session_id", "access_count", "cookie_banner", "account_name"),
    *("api_version", "auth_method", "credits", "sasquatch", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "HF_HOME"),
    *("OMP_NUM_THREADS", "VLLM_MAX_TOKENS", "SSH_AUTH_SOCK", "AWS_REGION", "api_key_env", "password_file"),
)
CREDENTIALS = (
    *("api_key", "api-key", "apikey", "apiKey", "OPENAI_API_KEY", "WANDB_API_KEY", "X-Api-Key", "hf_token", "HF_TOKEN"),
    *("access_token", "accessToken", "auth_token", "github_token", "refresh_token", "session_token", "bearer_token"),
    *("token", "id_token", "secret", "secrets", "client_secret", "password", "db_password", "PGPASSWORD", "passwd"),
    *("passphrase", "pwd", "DB_PASS", "AWS_SECRET_ACCESS_KEY", "aws_access_key_id", "AWS_SESSION_TOKEN", "AccountKey"),
    *("connection_string", "SharedAccessSignature", "private_key", "credential", "credentials", "Authorization"),
    *("proxy_auth", "cookie", "jwt", "sig", "signature", "X-Amz-Signature", "X-Amz-Security-Token", "X-Amz-Credential"),
    *("X-Goog-Signature", "AWSAccessKeyId", "AZURE_STORAGE_SAS_TOKEN", "storage_key"),
)


def options() -> Iterator[str]:
    """Yield all options of the command line."""
    waiting: list[argparse.ArgumentParser] = [build_parser()]
    while waiting:
        for action in waiting.pop()._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            yield from (word for word in action.option_strings if word.startswith("--"))


def parameters() -> Iterator[str]:
    """Yield the names of all parameters of calls in Python."""
    for name in ledgerbeam.__all__:
        call = getattr(ledgerbeam, name)
        if inspect.isfunction(call) or dataclasses.is_dataclass(call):
            yield from inspect.signature(call).parameters  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["2048", "<|end|>", "[SEP]", "true", "body.content", "./bpe.json", "s3://b/bpe.json"])
def test_names_of_the_field_are_shown(value: str) -> None:
    hidden = [name for name in OF_THE_FIELD if is_credential(name, value)]
    assert hidden == []
    for name in OF_THE_FIELD:
        for words in (
            ["--set", f"{name}={value}"],
            [f"--set={name}={value}"],
            [f"--{name}", value],
            [f"{name}={value}"],
        ):
            assert command_without_secrets(words) == words


def test_every_option_and_parameter_of_our_own_is_shown() -> None:
    for name in {*options(), *parameters()} - {"--storage-options", "storage_options"}:
        for words in ([name, "value", "word"], [f"{name}=value"], ["--set", f"{name.strip('-')}=value"]):
            assert command_without_secrets(words) == words
    assert command_without_secrets(["--storage-options", "value"]) == ["--storage-options", "***"]


def test_credentials_are_hidden_in_commands_and_urls() -> None:
    for name in CREDENTIALS:
        assert is_credential(name), name
        for words in (["--set", f"{name}=hunter2"], [f"--set={name}=hunter2"], [f"--{name}", "hunter2"]):
            assert "hunter2" not in str(command_without_secrets(words)), name
        assert without_secrets(f"https://host/a?x=1&{name}=hunter2&y=2") == f"https://host/a?x=1&{name}=***&y=2"


@pytest.mark.parametrize(
    "words",
    [
        ["--header", "Authorization: Bearer hunter2hunter2"],
        ["--header", "X-Api-Key: hunter2"],
        ["--set", 'client={"headers": {"Authorization": "hunter2"}}'],
        ["--headers", '{"api_key": "hunter2"}'],
        ["--set", 'keys=[{"password": "hunter2"}]'],
        ["--set", "model=sk-hunter2hunter2hunter2"],
        ["--set", "company_token=f00dhunter2cafe0123456789"],
        ["python", "job.py", "hf_hunter2hunter2hunter2"],
    ],
)
def test_credentials_are_hidden_wherever_they_stand_in_a_command(words: list[str]) -> None:
    assert "hunter2" not in str(command_without_secrets(words))


def test_a_program_without_words_has_a_command_without_words() -> None:
    assert command_without_secrets([]) == []
    assert command_without_secrets(["--token"]) == ["--token"]


def test_a_name_with_two_meanings_is_judged_by_its_value() -> None:
    for name, value in (("company_token", "<company>"), ("shard_key", "meta.url_normalized_v2"), ("signature", "128")):
        assert not is_credential(name, value)
    assert is_credential("shard_key", "Zm9vYmFyYmF6MTIzNDU2Nzg5")


def test_a_header_in_a_message_is_hidden() -> None:
    assert without_secrets("sent Authorization: Bearer abc.def") == "sent Authorization: Bearer ***"
    assert without_secrets("{'authorization': 'Basic YTpi'}") == "{'authorization': 'Basic ***'}"
    assert without_secrets("authorization failed: see the log") == "authorization failed: see the log"


def test_a_known_secret_within_a_longer_token_hides_the_whole_token() -> None:
    register_secrets({"password": "hunter7hunter7"})
    assert without_secrets("use hf_hunter7hunter7hunter7, then hunter7hunter7hunter7") == "use ***, then ***hunter7"
