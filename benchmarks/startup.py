"""How long kvwise takes to start: `import kvwise` and `kvwise --help`, medians over fresh processes.

    python benchmarks/startup.py [RUNS]

Prints a line per figure with its limit and ends with 1 when a median is over it. Beside them stands what an
interpreter costs that does nothing: the part that is not ours.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

IMPORT_LIMIT_MS = 100
HELP_LIMIT_MS = 300

# Timed inside the process: the interpreter's own start is not part of an import.
IMPORT_CODE = """
from time import perf_counter
start = perf_counter()
import kvwise
print(perf_counter() - start)
"""


def import_seconds() -> float:
    """Seconds that `import kvwise` takes in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", IMPORT_CODE], capture_output=True, text=True, check=True)
    return float(done.stdout)


def process_seconds(*arguments: str) -> float:
    """Seconds from the start to the end of a Python process with these arguments."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main(runs: int) -> int:
    process_seconds("-m", "kvwise", "--help")  # the first run compiles bytecode and warms the file cache
    import_ms = 1e3 * statistics.median(import_seconds() for _ in range(runs))
    help_ms = 1e3 * statistics.median(process_seconds("-m", "kvwise", "--help") for _ in range(runs))
    floor_ms = 1e3 * statistics.median(process_seconds("-c", "pass") for _ in range(runs))
    print(f"import kvwise   {import_ms:7.1f} ms   limit {IMPORT_LIMIT_MS} ms   median of {runs}")
    print(f"kvwise --help   {help_ms:7.1f} ms   limit {HELP_LIMIT_MS} ms   median of {runs}")
    print(f"python -c pass  {floor_ms:7.1f} ms   not ours")
    return int(import_ms > IMPORT_LIMIT_MS or help_ms > HELP_LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
