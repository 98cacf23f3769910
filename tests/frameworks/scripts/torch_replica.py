"""A replica of a torchft job; arguments: the port of the test's store, a name.

Each replica sends ones. The average is one, so each committed step subtracts one from the weights.
"""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft.manager import Manager

from hvdlite.torch.torchft import ProcessGroupHvdlite

PORT, NAME = int(sys.argv[1]), sys.argv[2]
store = dist.TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False)
if NAME == "new":
    store.wait(["two"], timedelta(seconds=120))  # until two replicas train without the victim
own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
weights = torch.zeros(5)
manager = Manager(
    pg=ProcessGroupHvdlite(timeout=timedelta(seconds=10)),
    state_dict=lambda: {"weights": weights.clone()},
    load_state_dict=lambda state: weights.copy_(state["weights"]),
    min_replica_size=1, use_async_quorum=False, replica_id=NAME, rank=0, world_size=1,
    store_addr="127.0.0.1", store_port=own.port, hostname="127.0.0.1",
    lighthouse_addr=store.get("lighthouse").decode(),
)  # fmt: skip
seen = [0]  # the numbers of participants, one entry per change
while not store.check(["last"]) or manager.current_step() < int(store.get("last")):
    manager.start_quorum()
    ones = torch.ones(5)
    manager.allreduce(ones).wait()
    if not manager.should_commit():
        continue
    weights -= ones
    if manager.num_participants() != seen[-1]:
        seen.append(manager.num_participants())
    if NAME == "victim" and store.check(["three"]):
        os.kill(os.getpid(), signal.SIGKILL)
    if NAME == "first" and seen[-1] == 3:
        store.set("three", "")
    if NAME == "first" and seen[-2:] == [3, 2]:
        store.set("two", "")
    if NAME == "first" and seen[-3:] == [3, 2, 3] and not store.check(["last"]):
        store.set("last", str(manager.current_step() + 3))
right = weights.tolist() == [-float(manager.current_step())] * 5
print(
    f"{'ALL RIGHT' if right else 'WRONG'} {NAME} {manager.current_step()} {weights.tolist()}",
    flush=True,
)
manager.shutdown(wait=False)
