"""Modules that only programs for Horovod import, through :mod:`hvdlite.as_horovod`.

``modules`` is the table of Horovod's modules. ``util`` and ``data`` have functions and classes of
Horovod that hvdlite itself does not use.
"""
