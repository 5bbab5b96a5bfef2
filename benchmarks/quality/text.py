"""The text whose tokens are scored: chapters VIII and IX of Lewis Carroll's "Alice's Adventures in Wonderland".

First published in 1865; its author died in 1898, so it is in the public domain everywhere. The original is
`alice29.txt` of the Canterbury corpus, as the source distribution of the Python package Brotli 1.2.1 holds it
(tests/testdata/alice29.txt). The excerpt has the lines of a paragraph joined, and nothing else changed:

    python -m quality.text alice29.txt     writes it anew
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from typing import Final

PATH: Final = Path(__file__).with_name("alice.txt")
ORIGINAL_SHA256: Final = "7467306ee0feed4971260f3c87421154a05be571d944e9cb021a5713700c38f0"
SOURCE: Final = "Lewis Carroll, Alice's Adventures in Wonderland (1865), chapters VIII and IX; public domain"


def read_text() -> str:
    return PATH.read_text("utf-8")


def excerpt(original: str) -> str:
    """Paragraphs, each on one line, with an empty line between them."""
    lines = original.splitlines()
    headings = [line.strip() for line in lines]
    chosen = lines[headings.index("CHAPTER VIII") : headings.index("CHAPTER X")]
    paragraphs = re.split(r"\n\s*\n", "\n".join(chosen).strip())
    return "\n\n".join(" ".join(line.strip() for line in p.strip().split("\n")) for p in paragraphs) + "\n"


def main(original: Path) -> None:
    raw = original.read_bytes()
    if hashlib.sha256(raw).hexdigest() != ORIGINAL_SHA256:
        raise SystemExit(f"{original} is another edition")
    PATH.write_text(excerpt(raw.decode("ascii")), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
