"""``hvdlite.run`` calls a Python function on many ranks, from a script or a notebook."""

import argparse
import os
import pickle
import signal
import sys
from multiprocessing import spawn
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence

from hvdlite.launch import options as known
from hvdlite.launch.agent import DATA_VARIABLE
from hvdlite.launch.backends import BACKENDS
from hvdlite.launch.cli import check_and_run
from hvdlite.launch.job import Job
from hvdlite.launch.job_of_options import job_of
from hvdlite.launch.output import Console
from hvdlite.machine import files


class JobFailed(RuntimeError):
    """A rank failed. The text is hvdliterun's report; ``code`` is the job's exit code."""

    def __init__(self, code: int, report: List[str]):
        super().__init__("\n".join(report) or f"the job ended with exit code {code}")
        self.code = code


def run(
    function: Callable[..., Any], args: Sequence[Any] = (),
    kwargs: Optional[Mapping[str, Any]] = None, num_proc: Optional[int] = None, *, np: int = 1,
    env: Optional[Dict[str, str]] = None, executable: Optional[str] = None, use_gloo: bool = False,
    use_mpi: bool = False, **options: Any,
) -> List[Any]:  # fmt: skip
    """Call ``function(*args, **kwargs)`` on new ranks; return the results, by rank.

    The result is None for a rank that called ``sys.exit(0)`` or that died in an elastic job.

    The function calls ``hvdlite.init()`` itself. The output of the ranks appears here, labeled by
    rank, also in a notebook; interrupting this call ends all ranks. A function defined in a
    notebook, a lambda or a closure needs cloudpickle. Without cloudpickle the ranks import the
    script, so the script must make this call under ``if __name__ == "__main__"``.

    :param function: must be picklable, as must ``args`` and ``kwargs``.
    :param num_proc: number of ranks; ``np`` is its older name.
    :param env: variables for all ranks, in addition to those of this process.
    :param executable: the Python interpreter for the ranks; None: this process's interpreter.
    :param use_gloo: Horovod's word for ``transport="tcp"``; ``use_mpi`` changes nothing.
    :param options: hvdliterun's options, by their long names: ``hosts="server1:4,server2:4"``,
        ``launcher="slurm"``, ``start_timeout=60``, ``verbose=True``. None: the default.
    :raises ValueError: the function can't be sent, or an option is wrong.
    :raises JobFailed: a rank raised or died; the launcher has ended all other ranks.
    :raises BrokenPipeError: the reader of the output is gone; the launcher has ended all ranks.

    >>> import hvdlite as hvd
    >>> def where():
    ...     hvd.init()
    ...     return hvd.rank(), hvd.size()
    >>> hvd.run(where, num_proc=2)
    [(0, 2), (1, 2)]
    """
    options.setdefault("gloo", use_gloo)
    options["num_proc"] = np if num_proc is None else num_proc
    options["env"] = [f"{name}={value}" for name, value in (env or {}).items()]
    job = _job([executable or sys.executable, "-m", "hvdlite.launch.api"], options)
    task = pack(function, args, kwargs or {})
    command = BACKENDS[job.launcher].command(job)
    outcome = check_and_run(job, command, Console(sys.stdout, sys.stderr), task)
    if outcome.signal is not None:
        raise BrokenPipeError if outcome.signal == signal.SIGPIPE else KeyboardInterrupt
    if outcome.code:
        raise JobFailed(outcome.code, outcome.report)
    return [result and pickle.loads(result) for result in outcome.results]


def _job(command: List[str], options: Mapping[str, Any]) -> Job:
    """Return hvdliterun's job for these options; an option with the value True has no argument."""
    arguments = []
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None and one is not False:
                arguments.append(f"--{name.replace('_', '-')}" + ("" if one is True else f"={one}"))
    return job_of(_parser().parse_args([*arguments, *command]), arguments)


def _parser() -> argparse.ArgumentParser:
    """Return hvdliterun's parser, which raises ValueError instead of ending this process."""

    def refuse(message: str) -> NoReturn:
        raise ValueError(f"hvdlite.run: {message}")

    parser = known.parser(list(BACKENDS))
    parser.error = refuse  # type: ignore[method-assign]
    return parser


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return the bytes for ``run_task``: the module search path and the pickled call."""
    call = (function, tuple(args), dict(kwargs))
    cloudpickle = _cloudpickle()
    if cloudpickle:
        return pickle.dumps((list(sys.path), None, cloudpickle.dumps(call)))
    script = getattr(sys.modules["__main__"], "__file__", None)
    try:
        pickled = pickle.dumps(call)
    except (AttributeError, pickle.PicklingError) as error:
        raise ValueError(f"{error}: to send the function, run `pip install cloudpickle`") from error
    if function.__module__ == "__main__" and script is None:
        raise ValueError(
            f"{function.__name__} is defined in a notebook: "
            "to send it to the ranks, run `pip install cloudpickle`"
        )
    return pickle.dumps((list(sys.path), script, pickled))


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


def run_task() -> None:
    """Read the pickled call, make the call, write the result. This is a rank's program."""
    path = os.environ[DATA_VARIABLE]
    with open(path, "rb") as file:
        search_path, script, pickled = pickle.load(file)
    sys.path[:] = [*search_path, *(p for p in sys.path if p not in search_path)]
    if script:  # runs the script, which defines the names that were pickled as __main__.NAME
        spawn.prepare({"init_main_from_path": script})
    function, args, kwargs = pickle.loads(pickled)
    result = function(*args, **kwargs)
    # pickle rejects the classes of the caller's script that cloudpickle has rebuilt here
    with files.create(path + ".result", "xb") as file:
        (_cloudpickle() or pickle).dump(result, file)


if __name__ == "__main__":
    run_task()
