"""Makes tests/goldens/llamacpp: what llama.cpp says of the bundled model, at temperature 0, with its own arithmetic.

Run it in an environment of its own: `pip install llama-cpp-python==0.3.36`, then
`python tests/goldens/make_llamacpp_goldens.py PATH_OF_THE_BUNDLED_GGUF`. Logits differ in their last bits between
builds and instruction sets: that is part of what is recorded (made_with.json). README.md says what the arrays are.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from numpy.typing import NDArray
from tokenizer_texts import HOSTILE_TEXTS, SPECIAL_TEXTS

OUT = Path(__file__).parent / "llamacpp"
STEPS = 64
TOP_IDS = 256
STRIDE_IDS = 256
CONTEXT = 256
THREADS = 2


def chat(user: str, system: str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face") -> str:
    turns = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
    return turns + "<|im_start|>assistant\n"


PROMPTS: dict[str, str] = {
    "chat_capital": chat("What is the capital of France?"),
    "chat_haiku": chat("Write a haiku about the sea.", "You are a poet."),
    "chat_arithmetic": chat("If I have 17 apples and give away 5, how many are left? Explain."),
    "chat_code": chat("Write a Python function that reverses a string.", "You write short code."),
    "raw_story": "Once upon a time, in a village by the mountains,",
    "raw_code": "def fibonacci(n: int) -> list[int]:\n    ",
    "raw_numbers": "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    "raw_german": "Die Geschichte der Stadt Köln beginnt mit den Römern, die",
    "raw_scripts": "你好 means hello in Chinese, and Привет means",
    "raw_facts": "The three states of matter are",
}

CONVERSATIONS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
    [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
    ],
    [
        {"role": "system", "content": ""},
        {"role": "user", "content": "  spaces and\n\nnewlines \n"},
        {"role": "assistant", "content": "ünïcode 😀 <b>&amp;</b>"},
        {"role": "user", "content": "quote \" ' \\ {{ 7 * 7 }} {% raw %}"},
    ],
)


def run_prompt(model: llama_cpp.Llama, ids: list[int], stride_ids: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
    """64 greedy steps: chosen ids [64], top ids [64, 256], logits [64, 512] at the top ids and then the stride's."""
    model.reset()
    model.eval(ids)
    chosen, tops, kept = [], [], []
    for _ in range(STEPS):
        pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        logits = np.ctypeslib.as_array(pointer, shape=(model.n_vocab(),)).copy()
        top = np.argsort(-logits, kind="stable")[:TOP_IDS].astype(np.int32)
        chosen.append(int(top[0]))
        tops.append(top)
        kept.append(np.concatenate([logits[top], logits[stride_ids]]))
        model.eval([chosen[-1]])
    return {
        "prompt_ids": np.array(ids, np.int32),
        "greedy_ids": np.array(chosen, np.int32),
        "top_ids": np.stack(tops),
        "logits": np.stack(kept).astype(np.float32),
    }


def write_logits(path: Path) -> None:
    model = llama_cpp.Llama(
        str(path), n_ctx=CONTEXT, n_batch=CONTEXT, n_threads=THREADS, n_threads_batch=THREADS, verbose=False
    )
    stride = model.n_vocab() // STRIDE_IDS
    stride_ids = (np.arange(STRIDE_IDS) * stride + stride // 2).astype(np.int32)
    arrays: dict[str, NDArray[Any]] = {"stride_ids": stride_ids}
    texts = {}
    for name, prompt in PROMPTS.items():
        ids = model.tokenize(prompt.encode(), add_bos=False, special=True)
        if not 5 <= len(ids) <= 60:
            raise SystemExit(f"{name} has {len(ids)} tokens")
        result = run_prompt(model, ids, stride_ids)
        arrays |= {f"{name}/{key}": array for key, array in result.items()}
        texts[name] = {
            "prompt": prompt,
            "greedy_text": model.detokenize(result["greedy_ids"].tolist(), special=True).decode(errors="replace"),
        }
        print(name, len(ids), json.dumps(texts[name]["greedy_text"], ensure_ascii=False))
    np.savez_compressed(OUT / "smollm2.npz", **arrays)
    write_json("smollm2_texts.json", texts)


def write_tokens(path: Path) -> None:
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    rows = [
        {"text": text, "parse_special": special, "ids": tokenized(model, text, special)}
        for text in (*HOSTILE_TEXTS, *SPECIAL_TEXTS)
        for special in (False, True)
    ]
    template = model.metadata["tokenizer.chat_template"]
    formatter = Jinja2ChatFormatter(
        template=template,
        eos_token=token_text(model, model.token_eos()),
        bos_token=token_text(model, model.token_bos()),
    )
    chats = []
    for messages in CONVERSATIONS:
        text = formatter(messages=messages).prompt
        chats.append({"messages": messages, "text": text, "ids": tokenized(model, text, True)})
    write_json("tokens.json", rows)
    write_json("chats.json", {"add_generation_prompt": True, "conversations": chats})


def tokenized(model: llama_cpp.Llama, text: str, parse_special: bool) -> list[int]:
    return model.tokenize(text.encode(), add_bos=False, special=parse_special)


def token_text(model: llama_cpp.Llama, token: int) -> str:
    return model.detokenize([token], special=True).decode()


def write_made_with(path: Path) -> None:
    defaults = llama_cpp.llama_context_default_params()
    names = {llama_cpp.GGML_TYPE_F16: "f16", llama_cpp.GGML_TYPE_F32: "f32"}
    facts = {
        "llama-cpp-python": llama_cpp.__version__,
        "numpy": np.__version__,
        "system": llama_cpp.llama_print_system_info().decode(),
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "kv_type": names[defaults.type_k],
        "flash_attention": False,
        "threads": THREADS,
        "context": CONTEXT,
        "temperature": 0,
    }
    write_json("made_with.json", facts)


def write_json(name: str, value: object) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=True)
    (OUT / name).write_text(text + "\n")


def main() -> None:
    path = Path(sys.argv[1])
    OUT.mkdir(exist_ok=True)
    write_made_with(path)
    write_tokens(path)
    write_logits(path)


if __name__ == "__main__":
    main()
