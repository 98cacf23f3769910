"""hvdlite as PyTorch's backend for CPU tensors: ``init_process_group("hvdlite")``.

``import torch`` registers the backend (``hvdlite_autoload``). If PyTorch's autoload is switched
off, the import of this module registers it. ``groups`` makes the backend of a process group;
``compiled`` compiles the C++ part for the installed PyTorch.
"""

import torch

import hvdlite_autoload

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
    raise ImportError(
        f"hvdlite's backend needs PyTorch 2.4 or newer, but this is PyTorch {torch.__version__}: "
        "run `pip install --upgrade torch`"
    )
hvdlite_autoload.register_with_torch()

# imported now, so that ranks do not wait for each other's imports at the first process group
from hvdlite.torch.backend import groups, place, reconfigure  # noqa: E402, F401
