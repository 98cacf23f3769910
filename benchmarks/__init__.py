"""Measures hvdlite, Horovod, plain MPI, Gloo and MXNet's parameter server under equal conditions.

``make peers`` installs the other systems; ``make bench`` measures and writes docs/benchmarks.md.
``plan`` lists the systems and their settings. ``run`` starts ``worker`` for each system in turn;
``worker`` measures one of the ``libraries`` with the code of ``hvdlite.bench``. ``report`` prints
the results that ``run`` has stored.
"""
