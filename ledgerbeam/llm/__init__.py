r"""Clients of OpenAI-compatible services, as functions of jobs: ``ledgerbeam[llm]``.

    ledgerbeam map ledgerbeam.llm:Chat 'texts/*.jsonl' --output labels --to jsonl \
        --set model=small --set url=http://127.0.0.1:8000/v1 --set prompt='Classify: {text}' --set into=label

`Chat` asks for one record at a time, and `ChatBatches` uses the batch endpoints of a provider. Both store each answer
before it is used, so that no answer is paid twice.
"""

from ledgerbeam.llm.batches import ChatBatches
from ledgerbeam.llm.chat import Chat

__all__ = ["Chat", "ChatBatches"]
