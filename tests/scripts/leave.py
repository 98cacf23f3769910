"""argv[1] says how rank 1 leaves the job, argv[2] (as a+b) how the others wait for rank 1."""

import atexit
import os
import signal
import sys
import threading

import numpy as np
from jobs import report

import hvdlite as hvd
import hvdlite.numpy
from hvdlite.core.group_opening import open_among
from hvdlite.monitor import live, memory

how, waits = sys.argv[1], sys.argv[2].split("+")
errors = [hvd.HvdliteError]
with_mxnet = "mxnet" in waits or "trainer" in waits
if with_mxnet:
    import hvdlite.mxnet

    # isort: split
    import gluon2  # noqa: F401
    import mxnet as mx

    errors.append(mx.MXNetError)
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize()
hvd.init()
rank = hvd.rank()
survivors = hvd.add_process_set([0, 2])
if with_mxnet:
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", prefix="net")


def all_together() -> None:
    """Do a first collective, so that rank 1 does not leave at the beginning."""
    if with_mxnet:
        train()
    else:
        hvd.numpy.allreduce(np.ones(4), name="before")


def train() -> None:
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 4))).sum()
    loss.backward()
    trainer.step(2)
    mx.nd.waitall()


def waiting_for_rank_1(wait: str) -> None:
    if wait == "numpy":
        hvd.numpy.allreduce(np.ones(3), name="w")
    elif wait == "mxnet":
        hvd.allreduce(mx.nd.ones(3), name="w").wait_to_read()
    elif wait == "object":
        hvd.broadcast_object(None, root_rank=1, name="w")
    elif wait == "group":
        open_among([0, 1, 2], 7)
    else:
        train()


def pending() -> list:
    """Return the names of this rank's operations that have not ended."""
    with memory.Recorder(memory.files_of(os.getpid())[0]) as recorder:
        return [op["name"] for op in live.pending(recorder.snapshot())]


def at_exit_raises() -> None:
    atexit.register(lambda: {}["label"])
    sys.exit()


def catches_its_exit() -> None:
    """Catch SystemExit, as pytest and click do; the script then has not failed."""
    try:
        sys.exit(3)
    except SystemExit as error:
        assert error.code == 3


class Unreadable(Exception):
    def __str__(self) -> str:
        return self.text  # raises, because no caller has set the attribute


WAYS = {
    "caught exit": catches_its_exit,
    "sys.exit(text)": lambda: sys.exit("no such file: a.rec"),
    "unreadable": lambda: (_ for _ in ()).throw(Unreadable),
    "raise SystemExit": lambda: (_ for _ in ()).throw(SystemExit(3)),
    "exit function": at_exit_raises,
}


def leave() -> None:
    if how in WAYS:
        WAYS[how]()
    if how == "raise":
        raise RuntimeError("no more data")
    if how == "exit 0":
        sys.exit(False)
    if how == "interrupt":
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        hvd.numpy.allreduce(np.ones(2), name="interrupted")
    if how == "failed operator":  # MXNet then never computes the gradient on this rank
        x = mx.nd.random.normal(0, -1, (3,))
        hvd.allreduce_(x, name="w").wait_to_read()
    if how == "shutdown":
        hvd.shutdown()
    # "end": the script just ends


all_together()
if rank == 1:
    leave()
else:
    for wait in waits:
        try:
            waiting_for_rank_1(wait)
        except tuple(errors) as error:
            report(rank, **{wait: str(error)}, pending=pending())
            last = error
    hvd.barrier(survivors)  # no survivor ends before the other survivor has waited for rank 1
    if how not in ("caught exit", "end", "exit 0", "shutdown"):
        raise last
    try:
        waiting_for_rank_1(waits[0])
    except (*errors, ValueError) as error:
        report(rank, again=str(error))
    hvd.barrier(survivors)
