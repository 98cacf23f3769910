"""Describes a host: versions, MPI, cores, interfaces, shared memory.

This module is also a program: the launcher sends it to Python on other hosts, which may lack
hvdlite. So it imports only the standard library. Importing MPI and MXNet would also take seconds.
"""

import fcntl
import importlib.util
import json
import os
import re
import socket
import struct
import subprocess
import sys

SIOCGIFADDR = 0x8915
CACHE, TORCH_MODULE = "HVDLITE_CACHE", "hvdlite_torch_backend"
FRAMEWORKS = {  # frameworks besides MXNet -> distributions that provide them
    "PyTorch": ("torch",),
    "TensorFlow": ("tensorflow", "tensorflow-cpu"),
    "Keras": ("keras",),
    "XGBoost": ("xgboost", "xgboost-cpu"),
    "LightGBM": ("lightgbm",),
    "JAX": ("jax",),
}


def versions():
    """Return the versions that must be equal on all hosts; None for a package that is missing."""
    return {
        "Python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "hvdlite": _version_in("hvdlite", "__init__.py"),
        "MXNet": _version_in("mxnet", "libinfo.py"),
    }


def _version_in(package, file):
    """Read ``__version__`` from a package's file, without the effects of importing the package."""
    try:
        folder = os.path.dirname(importlib.util.find_spec(package).origin)
        with open(os.path.join(folder, file)) as source:
            return re.search(r"__version__ *= *['\"](.+?)['\"]", source.read()).group(1)
    except (AttributeError, ImportError, OSError, TypeError, ValueError):
        return None


def why_no_mxnet():
    """Return why MXNet's library can't be loaded, such as a missing libgomp; None if it can.

    A child process loads the library alone, because importing MXNet would take seconds.
    """
    found = importlib.util.find_spec("mxnet")
    if not found or not found.origin:
        return "not installed"
    library = os.path.join(os.path.dirname(found.origin), "libmxnet.so")
    line = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", library]
    done = subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    text = done.stderr.decode(errors="replace").strip().split("\n")[-1]
    text += ": apt-get install libgomp1 libquadmath0" if "No such file" in text else ""
    return text if done.returncode else None


def installed(framework):
    """Return the version of one of the FRAMEWORKS; None if it is not installed."""
    # imported here, because describe() must also run on an old Python without this module
    import importlib.metadata

    for distribution in FRAMEWORKS[framework]:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def shipped_folder():
    """Return the folder of the framework libraries compiled when hvdlite was installed."""
    return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "compiled")


def cache_folders():
    """Return the folders where hvdlite may keep files that it compiles later, the best first.

    The last folder is for users whose home is missing, read-only or full.
    """
    if os.environ.get(CACHE):
        return [os.path.expanduser(os.environ[CACHE])]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    temporary = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"hvdlite-cache-{os.geteuid()}")
    return [os.path.join(os.path.expanduser(home), "hvdlite"), temporary]


def torch_stem(version):
    """Return the first part of a compiled backend's name; 2.13.0+cpu counts as 2.13.0."""
    return f"{TORCH_MODULE}-torch{version.partition('+')[0]}-{sys.implementation.cache_tag}"


def torch_compiler():
    import shlex

    return shlex.split(os.environ.get("CXX") or "c++")


def torch_backend(version):
    """Return whether hvdlite's backend of torch.distributed is compiled for this PyTorch."""
    import glob
    import shutil

    if version is None:
        return "-"
    of_this = f"{torch_stem(version)}-*.so"
    for folder in (shipped_folder(), *cache_folders()):
        if glob.glob(os.path.join(folder, of_this)):
            return "compiled"
    compiler = torch_compiler()[0]
    return "at first use" if shutil.which(compiler) else "needs " + compiler


def find_program(name):
    """Return the path of an MPI program beside this Python or on PATH, or None."""
    import shutil  # here, so that agents, which ask only for versions, start 2 ms sooner

    folder = os.path.dirname(sys.executable)
    return shutil.which(name, path=folder) or shutil.which(name)


