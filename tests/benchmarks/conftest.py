"""The benchmarks are programs beside the package: their folder is put on the path for the tests of their pure parts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
