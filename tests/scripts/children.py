"""Each rank runs the Python program in argv, then collectives. -NAME: the program gets NAME=1."""

import os
import subprocess
import sys

import numpy as np

import hvdlite as hvd

hvd.init()
words = sys.argv[1:]
env = dict(os.environ)
while words[0].startswith("-HVDLITE"):
    env[words.pop(0)[1:]] = "1"
done = subprocess.run([sys.executable, *words], env=env, timeout=99, text=True, capture_output=True)
print(done.stdout, done.stderr[-2000:], f"CODE {done.returncode}", sep="\n", flush=True)
for _ in range(20):
    total = hvd.numpy.allreduce(np.ones(1000), op=hvd.Sum, name="total")
print("SUM", total[0], flush=True)
