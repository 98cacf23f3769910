"""Horovod's helpers that programs import: of horovod.common.util, basics and exceptions."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import Any, Dict, Iterator, List, Sequence

import hvdlite


class HorovodBasics:
    """The functions about the job: those of ``hvdlite``.

    :param arguments: where Horovod's C library lies; hvdlite knows that.
    """

    def __init__(self, *arguments: str) -> None:
        del arguments

    def __getattr__(self, name: str) -> Any:
        return getattr(hvdlite, name)


class HorovodVersionMismatchError(ImportError):
    """Horovod raises it if a framework was updated after Horovod's build; hvdlite never does."""


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return the text of a :class:`HorovodVersionMismatchError`."""
    return f"built with {name} {version}, but {name} {installed_version} is installed"


def check_installed_version(name: str, version: str, exception: Any = None) -> None:
    """Do nothing: one build of hvdlite fits every version of a framework."""


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: str) -> None:
    """Raise an ImportError if there is no framework for an extension of Horovod's.

    :param ext_name: as ``horovod.torch``; the other arguments are about Horovod's build.
    """
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(f"{ext_name}: the framework is not installed")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Tell whether a framework, such as ``torch``, is installed; hvdlite needs nothing else."""
    return importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return False: hvdlite is for CPUs."""
    return False


def run_commandline() -> None:
    """Run as ``horovodrun``: run hvdliterun with the arguments of this process."""
    from hvdlite.launch.cli import main

    sys.exit(main())


def num_rank_is_power_2(num_rank: int) -> bool:
    """Tell whether a number is a power of 2, which Horovod's Adasum requires and hvdlite's does
    not."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: Sequence, parts: int) -> List[Sequence]:
    """Return the parts of a list, in order; if need be the first parts are longer by one."""
    each, longer = divmod(len(items), parts)
    ends = [(i + 1) * each + min(i + 1, longer) for i in range(parts)]
    return [items[begin:end] for begin, end in zip([0, *ends], ends)]


def is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable)


def is_version_greater_equal_than(version: str, least: str) -> bool:
    """Compare versions by their three numbers, as in ``2.16.1``; what follows is ignored."""

    def numbers(text: str) -> List[int]:
        parts = (text.split("+")[0].split(".") + ["0", "0"])[:3]
        return [int("".join(c for c in part if c.isdigit()) or 0) for part in parts]

    return numbers(version) >= numbers(least)


@contextlib.contextmanager
def env(**values: str) -> Iterator[None]:
    """Set environment variables for a while."""
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
    """Return TensorFlow's references of a variable or of lists of them, which sets can hold."""
    if isinstance(variables, list):
        return tuple(map(vars_to_refs, variables))
    return variables.ref()


def refs_to_vars(references: Any) -> Any:
    """Return the variables of :func:`vars_to_refs`."""
    if isinstance(references, tuple):
        return list(map(refs_to_vars, references))
    return references.deref()
