"""The C library's heap."""

import ctypes


def trim() -> None:
    """Give freed memory back to the system, where the C library can: glibc keeps it otherwise."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back:
        give_back(0)
