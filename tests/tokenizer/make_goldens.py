"""Records what llama.cpp makes of texts, for every pre-tokenizer kind and for the SentencePiece-style vocabulary.

Needs llama-cpp-python and gguf, which the tests do not: run `PYTHONPATH=src python tests/tokenizer/make_goldens.py`
in an environment that has both. Writes goldens/*.json, over the vocabularies of vocabularies.py.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import llama_cpp.llama_cpp as native
from gguf import GGUFWriter

from kvwise.tokenizer.pretokenizers import PRE_TOKENIZERS

sys.path.insert(0, str(Path(__file__).parent))
from vocabularies import boundless_metadata, sentencepiece_metadata

OUT = Path(__file__).parent / "goldens"
TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "Hello, World! It's 12345 o'clock; I'LL've DON'T we'd",
    "  leading and   multiple   spaces  ",
    "line1\nline2\r\n\r\nline3\n\n\n  x\n \n",
    "\t\ttabs\tand  \t mix",
    "naïve café ÀÉÎ straße ǅ ʰ",
    "日本語のテキスト、漢字かなカナ。テスト123",
    "한국어 텍스트",
    "العربية १२३ ४५٦",
    "emoji 😀👍🏽 family 👨\u200d👩\u200d👧 !!",
    "def f(x):\n    return x**2 + 3.14e-10 # c\n",
    '$price=100,000.50€ <a href="x">{y}</a> ^~|`',
    "a'b 's 'S 'll 'LL 'Re",
    "CamelCaseWORDSmixed ABCdef xYZ",
    "12 123 1234 12345678 1/2 3.5",
    "\u00a0nbsp\u2003em\u3000ideo\u200bzw",
    "...!!!???",
    "—–-_=+*&%@#",
    "combining e\u0301 a\u0308 \u0915\u094d\u0937",
    "https://example.com/path?a=1&b=2#frag",
    "ﬀ ﬁ Ⅷ ½ ² ③",
    "mixed中文English123日本",
    "(a) [b] {c} <d>/e\\f",
    "foo/bar//baz\n/\n",
    "A\u200d\u00adB\ufeff",
]
SENTENCEPIECE_TEXTS = [
    *TEXTS,
    "the other brother and mother",
    "[TOOL] the fox<|im_end|> again </s>x",
    "a[TOOL]b",
    "東京京都大阪 приветмир",
    "  the  the ",
    "<0x41>",
    "\u2581the\u2581dog",
]


def write_vocabulary(path: Path, metadata: Mapping[str, object]) -> None:
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def encode_all(path: Path, texts: list[str], *, parse_special: bool) -> list[list[int]]:
    parameters = native.llama_model_default_params()
    parameters.vocab_only = True
    model = native.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        raise SystemExit(f"llama.cpp does not load {path}")
    vocabulary = native.llama_model_get_vocab(model)
    out = []
    for text in texts:
        raw = text.encode()
        room = (native.llama_token * (len(raw) + 16))()
        count = native.llama_tokenize(vocabulary, raw, len(raw), room, len(room), True, parse_special)
        out.append(list(room[:count]))
    native.llama_model_free(model)
    return out


def record_pre_tokenizers(scratch: Path) -> None:
    metadata = boundless_metadata(TEXTS)
    results: list[list[list[int]]] = []
    result_of: dict[str, int] = {}
    for name in PRE_TOKENIZERS:
        write_vocabulary(
            scratch / "pre.gguf", {**metadata, "tokenizer.ggml.pre": name, "tokenizer.ggml.add_bos_token": False}
        )
        ids = encode_all(scratch / "pre.gguf", TEXTS, parse_special=False)
        if ids not in results:
            results.append(ids)
        result_of[name] = results.index(ids)
    write_json("pre_tokenizers.json", {"texts": TEXTS, "result_of": result_of, "results": results})


def record_sentencepiece(scratch: Path) -> None:
    cases = []
    for prefix in (True, False):
        metadata = {**sentencepiece_metadata(), "tokenizer.ggml.add_space_prefix": prefix}
        write_vocabulary(scratch / "spm.gguf", metadata)
        for parse_special in (True, False):
            ids = encode_all(scratch / "spm.gguf", SENTENCEPIECE_TEXTS, parse_special=parse_special)
            cases.append({"add_space_prefix": prefix, "parse_special": parse_special, "ids": ids})
    write_json("sentencepiece.json", {"texts": SENTENCEPIECE_TEXTS, "cases": cases})


def write_json(name: str, value: object) -> None:
    (OUT / name).write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        record_pre_tokenizers(Path(folder))
        record_sentencepiece(Path(folder))
