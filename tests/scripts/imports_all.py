"""Import every module of hvdlite, read all its names, and report threads that hvdlite has started.

argv: frameworks that are imported first, because they start threads, too.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import sys

import hvdlite


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


for framework in sys.argv[1:]:
    importlib.import_module(framework)
before, found = threads(), []
for module in pkgutil.walk_packages(hvdlite.__path__, "hvdlite.", onerror=lambda name: None):
    last = module.name.rpartition(".")[2]
    # importing these changes other modules
    if last.startswith("_") or last in ("job_site", "as_horovod"):
        continue
    with contextlib.suppress(ImportError):  # the module's framework may not be installed
        imported = importlib.import_module(module.name)
        found.append(module.name)
        for name in dir(imported):
            with contextlib.suppress(ImportError, AttributeError):
                getattr(imported, name)
mpi = sys.modules.get("mpi4py.MPI")
told = {
    "modules": found,
    "threads": threads() - before,
    "begun": bool(mpi and mpi.Is_initialized()),
    "initialized": hvdlite.is_initialized(),
}
print("CHILD", json.dumps(told), flush=True)
