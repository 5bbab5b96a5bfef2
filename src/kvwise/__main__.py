"""`python -m kvwise` and `kvwise`: the command line, which takes a moment to load."""

from __future__ import annotations

import sys


def main() -> None:
    """Load the commands and run one. An interrupt while they load ends as it does later, without a traceback."""
    try:
        from kvwise.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
