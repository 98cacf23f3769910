"""hvdlite as PyTorch's backend for CPU tensors: ``init_process_group("hvdlite")``.

``import torch`` has registered it (``hvdlite_autoload``), unless PyTorch's autoload of backends is
switched off; then the import of this module does. ``groups`` makes the backend of a process group,
``compiled`` compiles it for the installed PyTorch; the rest is C++ that only PyTorch calls.
"""

import torch

import hvdlite_autoload

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
    raise ImportError(f"hvdlite's backend needs PyTorch 2.4 or newer: this is {torch.__version__}")
hvdlite_autoload.register_with_torch()
