"""How many tokens a picture is to a model that takes pictures. Knows nothing of the tower that makes them.

A picture is resized so that both sides are multiples of `side` pixels and its area lies within bounds; each square of
that side is one token, and two more stand around them.
Source: transformers 5.24.0, models/qwen2_vl/image_processing_qwen2_vl.py, smart_resize; bounds: the
preprocessor_config.json of Qwen/Qwen3-VL-8B-Instruct.
"""

from __future__ import annotations

import math
from typing import Final

from kvwise.errors import UsageError
from kvwise.frozen import dataclass
from kvwise.spec.fields import Fields

MAX_SIDE: Final = 2**16
_LARGEST_RATIO: Final = 200  # of the sides; what smart_resize refuses
_PATCHES: Final = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")  # model types that cut pictures so


@dataclass(frozen=True, slots=True)
class PictureSpec:
    """side: pixels of a token's square; around: tokens beside the picture's own."""

    side: int
    min_pixels: int = 256**2
    max_pixels: int = 4096**2
    around: int = 2

    def num_tokens(self, width: int, height: int) -> int:
        """Of a picture of so many pixels. Raises UsageError for one that is no picture."""
        if (
            not 1 <= width <= MAX_SIDE
            or not 1 <= height <= MAX_SIDE
            or max(width, height) > _LARGEST_RATIO * min(width, height)
        ):
            raise UsageError(
                f"a picture of {width} x {height} pixels",
                expected=f"sides of 1 to {MAX_SIDE}, the longer at most {_LARGEST_RATIO} times the shorter",
            )
        columns, rows = (max(1, round(n / self.side)) for n in (width, height))
        scale = math.sqrt(width * height / self.max_pixels)
        if columns * rows * self.side**2 > self.max_pixels:
            columns, rows = (max(1, math.floor(n / scale / self.side)) for n in (width, height))
        elif columns * rows * self.side**2 < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (width * height))
            columns, rows = (math.ceil(n * scale / self.side) for n in (width, height))
        return columns * rows + self.around


def read_pictures(top: Fields, model_type: str) -> PictureSpec | None:
    """What a multimodal config says of pictures; None where it says nothing that is known here."""
    vision = top.mapping("vision_config")
    if vision is None or model_type not in _PATCHES or "patch_size" not in vision:
        return None
    return PictureSpec(vision.integer("patch_size", high=2**10) * vision.integer("spatial_merge_size", 2, high=2**6))
