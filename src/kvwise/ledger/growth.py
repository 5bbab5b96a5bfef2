"""What a process takes in beside a model while it loads: libraries that are imported then. Constants, measured.

Each is the growth of the resident set when the library is imported last, after the others, on Linux and CPython 3.11.
"""

from __future__ import annotations

import sys
from typing import Final

from kvwise.units import MiB

_LIBRARY_BYTES: Final = {"numpy": 14 * MiB, "kvwise.engine.engine": 3 * MiB, "tokenizers": 6 * MiB}


def libraries_to_come() -> int:
    """Bytes of the libraries that serving needs and that are not imported yet."""
    return sum(nbytes for name, nbytes in _LIBRARY_BYTES.items() if name not in sys.modules)
