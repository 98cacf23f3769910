"""Every kind of bad input, one after the other in one job; each rank reports what it was told."""

import hvdlite.mxnet as hvd

# isort: split
import gluon2  # noqa: F401
import mxnet as mx
import numpy as np
from jobs import report

import hvdlite.numpy
from hvdlite.mxnet import push


def told(call) -> str:
    try:
        result = call()
        if result is not None:
            result.wait_to_read()
    except Exception as error:  # its kind is part of what is reported
        kind = f"{type(error).__name__}: "  # MXNet has put it there already
        return kind + str(error).replace(kind, "", 1)
    return "nothing"


before = {"before init": told(lambda: hvd.allreduce(mx.nd.ones(3), name="w"))}
hvd.init()
rank, first = hvd.rank(), hvd.rank() == 0


def twice() -> str:
    """On rank 0 only; the others complete the first of the two afterwards."""
    text = "nothing"
    if first:
        pending = hvd.allreduce_(mx.nd.ones((3,)), name="twice")
        push.submit_all()  # MXNet runs operations on several threads, in any order
        text = told(lambda: hvd.allreduce_(mx.nd.ones((3,)), name="twice"))
    hvd.allgather_object("rank 0 has submitted both")
    if not first:
        pending = hvd.allreduce_(mx.nd.ones((3,)), name="twice")
    pending.wait_to_read()
    return text


def different_networks():
    net = mx.gluon.nn.Dense(3 if first else 4, in_units=2)
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", prefix="net")
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 2))).sum()
    loss.backward()
    trainer.step(1)


ones = mx.nd.ones
cases = {
    "shapes": lambda: hvd.allreduce(ones((17, 3) if first else (18, 3)), name="w"),
    "dtypes": lambda: hvd.allreduce(ones(3, dtype="float32" if first else "int32"), name="w"),
    "ops": lambda: hvd.allreduce(ones(3), op=hvd.Sum if first else hvd.Average, name="w"),
    "scales": lambda: hvd.allreduce(ones(3), prescale_factor=1.0 if first else 0.5, name="w"),
    "roots": lambda: hvd.broadcast(ones(3), 0 if first else 1, name="w"),
    "root that is no rank": lambda: hvd.broadcast(ones(3), 7, name="w"),
    "rows of an allgather": lambda: hvd.allgather(ones((2, 3 if first else 4)), name="w"),
    "networks": different_networks,
    "dtype uint16": lambda: hvdlite.numpy.allreduce(np.ones(3, "uint16"), name="w"),
    "row_sparse": lambda: hvd.allreduce(ones((2, 2)).tostype("row_sparse"), name="w"),
    "csr": lambda: hvd.allreduce_(ones((2, 2)).tostype("csr"), name="w"),
}
texts = {**before, **{name: told(call) for name, call in cases.items()}}
texts["same name twice"] = twice()
texts["good after all that"] = str(hvd.allreduce(ones(1), op=hvd.Sum).asscalar())
hvd.shutdown()
texts["after shutdown"] = told(lambda: hvd.allreduce(ones(3), name="w"))
report(rank, **texts)
