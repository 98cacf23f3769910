"""What only programs for Horovod ask for; :mod:`hvdlite.as_horovod` puts it where they look.

``modules`` is the table of Horovod's modules, ``util`` and ``data`` have what hvdlite itself has no
use for.
"""
