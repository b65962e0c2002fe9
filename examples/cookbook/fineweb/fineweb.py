# fineweb.py
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from ledgerbeam import Drop
from ledgerbeam.io.warc import decoded_payload


def page(record):
    if record["type"] != "response" or record["mime"] != "text/html":
        return Drop("no page")
    html = decoded_payload(record).decode("utf-8", "replace")
    return {"id": record["id"], "url": record["url"], "date": record["date"], "text": html}


class Language:
    def __init__(self, language="en", least=0.65):
        self.language, self.least = language, least
        self.model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    def __call__(self, record):
        language, probability = self.model.classify(record["text"])
        if language != self.language or probability < self.least:
            return Drop("other language")
        return {**record, "language": language}
