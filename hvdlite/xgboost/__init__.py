"""hvdlite for XGBoost: starts XGBoost's own collectives; reads this rank's part of LibSVM files."""

try:
    import xgboost  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"hvdlite.xgboost needs XGBoost ({error}): run `pip install xgboost scikit-learn`"
    ) from error

from hvdlite.xgboost import rabit
from hvdlite.xgboost.communicator import communicator
from hvdlite.xgboost.libsvm import load_libsvm

__all__ = ["communicator", "load_libsvm", "rabit"]
