"""A rank of a job in which one rank dies at a random moment; tests/deaths.py makes the cases."""

import atexit
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time

case = json.loads(sys.argv[1])
rng = random.Random(f"{case['seed']} {os.getpid()}")
SIZES = (1, 4, 250, 4_000, 30_000, 500_000, 4_000_000)  # numbers of float32 elements
KINDS = ("allreduce", "allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
ROUNDS = 8  # rounds of a job in which no rank dies


class Broken(Exception):
    """The exception of a rank that dies by raising."""


def note(what: str, **more) -> None:
    line = json.dumps({"what": what, "at": time.monotonic(), **more})
    with open(f"{case['folder']}/{number}", "a") as file:
        file.write(line + "\n")


def die() -> None:
    note("death")
    how = case["how"]
    if how in ("SIGKILL", "SIGSTOP"):
        os.kill(os.getpid(), getattr(signal, how))
    elif how == "_exit":
        os._exit(3)
    elif how == "exit":
        sys.exit(3)
    else:
        raise Broken("at random")


def enters(phase: str) -> None:
    """Note that a phase begins; in the case's phase, make the victim die after the case's delay."""
    note(phase)
    if number != case["victim"] or case["when"] != phase:
        return
    if case["how"] in ("exit", "raise") or phase == "exit":
        time.sleep(case["delay"])
        die()
    timer = threading.Timer(case["delay"], die)
    timer.daemon = True
    timer.start()


def at_exit() -> None:
    """Run after all other exit functions, also hvdlite's, because this one is registered first."""
    enters("exit")


faulthandler.register(signal.SIGUSR1, all_threads=True)
atexit.register(at_exit)
number = int(os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
if "torch" in case["groups"]:
    import torch  # noqa: F401 - this case imports PyTorch before hvdlite
import numpy as np  # noqa: E402

import hvdlite as hvd  # noqa: E402
import hvdlite.numpy as hn  # noqa: E402
from hvdlite import job  # noqa: E402
from hvdlite.core import group_opening  # noqa: E402
from hvdlite.core.process_set import ProcessSet  # noqa: E402

if "host" in case:  # use sockets as between two hosts
    from hvdlite.bootstrap import mesh

    mesh._identity = lambda: f"h{number * 2 // case['ranks']}"


def open_groups() -> dict:
    groups = {"world": None}
    members = case["members"]
    if "set" in case["groups"]:
        groups["set"] = hvd.add_process_set(members)
    if "group" in case["groups"] and number in members:
        groups["group"] = ProcessSet(members)
        groups["group"].register(99, members, group_opening.open_among(members, 7777))
    if "torch" in case["groups"]:
        import torch.distributed as dist

        groups["torch"] = dist.new_group(members)
    return {name: groups[name] for name in case["groups"] if name == "world" or number in members}


def collective(kind: str, size: int, name: str, among: dict, ranks: int) -> None:
    array = np.ones(size * (ranks if kind in ("alltoall", "reducescatter") else 1), np.float32)
    name = f"{name}.{kind}.{size}"
    if kind == "broadcast":
        root = 0 if not among else among["process_set"].ranks[0]
        hn.broadcast(array, root, name=name, **among)
    else:
        getattr(hn, kind)(array, name=name, **among)


def collective_of_torch(kind: str, size: int, group) -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(size)
    if kind == "broadcast":
        dist.broadcast(x, case["members"][0], group=group)
    elif kind == "allgather":
        dist.all_gather([torch.empty(size) for _ in case["members"]], x, group=group)
    else:
        dist.all_reduce(x, group=group)


def loop(name: str, thread: int, group, ends: bool) -> None:
    """Run collectives until one fails or, if `ends`, for ROUNDS rounds."""
    shared = random.Random(f"{case['seed']} {name} {thread}")
    own = f"{name}{thread}"
    among = {} if group is None else {"process_set": group}
    ranks = case["ranks"] if name == "world" else len(case["members"])
    round_ = 0
    while not ends or round_ < ROUNDS:
        round_ += 1
        kind = shared.choice(KINDS)
        size = SIZES[min(int(shared.expovariate(0.5)), len(SIZES) - 1)]
        try:
            if name == "torch":
                collective_of_torch(kind, size, group)
            else:
                collective(kind, size, own, among, ranks)
        except (hvd.HvdliteError, RuntimeError) as error:
            note("failed", of=own, text=str(error)[:200], round=round_)
            failures.append(error)
            break
    note("ended", of=own)


failures: list = []
enters("init")
if "torch" in case["groups"]:
    import torch.distributed

    torch.distributed.init_process_group("hvdlite")
    import hvdlite.torch
job.init()
enters("open")
groups = open_groups()
ends = case["when"] in ("closing", "exit")
threads = [
    threading.Thread(target=loop, args=(name, i, group, ends), daemon=True)
    for name, group in groups.items()
    for i in range(1 if name == "torch" else case["threads"])
]
for each in threads:
    each.start()
enters("collectives")
if case.get("leaver") == number:
    time.sleep(case["leaves"])
    hvd.shutdown()
    note("left")
    time.sleep(120)  # stands for a computation
for each in threads:
    each.join()
note("joined")
dies_now = number == case["victim"] and case["when"]
if dies_now == "collectives":
    time.sleep(60)  # until the timer kills this rank
enters("closing")
if failures and case["then"] == "raise":
    raise failures[0]
if case["then"] == "shutdown":
    hvd.shutdown()
    note("shut down")
if dies_now == "closing":
    time.sleep(60)
