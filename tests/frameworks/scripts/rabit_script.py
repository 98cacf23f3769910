"""A script of the time of ``xgboost.rabit``, with its import changed."""

import jobs
import numpy as np

from hvdlite.xgboost import rabit

rabit.init()
rank, size = rabit.get_rank(), rabit.get_world_size()
word = rabit.broadcast({"word": "from rank 0"} if rank == 0 else None, 0)
ones = np.zeros(3)
total = rabit.allreduce(ones, rabit.Op.SUM, lambda data: data.fill(rank + 1))
most = rabit.allreduce(np.array([rank]), rabit.Op.MAX)
rabit.tracker_print(f"printed by rank {rank}\n")
rabit.finalize()
with rabit.RabitContext():
    again = rabit.get_rank()
jobs.report(
    rank, size=size, word=word, total=total.tolist(), most=most.tolist(), again=again,
    left=not rabit.is_distributed(), host=bool(rabit.get_processor_name()),
)  # fmt: skip
