"""How many tokens a picture is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import UsageError
from kvwise.spec.hf_config import spec_from_config
from kvwise.spec.pictures import PictureSpec

QWEN3_VL = PictureSpec(32)
sides = st.integers(32, 20_000)


@pytest.mark.parametrize(
    ("size", "tokens"),
    [((512, 512), 258), ((256, 256), 66), ((1024, 512), 514), ((1, 1), 66), ((40, 40), 66), ((8192, 8192), 16_386)],
)
def test_known_pictures(size: tuple[int, int], tokens: int) -> None:
    assert QWEN3_VL.num_tokens(*size) == tokens


@given(sides, sides)
def test_a_picture_is_about_its_area_within_bounds(width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    tokens = QWEN3_VL.num_tokens(width, height) - 2
    assert tokens * 32**2 <= QWEN3_VL.max_pixels
    squares = width * height / 32**2
    if QWEN3_VL.min_pixels < width * height < QWEN3_VL.max_pixels and min(width, height) > 320:
        assert 0.8 * squares <= tokens <= 1.25 * squares
    assert QWEN3_VL.num_tokens(height, width) == tokens + 2


@pytest.mark.parametrize("size", [(0, 5), (5, -1), (10**6, 10**6), (201, 1)])
def test_what_is_no_picture_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="picture"):
        QWEN3_VL.num_tokens(*size)


def test_a_config_says_how_large_a_token_is() -> None:
    text = {"model_type": "qwen3_vl_text", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 64}  # fmt: skip
    config = {"model_type": "qwen3_vl", "text_config": text}
    assert spec_from_config(config).pictures is None
    seen = spec_from_config({**config, "vision_config": {"patch_size": 16, "spatial_merge_size": 2}})
    assert seen.pictures == QWEN3_VL