def mpi_version():
    """Return MPI's name and version, from ``mpirun --version``, or None."""
    mpirun = find_program("mpirun") or find_program("mpiexec")
    if not mpirun:
        return None
    env = {"HOME": "/", **os.environ}  # Open MPI does not start without HOME
    line = [mpirun, "--version"]
    done = subprocess.run(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return name_of_mpi(done.stdout.decode(errors="replace"))


def name_of_mpi(text):
    """Shorten the output of ``mpirun --version`` to "Open MPI 5.0.11", "MPICH 5.0.2"."""
    for name, pattern in (
        ("Open MPI", r"\(Open MPI\) ([\w.]+)"),
        ("Intel MPI", r"Intel\(R\) MPI Library.*?Version ([\w. ]+)"),
        ("MPICH", r"HYDRA build details:\s+Version:\s+([\w.]+)"),
    ):
        match = re.search(pattern, text)
        if match:
            return f"{name} {match.group(1)}"
    return text.strip().split("\n")[0] or None


def interfaces():
    """Return the IPv4 address of each network interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def ipv6_addresses():
    """Return the IPv6 addresses at which other hosts may reach this one."""
    try:
        with open("/proc/net/if_inet6") as table:
            rows = [line.split() for line in table]
    except OSError:  # a kernel without IPv6
        return []
    # the fourth column is the scope: 00 is global, others are of one link or this host
    found = [bytes.fromhex(row[0]) for row in rows if row[3] == "00"]
    return [socket.inet_ntop(socket.AF_INET6, each) for each in found]


def is_on(name, address, networks):
    """Return True if an interface is in one of these networks: eth0, 10.1.0.0/16, 10.1.0.7."""
    return name in networks or any(_is_in(address, each) for each in networks)


def _is_in(address, network):
    import ipaddress  # not at the top, because few jobs need it

    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def source_towards(host):
    """Return the address from which this host sends to another; None: it has no route there."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((host, 9))  # connecting UDP sends nothing: it only asks the routing table
            return sock.getsockname()[0]
    except OSError:
        return None


def why_not_loaded(without_mpi=False):
    """Return why ranks can't load hvdlite here, or None.

    Another process tries to load hvdlite, because loading it may initialize MPI.
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MPI4PY_RC_INITIALIZE": "0"}
    module = "hvdlite.core.native" if without_mpi else "hvdlite.bootstrap.mpi.loading"
    line = [sys.executable, "-c", f"import {module}"]
    done = subprocess.run(line, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    text = done.stderr.decode(errors="replace").strip()
    return text.split("\n")[-1] if done.returncode else None


def starts_without_mpi():
    """Return True if hvdlite's C library for jobs without MPI is installed."""
    return importlib.util.find_spec("hvdlite._hvdlite_core") is not None


def describe(load=False, without_mpi=False):
    """Return all facts about this host; ``load`` adds two facts that take long to find."""
    import glob

    try:
        memory = os.statvfs("/dev/shm")
    except OSError:  # there is no /dev/shm; ranks work without it
        memory = os.statvfs_result((0,) * 10)
    return {
        "host": socket.gethostname(),
        "versions": versions(),
        "frameworks": {name: installed(name) for name in FRAMEWORKS},
        "torch backend": torch_backend(installed("PyTorch")),
        "MPI": mpi_version(),
        "not loaded": why_not_loaded(without_mpi) if load else None,
        "no MXNet": why_no_mxnet() if load else None,
        "cores": len(os.sched_getaffinity(0)),
        "nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")),
        "interfaces": interfaces(),
        "shm": memory.f_blocks * memory.f_frsize,
        "shm_free": memory.f_bavail * memory.f_frsize,
    }


if __name__ == "__main__":
    print(json.dumps(describe(*(option in sys.argv for option in ("--load", "--without-mpi")))))
