"""The log of hvdlite's Python part: the logger ``hvdlite``, with the level of the C part's log."""

import logging
import os
import sys

logger = logging.getLogger("hvdlite")


def _follow_environment() -> None:
    """Log to stderr at the level that ``HVDLITE_LOG_LEVEL`` names; if unset, change nothing."""
    name = os.environ.get("HVDLITE_LOG_LEVEL") or os.environ.get("HOROVOD_LOG_LEVEL", "")
    levels = {"TRACE": logging.DEBUG, "OFF": logging.CRITICAL + 1}
    level = levels.get(name.upper(), logging.getLevelName(name.upper()))
    if not isinstance(level, int):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[hvdlite %(levelname)s] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level)


_follow_environment()
