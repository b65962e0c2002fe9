# embedding.py
import os

import pyarrow as pa
import pyarrow.compute as pc
import wordllama

from ledgerbeam import Rows


class Embed:
    def __init__(self):
        shipped = os.path.dirname(wordllama.__file__)  # the wheel contains weights and tokenizer
        self.model = wordllama.WordLlama.load(cache_dir=shipped, disable_download=True)

    def __call__(self, batch):
        text = pc.utf8_trim_whitespace(batch["text"])
        vectors = self.model.embed(text.to_pylist())
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        return Rows(batch.append_column("embedding", column), drop={"empty": pc.equal(text, "")})
