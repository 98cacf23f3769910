"""One rank, the second argument, ends in the way of the first while the others train."""

import argparse
import atexit
import os
import signal
import sys
import time

import numpy as np

import hvdlite as hvd


def at_exit_raises() -> None:
    atexit.register(lambda: {}["label"])
    sys.exit()


def is_killed_by(number: int) -> None:
    if number != signal.SIGINT:  # which is an exception; SIGHUP may have been ignored by a shell
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def memory_runs_out() -> None:
    raise MemoryError("no memory for the batch")


WAYS = {
    "raises": lambda: {}["label"],
    "sys.exit(True)": lambda: sys.exit(True),
    "sys.exit(text)": lambda: sys.exit("no such file: a.rec"),
    "raise SystemExit": lambda: (_ for _ in ()).throw(SystemExit(3)),
    "argparse": lambda: argparse.ArgumentParser().parse_args(["--no-such-option"]),
    "exit function": at_exit_raises,
    "MemoryError": memory_runs_out,
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(4)": lambda: os._exit(4),
    "abort": os.abort,
    **{
        name: lambda name=name: is_killed_by(signal.Signals[name])
        for name in ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGINT", "SIGHUP")
    },
}

if __name__ == "__main__":
    how, who = sys.argv[1], int(sys.argv[2])
    hvd.init()
    hvd.numpy.allreduce(np.ones(1000))
    for step in range(10**6):
        if step == 3 and hvd.rank() == who:
            WAYS[how]()
            time.sleep(60)
        hvd.numpy.allreduce(np.ones(1000), name="gradient")
