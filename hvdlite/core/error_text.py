"""The text of a value or an error of the user, whose ``__str__`` may raise."""


def text_of(value: object) -> str:
    """Return str(value), or "" if str() raises: other ranks wait for this rank's text."""
    try:
        return str(value)
    except Exception:
        return ""


def error_text(error: BaseException) -> str:
    """Return the error's class and text; only the class if the text is empty."""
    name, text = type(error).__name__, text_of(error)
    return f"{name}: {text}" if text else name
