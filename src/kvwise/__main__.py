"""`python -m kvwise` is the `kvwise` command."""

from __future__ import annotations

from kvwise.cli.main import main

if __name__ == "__main__":
    main()
