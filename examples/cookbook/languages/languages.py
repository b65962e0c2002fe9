# languages.py
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from ledgerbeam import Drop, Route, stats


class Identify:
    def __init__(self, languages, least=0.7):
        self.languages = set(languages)
        self.least = least
        self.model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)  # a file of the package

    def __call__(self, record):
        text = record["text"]
        if sum(map(str.isalpha, text)) < 10:
            return Drop("no text")
        language, probability = self.model.classify(text)
        stats.top("languages", language)
        if probability < self.least:
            return Drop("uncertain")
        if language not in self.languages:
            return Drop("other language")
        return Route(language, {**record, "language": language, "probability": round(float(probability), 4)})
