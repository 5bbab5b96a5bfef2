"""Tokenizers from a model's folder: the same ids as `tokenizers` gives, and the settings beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Pipeline
from tokenizers import decoders as tokenizers_decoders

from kvwise.errors import TokenizerError
from kvwise.tokenizer import load_chat_template, load_tokenizer
from tokenizer.vocabularies import byte_level_metadata, sentencepiece_metadata

TEXT = "the other brother naïve 東京 x\n\n 42"


def byte_level_pipeline() -> Pipeline:
    metadata = byte_level_metadata()
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    pipeline = Pipeline(models.BPE({text: i for i, text in enumerate(tokens)}, pairs))
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    pipeline.decoder = tokenizers_decoders.ByteLevel()
    pipeline.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in tokens[:3]])
    return pipeline


def sentencepiece_pipeline() -> Pipeline:
    metadata = sentencepiece_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    pipeline = Pipeline(
        models.BPE({text: i for i, text in enumerate(tokens)}, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    pipeline.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = tokenizers_decoders
    pipeline.decoder = steps.Sequence(
        [steps.Replace("\u2581", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    )
    pipeline.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in tokens[:3]])
    pipeline.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return pipeline


def write(folder: Path, pipeline: Pipeline, **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    pipeline.save(str(folder / "tokenizer.json"))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("make", [byte_level_pipeline, sentencepiece_pipeline])
def test_ids_and_text_are_those_of_the_library(tmp_path: Path, make: Any) -> None:
    pipeline = make()
    tokenizer = load_tokenizer({}, write(tmp_path, pipeline))
    ids = pipeline.encode(TEXT).ids
    assert tokenizer.encode(TEXT, add_special=True, parse_special=True) == ids
    assert tokenizer.decode(ids) == pipeline.decode(ids) == TEXT
    assert tokenizer.vocab_size == pipeline.get_vocab_size()


def test_bos_follows_the_post_processor_unless_settings_say_otherwise(tmp_path: Path) -> None:
    folder = write(tmp_path, sentencepiece_pipeline())
    assert load_tokenizer({}, folder).encode("<s>the", add_special=True, parse_special=True).count(1) == 1
    folder = write(tmp_path, sentencepiece_pipeline(), tokenizer_config={"add_bos_token": False, "bos_token": "<s>"})
    tokenizer = load_tokenizer({}, folder)
    assert tokenizer.bos_id == 1
    assert 1 not in tokenizer.encode("the", add_special=True, parse_special=False)


def test_stop_ids_come_from_every_file(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        byte_level_pipeline(),
        tokenizer_config={"eos_token": {"content": "the", "lstrip": False}},
        generation_config={"eos_token_id": [5, 600]},
    )
    tokenizer = load_tokenizer({"eos_token_id": 7}, folder)
    names = {tokenizer.token_text(i) for i in tokenizer.stop_ids if i < tokenizer.vocab_size}
    assert tokenizer.eos_id is not None
    assert tokenizer.token_text(tokenizer.eos_id) == "the"
    assert {5, 7, 600} < tokenizer.stop_ids
    assert {"the", "<|im_end|>", "<|endoftext|>"} < names


def test_special_tokens_map_is_read_where_the_config_is_silent(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_pipeline(), special_tokens_map={"eos_token": "<|im_end|>"})
    assert load_tokenizer({}, folder).eos_id == 2


def test_settings_that_cut_fill_or_vary_a_prompt_are_switched_off(tmp_path: Path) -> None:
    pipeline = byte_level_pipeline()
    plain = pipeline.encode(TEXT).ids
    pipeline.enable_truncation(3)
    pipeline.enable_padding(length=10**4)
    folder = write(tmp_path, pipeline)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    edit(folder, model=model | {"dropout": 0.9})
    assert load_tokenizer({}, folder).encode(TEXT, add_special=True, parse_special=False) == plain


def test_added_tokens_beyond_the_model_are_tokens(tmp_path: Path) -> None:
    pipeline = byte_level_pipeline()
    pipeline.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer = load_tokenizer({}, write(tmp_path, pipeline))
    ids = tokenizer.encode("a<tool>", add_special=False, parse_special=False)
    assert ids[-1] == tokenizer.vocab_size - 1
    assert tokenizer.decode(ids) == "a<tool>"


def test_a_gguf_vocabulary_goes_before_a_file_that_lies_beside_it(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_pipeline())
    assert load_tokenizer(sentencepiece_metadata(), folder).spaces.prepends


def test_a_chat_template_is_found_wherever_it_is(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_pipeline())
    tokenizer = load_tokenizer({}, folder)
    message = [{"role": "user", "content": "x"}]

    def shown(**options: Any) -> str | None:
        template = load_chat_template({}, folder, tokenizer)
        return template and template.render(message, add_generation_prompt=False, **options)

    assert shown() is None
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert shown() == "config"
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools|length }} tools"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert shown() == "plain"
    assert shown(tools=[{"name": "f"}]) == "1 tools"
    (folder / "chat_template.jinja").write_text("file")
    assert shown() == "file"
    gguf = byte_level_metadata() | {"tokenizer.chat_template": "gguf"}
    template = load_chat_template(gguf, folder, tokenizer)
    assert template is not None
    assert template.source == "gguf"


def test_templates_of_gguf_may_have_names(byte_level: Any) -> None:
    metadata = byte_level_metadata() | {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "for tools",
    }
    template = load_chat_template(metadata, None, byte_level)
    assert template is not None
    assert template.render([], add_generation_prompt=False) == "plain"
    assert template.render([], add_generation_prompt=False, tools=[{}]) == "for tools"


BROKEN: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "not sound JSON"),
    "a list": ("[]", "JSON object"),
    "too deep": ("[" * 10**5, "too deeply|not sound JSON"),
    "a key twice": ('{"model": 1, "model": 2}', "twice"),
    "no model": ("{}", "the model of"),
    "another model": ('{"model": {"type": "WordPiece", "vocab": {}}}', "WordPiece"),
    "no vocabulary": ('{"model": {"type": "BPE"}}', "vocabulary of"),
    "a token twice": ('{"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}}}', "twice"),
    "an id twice": ('{"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}}}', "both"),
    "a huge id": ('{"model": {"type": "BPE", "vocab": {"a": 4000000000}}}', "4000000000"),
    "a negative id": ('{"model": {"type": "BPE", "vocab": {"a": -1}}}', "-1"),
    "an id of text": ('{"model": {"type": "BPE", "vocab": {"a": "1"}}}', "has id '1'"),
    "a lone surrogate": ('{"model": {"type": "BPE", "vocab": {"\\ud800": 0}}}', "UTF-8"),
    "a merge of one": ('{"model": {"vocab": {"a": 0}, "merges": ["a"]}}', "does not name two"),
    "a merge of three": ('{"model": {"vocab": {"a": 0}, "merges": [["a", "a", "a"]]}}', "a merge of"),
    "a merge into nothing": ('{"model": {"vocab": {"a": 0}, "merges": ["a a"]}}', "needs token 'aa'"),
    "added tokens that are none": ('{"added_tokens": [1], "model": {"vocab": {}}}', "added token"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer({}, tmp_path)


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b'{"model": "\xff"}')
    with pytest.raises(TokenizerError, match="not UTF-8"):
        load_tokenizer({}, tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer({}, tmp_path)


def test_nothing_outside_the_folder_is_read(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", byte_level_pipeline())
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "tokenizer.json").symlink_to(outside / "tokenizer.json")
    with pytest.raises(TokenizerError, match="links out of the folder"):
        load_tokenizer({}, inside)


def test_links_into_the_hub_caches_blobs_are_followed(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    blobs = write(repository / "blobs", byte_level_pipeline())
    (snapshot / "tokenizer.json").symlink_to(blobs / "tokenizer.json")
    assert load_tokenizer({}, snapshot).vocab_size > 256


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece"),
        ({"type": "Strip", "content": "x", "start": 3, "stop": 0}, "Strip"),
        ({"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, "Replace"),
    ],
)
def test_a_decoder_that_means_something_else_is_refused(tmp_path: Path, decoder: dict[str, Any], message: str) -> None:
    folder = write(tmp_path, sentencepiece_pipeline())
    edit(folder, decoder=decoder)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer({}, folder)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"bos_token": 5}},
        {"tokenizer_config": {"eos_token": "no such token"}},
        {"generation_config": {"eos_token_id": -1}},
        {"generation_config": {"eos_token_id": "2"}},
        {"generation_config": {"eos_token_id": [True]}},
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match=r"_token"):
        load_tokenizer({}, write(tmp_path, byte_level_pipeline(), **files))


def test_a_normalizer_that_swells_text_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, sentencepiece_pipeline())
    edit(folder, normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "x" * 10**6})
    with pytest.raises(TokenizerError, match="inserts 1000000 characters"):
        load_tokenizer({}, folder)


def test_a_pattern_that_backtracks_for_ever_is_one_error(tmp_path: Path) -> None:
    pipeline = byte_level_pipeline()
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("(a+)+$"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = load_tokenizer({}, write(tmp_path, pipeline))
    with pytest.raises(TokenizerError, match="can't be encoded"):
        tokenizer.encode("a" * 60 + "b", add_special=False, parse_special=False)
    assert tokenizer.encode("a", add_special=False, parse_special=False)
