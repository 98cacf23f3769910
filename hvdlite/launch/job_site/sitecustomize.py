"""Python runs this module at its start in each process of a job, for scripts without hvdlite.

As after `import hvdlite`, MXNet then works with any NumPy, and `dist_sync` means hvdlite's kvstore
in a job without servers. With `--as-horovod`, `import horovod.mxnet` finds hvdlite.

In a job with servers, a worker of MXNet waits at its exit for all other workers. If a failed worker
waits and other workers wait for its gradients, all wait forever. So an uncaught exception ends a
worker as soon as Python has printed the exception.
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


def _run_hidden_sitecustomize():
    """Run the site's own sitecustomize, which this module hides."""
    sys.path[:] = [p for p in sys.path if os.path.realpath(p) != os.path.dirname(__file__)]
    # importlib.util.find_spec would find this module in sys.modules
    spec = PathFinder.find_spec("sitecustomize")
    if spec:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("DMLC_ROLE") == "worker":
    sys.excepthook = _end_after(sys.excepthook)
with contextlib.suppress(ImportError):  # the program's own Python may lack hvdlite
    import hvdlite  # noqa: F401

    if os.environ.get("HVDLITE_AS_HOROVOD") == "1":  # hvdliterun --as-horovod
        import hvdlite.as_horovod  # noqa: F401
_run_hidden_sitecustomize()
