"""Python runs this when it starts in a job: scripts that know nothing of hvdlite need it.

MXNet then works with any NumPy, as after `import hvdlite`, in servers as well, and has hvdlite's
kvstore: where there are no servers, `dist_sync` means that one. With `--as-horovod`, `import
horovod.mxnet` finds hvdlite.

MXNet has a worker of servers wait at its exit for all other workers, forever if they wait for it.
So an exception that nobody has caught ends that process as soon as it is printed.
"""

import contextlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder


def _end_after(show):
    def hook(kind, error, traceback):
        show(kind, error, traceback)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    return hook


def _run_the_one_in_the_way():
    """Run the site's own sitecustomize, which this one hides."""
    sys.path[:] = [p for p in sys.path if os.path.realpath(p) != os.path.dirname(__file__)]
    # not importlib.util, which has this sitecustomize in its cache
    spec = PathFinder.find_spec("sitecustomize")
    if spec:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("DMLC_ROLE") == "worker":
    sys.excepthook = _end_after(sys.excepthook)
with contextlib.suppress(ImportError):  # the program's own Python may lack hvdlite
    import hvdlite  # noqa: F401

    if os.environ.get("HVDLITE_AS_HOROVOD") == "1":  # hvdliterun --as-horovod
        import hvdlite.as_horovod  # noqa: F401
_run_the_one_in_the_way()
