"""Has torch.compile call this package as it is: it can't trace the C library's functions."""

import sys

from hvdlite.patches.after_import import AfterImport

_RULES = "torch._dynamo.trace_rules"  # its import takes a second, which most scripts can save


def watch() -> None:
    """Add a rule now if PyTorch's are there, else right after their import."""
    if _RULES in sys.modules:
        sys.modules[_RULES].add("hvdlite")
    else:
        sys.meta_path.insert(0, AfterImport(_RULES, _execute))


def _execute(rules, code) -> None:
    code(rules)
    rules.add("hvdlite")
