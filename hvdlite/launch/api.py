"""``hvdlite.run`` calls a Python function on many ranks, from a script or a notebook."""

import pickle
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from hvdlite.launch import hosts as host_lists
from hvdlite.launch.backends import BACKENDS, default
from hvdlite.launch.cli import prepared
from hvdlite.launch.job import Job
from hvdlite.launch.output import Console


class JobFailed(RuntimeError):
    """A rank failed; the text is hvdliterun's report, ``code`` the exit code."""

    def __init__(self, code: int, report: List[str]):
        super().__init__("\n".join(report) or f"the job ended with exit code {code}")
        self.code = code


def run(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Optional[Mapping[str, Any]] = None,
    np: int = 1,
    hosts: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    launcher: Optional[str] = None,
    verbose: bool = False,
    use_gloo: bool = False,
    use_mpi: bool = False,
) -> List[Any]:
    """Call ``function(*args, **kwargs)`` on ``np`` new ranks; return their results, by rank.

    The function calls ``hvdlite.init()`` itself. The output of the ranks appears here, labelled by
    rank, also in a notebook; interrupting this call ends all ranks. A function defined in a
    notebook, a lambda or a closure needs cloudpickle. Without cloudpickle the ranks import the
    script, so the script must make this call under ``if __name__ == "__main__"``.

    :param function: and its ``args`` and ``kwargs``: anything that can be pickled.
    :param np: number of ranks.
    :param hosts: ``"server1:4,server2:4"``; None: this host.
    :param env: variables for all ranks, in addition to those of this process.
    :param launcher: ``local``, ``ssh``, ``slurm``, ...; None: the default of hvdliterun.
    :param verbose: print the command that runs.
    :param use_gloo: and ``use_mpi``: Horovod's choice of a transport; there is MPI only.
    :raises ValueError: the function can't be sent, or ``use_gloo`` is asked for.
    :raises JobFailed: a rank raised or died; all others have been ended.

    >>> import hvdlite as hvd
    >>> def where():
    ...     hvd.init()
    ...     return hvd.rank(), hvd.size()
    >>> hvd.run(where, np=2)
    [(0, 2), (1, 2)]
    """
    if use_gloo:
        raise ValueError("run(use_gloo=True): hvdlite runs over MPI only; leave use_gloo out")
    given = host_lists.parse_list(hosts) if hosts else []
    job = Job(
        command=[sys.executable, "-m", "hvdlite.launch.task"],
        workers=np,
        launcher=launcher or default(bool(given)),
        hosts=given,
        env=dict(env or {}),
        verbose=verbose,
    )
    task = pack(function, args, kwargs or {})
    plan = BACKENDS[job.launcher].plan(job)
    outcome = prepared(job, plan, Console(sys.stdout, sys.stderr), task)
    if outcome.signal is not None:
        raise KeyboardInterrupt
    if outcome.code:
        raise JobFailed(outcome.code, outcome.report)
    # No rank has failed, so each has sent its result.
    return [pickle.loads(result) for result in outcome.results]  # type: ignore[arg-type]


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return the bytes for hvdlite.launch.task: the module search path and the pickled call."""
    call = (function, tuple(args), dict(kwargs))
    cloudpickle = _cloudpickle()
    if cloudpickle:
        return pickle.dumps((list(sys.path), None, cloudpickle.dumps(call)))
    script = getattr(sys.modules["__main__"], "__file__", None)
    try:
        pickled = pickle.dumps(call)
    except (AttributeError, pickle.PicklingError) as error:
        raise ValueError(f"{error}: to send it, run `pip install cloudpickle`") from error
    if function.__module__ == "__main__" and script is None:
        raise ValueError(
            f"{function.__name__} is a notebook's: to send it, run `pip install cloudpickle`"
        )
    return pickle.dumps((list(sys.path), script, pickled))


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle
