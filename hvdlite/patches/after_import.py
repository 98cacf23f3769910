"""Lets a function run a module's import, or follow it, whoever imports the module."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import typing takes 2 ms
    from collections.abc import Callable
    from typing import Any


class AfterImport:
    """A finder: lets the other finders find a module, and has ``execute`` run its code.

    :param execute: is given the module, and what runs its code.
    """

    def __init__(self, name: str, execute: Callable[[Any, Callable], None]) -> None:
        self._name, self._execute = name, execute

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec and spec.loader:
            code = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._execute(module, code)
        return spec
