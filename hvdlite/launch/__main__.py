"""``python -m hvdlite.launch`` is ``hvdliterun``."""

import sys

from hvdlite.launch.cli import main

sys.exit(main())
