"""Start a scheduler, servers and workers of MXNet, as launch.py does, and wait for all of them.

    python beside_servers.py [--servers=1] [--numbered] -n 2 python train.py

launch.py numbers the workers that it starts on one host (--numbered), but not those over ssh.
"""

import argparse
import os
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--servers", type=int, default=1)
parser.add_argument("--numbered", action="store_true")
parser.add_argument("-n", type=int)
parser.add_argument("command", nargs=argparse.REMAINDER)
args = parser.parse_args()

from places import free_port  # noqa: E402 - of the tests

environ = {
    **os.environ,
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": str(free_port()),
    "DMLC_NUM_WORKER": str(args.n),
    "DMLC_NUM_SERVER": str(args.servers),
}
roles = ["scheduler", *["server"] * args.servers, *["worker"] * args.n]
started = []
for index, role in enumerate(roles):
    own = {"DMLC_TASK_ID": str(index)} if args.numbered else {}
    started.append(subprocess.Popen(args.command, env={**environ, **own, "DMLC_ROLE": role}))
ends = [(role, process.wait()) for role, process in zip(roles, started)]
print("ENDS", sorted(f"{role} {code}" for role, code in ends), flush=True)
sys.exit(max(code for _, code in ends))
