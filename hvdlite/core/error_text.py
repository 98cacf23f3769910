"""The text of a value or an error of the user, whose ``__str__`` may raise."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes 2 ms
    from typing import Any


def text_of(value: Any) -> str:
    """Return str(value); "" if that raises, because other ranks wait for this rank's text."""
    try:
        return str(value)
    except Exception:
        return ""


def error_text(error: BaseException) -> str:
    """Return the error's class and text; only the class if the text is empty."""
    name, text = type(error).__name__, text_of(error)
    return f"{name}: {text}" if text else name
