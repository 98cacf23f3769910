"""Elastic training, which continues when ranks die: :func:`run`, states, and a sampler.

The names are those of Horovod's elastic training.
"""

from hvdlite.core.lazy_names import lazy_names

_DEFINED_IN = {
    "hvdlite.elastic.loop": ("run",),
    "hvdlite.elastic.sampler": ("ElasticSampler",),
    "hvdlite.elastic.state": (
        "HorovodInternalError",
        "HostsUpdatedInterrupt",
        "ObjectState",
        "State",
    ),
    "hvdlite.mxnet.elastic": ("GluonState", "MXNetState"),
}

__all__ = [name for names in _DEFINED_IN.values() for name in names]
__getattr__, __dir__ = lazy_names(globals(), _DEFINED_IN, {})
