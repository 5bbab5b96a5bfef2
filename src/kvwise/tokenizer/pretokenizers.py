"""How byte-level vocabularies cut text into words before merging, by the name that a GGUF file gives.

The names are those of `tokenizer.ggml.pre`, grouped as in llama.cpp (src/llama-vocab.cpp, llm_tokenizer_bpe and
llama_vocab::impl::load). The patterns are those of the models' own tokenizer.json files, which llama.cpp quotes
beside its approximations; where the two differ (case folding beyond ASCII), the model's own is taken.
Kinds that need more than patterns (kimi-k2, afmoe, gemma4, sarvam-moe, whitespace, hybriddna) are not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvwise.errors import TokenizerError
from kvwise.frozen import dataclass
from kvwise.registry import Table

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

GPT2_WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_SUFFIXES: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_DIGIT: Final = r"\p{N}"
_DIGITS_3: Final = r"\p{N}{1,3}"
_CJK: Final = "[一-龥\u3040-ゟ゠-ヿ]+"
# Capitals, then small letters; marks count as both. GPT-4o's words, and Mistral's Tekken's.
_CASED: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_CASED_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_ASCII_SIGN_WORD: Final = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"

_LLAMA3: Final = f"{_SUFFIXES}|{_LETTERS}|{_DIGITS_3}|{_SIGNS}|{_SPACES}"
_QWEN2: Final = f"{_SUFFIXES}|{_LETTERS}|{_DIGIT}|{_SIGNS}|{_SPACES}"
_QWEN35: Final = f"{_SUFFIXES}|" + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
_TEKKEN: Final = f"{_CASED[0]}|{_CASED[1]}|{_DIGIT}|{_CASED_SIGNS}|{_SPACES}"
_GPT4O: Final = f"{_CASED[0]}{_SUFFIXES}?|{_CASED[1]}{_SUFFIXES}?|{_DIGITS_3}|{_CASED_SIGNS}|{_SPACES}"
_DEEPSEEK3: Final = f"{_ASCII_SIGN_WORD}|" + r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
# Scripts with case, as DeepSeek LLM's tokenizer.json lists them (its Split patterns, in order).
_DEEPSEEK_LETTERS: Final = (
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    "ὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_DEEPSEEK_SIGNS: Final = "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"
_DEEPSEEK_CJK: Final = "[一-龥\u0800-一가-\ud7ff]+"


@dataclass(frozen=True, slots=True)
class PreTokenizerKind:
    """patterns: applied one after the other, each to the pieces that the last one left; matches are isolated.

    ignore_merges: a word that is a token is taken whole. adds_bos: what holds where the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


_KINDS: Final = (
    (
        "default",
        PreTokenizerKind((r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
    ),
    (
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code "
        "roberta-bpe mpt olmo jais trillion granite-docling exaone4",
        PreTokenizerKind((GPT2_WORDS,)),
    ),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        PreTokenizerKind((_DIGIT, GPT2_WORDS)),
    ),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizerKind((_LLAMA3,), ignore_merges=True, adds_bos=True),
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", PreTokenizerKind((_LLAMA3,))),
    (
        "minicpm5",
        PreTokenizerKind((_DIGITS_3, f"{_SUFFIXES}|{_LETTERS}|\\p{{N}}+|{_SIGNS}|{_SPACES}"), ignore_merges=True),
    ),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        PreTokenizerKind((_QWEN2,)),
    ),
    ("qwen35", PreTokenizerKind((_QWEN35,))),
    ("laguna", PreTokenizerKind((r"[^\n]+|[\n]+", _QWEN2))),
    (
        "ufakzeka",
        PreTokenizerKind((f"{_LETTERS}|{_DIGIT}|{_SIGNS}|{_SPACES}",)),
    ),
    (
        "seed-coder",
        PreTokenizerKind((f"{_SUFFIXES}|{_LETTERS}|{_DIGIT}| ?[^\\s\\p{{L}}\\p{{N}}\\r\\n]+|{_SPACES}",)),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizerKind((f"{_SUFFIXES}|{_LETTERS}|{_DIGIT}|{_SIGNS}|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",)),
    ),
    (
        "exaone-moe",
        PreTokenizerKind(
            (
                f"{_SUFFIXES}|"
                r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
                r"|\s+(?!\S)|\s+",
            )
        ),
    ),
    ("tekken", PreTokenizerKind((_TEKKEN,), ignore_merges=True, adds_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizerKind((_GPT4O,))),
    (
        "deepseek-llm",
        PreTokenizerKind(("[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_SIGNS, r"\s+$", _DEEPSEEK_CJK, r"\p{N}+")),
    ),
    (
        "deepseek-coder",
        PreTokenizerKind(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, _DIGIT)),
    ),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        PreTokenizerKind((_DIGITS_3, _CJK, _DEEPSEEK3)),
    ),
    (
        "falcon",
        PreTokenizerKind((r"[\p{P}\$\+<=>\^~\|`]+", GPT2_WORDS, "[0-9][0-9][0-9]")),
    ),
    ("bloom poro-chat gpt3-finnish", PreTokenizerKind((r" ?[^(\s|.,!?…。，、।۔،)]+",))),
    ("viking", PreTokenizerKind((r" ?[^(\s|.,!?…。，、।۔،)]+", _DIGIT))),
)

PRE_TOKENIZERS: Final[Table[PreTokenizerKind]] = Table(
    "pre-tokenizer", {name: kind for names, kind in _KINDS for name in names.split()}, TokenizerError
)


def build_pre_tokenizer(kind: PreTokenizerKind) -> PreTokenizer:
    """The kind as a `tokenizers` object that also spells bytes as characters."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    steps: list[PreTokenizer] = []
    patterns = kind.patterns
    ends_in_gpt2 = patterns[-1] == GPT2_WORDS  # ByteLevel has this very pattern, compiled
    for pattern in patterns[:-1] if ends_in_gpt2 else patterns:
        if pattern == _DIGIT:
            steps.append(Digits(individual_digits=True))
        else:
            steps.append(Split(Regex(pattern), behavior="isolated"))
    steps.append(ByteLevel(add_prefix_space=False, use_regex=ends_in_gpt2))
    return steps[0] if len(steps) == 1 else Sequence(steps)
