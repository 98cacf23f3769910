"""The pages of the reference: which page has which public names, and in what order.

A new name of a known module appears on the module's page; a new module needs a line here.
"""

import importlib
import inspect
import sys
from pathlib import Path

import hvdlite as hvd
import hvdlite.numpy

# The file, the heading, and the modules whose public names the page lists; the docstring of the
# first module is the page's introduction.
PAGES = (
    ("job", "The job", ("job", "core.topology", "monitor.counts", "core.native")),
    ("collectives", "Collectives on MXNet arrays", ("mxnet.ops",)),
    ("numpy", "Collectives on NumPy arrays", ("numpy", "core.reduce_ops")),
    ("handles", "Handles", ("core.handles", "mxnet.handles")),
    ("objects", "Python objects", ("core.objects",)),
    ("process_sets", "Process sets", ("core.process_set", "core.registry")),
    ("training", "Training",
     ("mxnet.trainer", "mxnet.sharded", "mxnet.optimizer", "mxnet.clipping",
      "mxnet.parameters", "mxnet.states", "mxnet.sync_batch_norm", "mxnet.zero_copy")),
    ("compression", "Compression of gradients", ("mxnet.compression",)),
    ("loops", "Data, metrics, schedules, checkpoints",
     ("mxnet.data", "mxnet.learning_rates", "mxnet.evaluation", "mxnet.checkpoint")),
    ("run", "Jobs from Python", ("launch.api",)),
    ("build", "What this build has", ("core.build_queries",)),
)  # fmt: skip
# Packages for other frameworks, which need not be installed: conf.py mocks them.
FRAMEWORKS = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
    "jax": "JAX",
}
FRAMEWORK_PAGE = """\
{0}
{1}

.. automodule:: hvdlite.{2}
   :members:
"""
NEUTRAL = """
This module also has the names of ``hvdlite`` that do not depend on arrays (``init``, ``rank``,
``Average``, ``ProcessSet``, ...); :doc:`job`, :doc:`process_sets` and other pages describe them.
"""
CALLBACKS = """
Callbacks
---------

.. automodule:: hvdlite.keras.callbacks
   :members:
"""
ELASTIC = """\
Elastic training
================

:doc:`/elastic` says how a script uses elastic training.

.. automodule:: hvdlite.elastic
   :members:
   :imported-members:

``import hvdlite.torch as hvd`` has these names in ``hvd.elastic``, with ``TorchState`` in place of
``GluonState``.

.. autoclass:: hvdlite.torch.elastic.TorchState
   :members:
"""
INDEX = """\
Reference
=========

These pages have every public name. A script writes ``import hvdlite as hvd`` or, like a script for
Horovod, ``import hvdlite.mxnet as hvd``. :doc:`/horovod` compares the names with Horovod's.

.. toctree::

"""


def public_names(module: str) -> list:
    """Return the module's names that ``hvdlite`` itself has, in the order of their definitions."""

    def line(name: str) -> int:
        value = getattr(hvd, name)
        defined = inspect.isclass(value) or inspect.isroutine(value)
        return inspect.getsourcelines(value)[1] if defined else sys.maxsize

    return sorted(hvd._DEFINED_IN.get(module, ()), key=line)


def numpy_functions() -> list:
    """Return the collectives of ``hvdlite.numpy``; ``hvdlite`` has these names for MXNet arrays."""
    return [
        name
        for name, value in vars(hvdlite.numpy).items()
        if inspect.isroutine(value)
        and value.__module__ == "hvdlite.numpy"
        and not name.startswith("_")
        and name not in hvd._DEFINED_IN["hvdlite.numpy"]
    ]


def directive(path: str) -> str:
    owner, _, name = path.rpartition(".")
    value = getattr(importlib.import_module(owner), name)
    if inspect.isclass(value):
        return f".. autoclass:: {path}\n   :members:\n"
    return f".. auto{'function' if inspect.isroutine(value) else 'data'}:: {path}\n"


def page(heading: str, modules: tuple) -> str:
    names = [f"hvdlite.{name}" for module in modules for name in public_names(f"hvdlite.{module}")]
    names += MORE.get(modules[0], lambda: [])()
    text = inspect.getdoc(importlib.import_module(f"hvdlite.{modules[0]}")).partition("\n")[2]
    return "\n".join([heading, "=" * len(heading), text, "", *map(directive, names)])


# Further contents of a page.
MORE = {
    "numpy": lambda: [f"hvdlite.numpy.{name}" for name in numpy_functions()],
    "launch.api": lambda: ["hvdlite.launch.api.JobFailed"],
}


def missing() -> set:
    """Return the modules that have public names, but are on no page."""
    return set(hvd._DEFINED_IN) - {f"hvdlite.{module}" for *_, some in PAGES for module in some}


def write(folder: Path) -> None:
    """Write the pages as reST, whose directives Sphinx fills from the docstrings."""
    if missing():
        sys.exit(f"docs/reference.py: PAGES lacks {', '.join(sorted(missing()))}")
    texts = {file: page(heading, modules) for file, heading, modules in PAGES}
    texts["elastic"] = ELASTIC
    for name, heading in FRAMEWORKS.items():
        code = Path(hvd.__file__).parent / name / "__init__.py"
        if code.exists():
            texts[name] = FRAMEWORK_PAGE.format(heading, "=" * len(heading), name)
            if "__all__" in code.read_text(encoding="utf-8"):
                texts[name] += "   :imported-members:\n" + NEUTRAL
    texts["keras"] += CALLBACKS
    texts["index"] = INDEX + "".join(f"   {file}\n" for file in texts)
    folder.mkdir(exist_ok=True)
    for file, text in texts.items():
        (folder / f"{file}.rst").write_text(text, encoding="utf-8")
