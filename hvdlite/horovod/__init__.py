"""Modules for programs that import Horovod, used through :mod:`hvdlite.as_horovod`.

``modules`` is a table from Horovod's modules to hvdlite's. ``util`` and ``data`` contain functions
and classes of Horovod that hvdlite does not use itself.
"""
