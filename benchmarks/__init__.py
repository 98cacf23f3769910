"""hvdlite beside Horovod, plain MPI, Gloo and MXNet's parameter server, in one go.

``make peers`` installs them, ``make bench`` measures and writes docs/benchmarks.md. ``plan`` says
who takes part and how, ``run`` starts ``worker`` for each in turn, which measures one of the
``libraries`` with the code of ``hvdlite.bench``; ``report`` shows what ``run`` has kept.
"""
