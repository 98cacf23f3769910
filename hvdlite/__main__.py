"""``python -m hvdlite`` runs the command ``hvdlite`` with this Python."""

import sys

from hvdlite.cli import main

if __name__ == "__main__":
    sys.exit(main())
