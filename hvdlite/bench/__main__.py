"""``mpirun -n 2 python -m hvdlite.bench``."""

from hvdlite.bench.cli import main

main()
