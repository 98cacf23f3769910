"""The names of ``horovod.mxnet.functions``, for scripts that import them from there."""

from hvdlite import allgather_object, broadcast_object  # noqa: F401
