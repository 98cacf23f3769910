"""Start PyTorch programs with torchrun, with hvdliterun or directly."""

import os
import re
import subprocess
import sys
from pathlib import Path

from jobs import MPI_SETTINGS

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = "torchrun", "--standalone", "--nproc-per-node"


def started_by(*command: str, timeout=250, **env) -> subprocess.CompletedProcess:
    """Run a command from the folder of this Python's executable."""
    line = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    env = {**os.environ, **MPI_SETTINGS, "GLOO_SOCKET_IFNAME": "lo", **env}
    return subprocess.run(line, capture_output=True, text=True, env=env, timeout=timeout)


def came_to(output: str) -> dict:
    return dict(re.findall(r"CAME TO (\w+) (\S+)", output))
