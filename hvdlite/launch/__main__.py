"""``python -m hvdlite.launch`` is ``hvdliterun``."""

from hvdlite.launch.cli import script

script()
