"""benchmarks/ablation.py takes turns, each in a job with settings of its own."""

import mxnet as mx
from mpi4py import MPI

import hvdlite as hvd
from benchmarks import ablation, plan
from hvdlite.bench import cases, measure

by_messages = []


def measured(library, case, comm, seconds):
    """Twice as long by messages, which is what is left without shared memory."""
    hvd.allreduce(mx.nd.ones(1000), name="x").wait_to_read()
    by_messages.append(hvd.stats()["bytes_sent_mpi"] > 0)
    return {"p50": 3.0 if by_messages[-1] else 1.5}


hvd.init()
measure.measure = measured
case = cases.one_array("allreduce", 4096)
rows = list(ablation.rows(None, [case], MPI.COMM_WORLD, 0.01))
assert [row["name"] for row in rows] == [each.without(case.name) for each in plan.TECHNIQUES]
assert by_messages[:4] == [False, True, True, False] and not any(by_messages[4:]), by_messages
assert [row["ratio"] for row in rows] == [2.0] + [1.0] * (len(rows) - 1)
