"""Functions and classes of horovod.common.util, basics and exceptions that programs import."""

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import Any, Dict, Iterator, List, Sequence

import hvdlite


class HorovodBasics:
    """Has the functions of ``hvdlite``, such as ``rank()``, as methods.

    :param arguments: ignored; in Horovod, the path of the C library.
    """

    def __init__(self, *arguments: str) -> None:
        del arguments

    def __getattr__(self, name: str) -> Any:
        return getattr(hvdlite, name)


class HorovodVersionMismatchError(ImportError):
    """Never raised by hvdlite. Horovod raises it if a framework was updated after the build."""


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return the text for a :class:`HorovodVersionMismatchError`."""
    return f"built with {name} {version}, but {name} {installed_version} is installed"


def check_installed_version(name: str, version: str, exception: Any = None) -> None:
    """Do nothing: a build of hvdlite works with every version of a framework."""


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: str) -> None:
    """Raise an ImportError if the framework of a Horovod extension is not installed.

    :param ext_name: such as ``horovod.torch``; the other arguments concern Horovod's build.
    """
    framework = ext_name.rpartition(".")[2]
    if not extension_available(framework):
        raise ImportError(f"{ext_name}: {framework} is not installed: install it with pip")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return True if the framework, such as ``torch``, is installed."""
    return importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return True for ``torch`` with a CUDA GPU: hvdlite moves no other framework's GPU arrays."""
    if ext_base_name != "torch" or not extension_available("torch"):
        return False
    return bool(importlib.import_module("torch").cuda.is_available())


def run_commandline() -> None:
    """Run hvdliterun with the arguments of this process, as the program ``horovodrun`` does."""
    from hvdlite.launch.cli import main

    sys.exit(main())


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return True for a power of 2. Only Horovod's Adasum requires a power of 2."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence, parts: int) -> List[Sequence]:
    """Split a list into parts, in order. The first parts may have one item more than the last."""
    each, longer = divmod(len(items), parts)
    ends = [(i + 1) * each + min(i + 1, longer) for i in range(parts)]
    return [items[begin:end] for begin, end in zip([0, *ends], ends)]


def is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable)


def is_version_greater_equal_than(version: str, least: str) -> bool:
    """Return True if version >= least, comparing only the first three numbers (``2.16.1``)."""

    def numbers(text: str) -> List[int]:
        parts = (text.split("+")[0].split(".") + ["0", "0"])[:3]
        return [int("".join(c for c in part if c.isdigit()) or 0) for part in parts]

    return numbers(version) >= numbers(least)


@contextlib.contextmanager
def env(**values: str) -> Iterator[None]:
    """Set environment variables during the block."""
    before: Dict[str, Any] = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def vars_to_refs(variables: Any) -> Any:
    """Return hashable references to a TensorFlow variable, or to all variables of nested lists."""
    if isinstance(variables, list):
        return tuple(map(vars_to_refs, variables))
    return variables.ref()


def refs_to_vars(references: Any) -> Any:
    """Return the variables of references that :func:`vars_to_refs` has returned."""
    if isinstance(references, tuple):
        return list(map(refs_to_vars, references))
    return references.deref()
