"""Start two ranks of the Python program in argv with torchrun's variables, and wait for them."""

import os
import subprocess
import sys

from places import free_port

at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "x"}
ranks = [
    subprocess.Popen(
        [sys.executable, *sys.argv[1:]],
        env={**os.environ, **at, "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank},
    )
    for rank in "01"
]
sys.exit(max(rank.wait() for rank in ranks))
