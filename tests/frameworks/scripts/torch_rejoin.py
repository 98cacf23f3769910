"""A process that leaves its job for other jobs; arguments: port of the test's store, own number."""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from hvdlite.torch.backend import groups, reconfigure

PORT, ME = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False)


def joined(name: str, *members: int):
    at = dist.PrefixStore(name, store), members.index(ME), len(members), timedelta(seconds=60)
    reconfigure.join(*at)
    group = groups.create(*at)
    assert (group.rank(), group.size()) == at[1:3]
    assert total(group) == sum(members)
    return group


def total(group) -> float:
    t = torch.full((3,), float(ME))
    group.allreduce([t]).wait()
    return t[0].item()


def error_of(group) -> str:
    try:
        total(group)
    except dist.DistBackendError as error:
        return str(error)
    return "none"


if ME < 3:
    first = joined("first", 0, 1, 2)
    if ME == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    assert "rank 1" in error_of(first)
    pair = joined("pair", 2, 0)  # the ranks in another order
    assert "reconfigure has ended its job" in error_of(first)
three = joined("three", 0, 2, 3)  # rank 3 has joined
if ME == 0:  # the next group leaves out process 0, which goes on running
    why = error_of(three)
    assert "it goes on with other ranks" in why, why
    store.wait(["end of 2", "end of 3"], timedelta(seconds=60))
else:
    last = joined("last", 3, 2)
    assert total(last) == 5
    store.set(f"end of {ME}", "")
print(f"ALL RIGHT {ME}", flush=True)
