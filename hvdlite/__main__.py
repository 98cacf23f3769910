"""Run as ``python -m hvdlite``: the command ``hvdlite`` of this Python."""

import sys

from hvdlite.cli import main

if __name__ == "__main__":
    sys.exit(main())
