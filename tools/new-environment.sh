#!/bin/sh
# Makes an empty virtual environment: new-environment.sh PYTHON FOLDER NUMPY
#
# It needs two things that Debian does not install with Python: venv (ensurepip), and Python.h to
# compile hvdlite. As root it installs them by apt-get; otherwise it prints the command to run.
# NUMPY is the version that the environment will get; before 1.24 it does not support Python 3.12.
set -eu
python=$1 folder=$2 numpy=$3

say() { echo "hvdlite: $*"; }

if [ -z "$python" ]; then
    say "no Python found: run \`apt-get install python3.11\`, or set PYTHON"
    exit 1
fi
if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then
    case $numpy in 1.*)
        say "NumPy $numpy needs Python 3.11: run \`apt-get install python3.11\`, or set PYTHON, or" \
            "NUMPY=2.4.6"
        exit 1 ;;
    esac
fi

# The real Python's path, because FOLDER may be active, and its Python can't replace FOLDER.
python=$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')

lacks=$("$python" - <<'EOF'
import importlib.util, os, sys, sysconfig

version = "%d.%d" % sys.version_info[:2]
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print(f"libpython{version}-dev")
if not importlib.util.find_spec("ensurepip"):
    print(f"python{version}-venv")
EOF
)
if [ -n "$lacks" ]; then
    # $lacks is not quoted, so that the names are on one line.
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        say "$python is incomplete: run \`apt-get install" $lacks"\`"
        exit 1
    fi
    say "installing" $lacks", which Debian keeps apart from $python"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install \
        --no-install-recommends $lacks >/dev/null
fi
# --clear removes the rest of an older or interrupted installation.
"$python" -m venv --clear "$folder"
