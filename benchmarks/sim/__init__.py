"""Runs hvdlite's core in a cluster that SimGrid simulates.

job.c is the program of every rank; network.c and clock.c replace the transport, the clock and
threads; all other code is the unchanged core. servers.c is a parameter server for comparison. This
module makes the platform file for SimGrid, and defines the costs that SimGrid does not know.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from benchmarks.harness import PAYLOAD, ROOT

PROGRAM = ROOT / "build" / "sim" / "job"
ALGORITHMS = ["doubling", "circulant", "ring"]
PLATFORM = """<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1"><zone id="all" routing="Full">
{}
</zone></platform>
"""
# Options of SimGrid: transfers share the rate of a link, and there is no other traffic.
SIMGRID = [
    "--cfg=network/model:CM02", "--cfg=network/TCP-gamma:0", "--cfg=network/crosstraffic:0",
    "--cfg=contexts/stack-size:512", "--cfg=contexts/guard-size:0", "--log=root.thres:error",
]  # fmt: skip
Tensors = Sequence[Tuple[int, float]]  # (elements, share of the compute time), first layers first


class Costs(NamedTuple):
    """The costs of sim.h in seconds. The defaults are for a machine with idle cores."""

    latency: float = 20e-6
    message: float = 3e-6
    byte: float = 0.1e-9
    memory_byte: float = 0.1e-9
    call: float = 20e-6
    burst: float = 0  # bytes that an idle link passes without delay
    wake: float = 0  # CPU time to wake from a sleep


class Place(NamedTuple):
    """Hosts and their network. ``rate`` is in bits per second, with headers."""

    hosts: int
    ranks: int = 1  # ranks on each host
    rate: float = 10e9
    # star, torus, or tree:N (a rack's uplink has 1/N of the total rate of its hosts' links)
    topology: str = "star"
    rack: int = 16  # hosts in a rack
    cores: int = 0  # number of cores that all hosts share; 0: each rank has its own core
    costs: Costs = Costs()
    servers: int = 0  # number of parameter servers; 0: hvdlite's core instead
    apart: bool = False  # True: servers have their own hosts

    @property
    def machines(self) -> int:
        return self.hosts + self.servers * self.apart

    @property
    def carried(self) -> float:
        """The bytes of data per second that a link carries."""
        return self.rate / 8 * PAYLOAD

    def bound(self, size: int) -> float:
        """Return the least seconds of an allreduce: each host must send 2(h-1)/h of its bytes."""
        return 2 * (self.hosts - 1) / self.hosts * size / self.carried

    def platform(self) -> str:
        zones = _torus(self) if self.topology == "torus" else _racks(self)
        if self.cores:
            zones += (
                '<zone id="m" routing="Full">'
                f'<host id="machine" speed="1Gf" core="{self.cores}"/></zone>'
            )
        return PLATFORM.format(zones)


def _cluster(name: str, first: int, last: int, rate: float, more: str = "") -> str:
    return (
        f'<cluster id="{name}" prefix="h" suffix="" radical="{first}-{last}" speed="1Gf" '
        f'bw="{rate:.0f}Bps" lat="0us" sharing_policy="SPLITDUPLEX" router_id="{name}r" {more}/>'
    )


def _torus(place: Place) -> str:
    hosts = place.machines
    width = max(w for w in range(1, int(hosts**0.5) + 1) if hosts % w == 0)
    shape = f'topology="TORUS" topo_parameters="{width},{hosts // width}"'
    return _cluster("r0", 0, hosts - 1, place.carried, shape)


def _racks(place: Place) -> str:
    _, _, over = place.topology.partition(":")
    each = place.rack if over else place.machines
    starts = range(0, place.machines, each)
    if len(starts) == 1:
        return _cluster("r0", 0, place.machines - 1, place.carried)
    lines = []
    for i, first in enumerate(starts):
        last = min(first + each, place.machines) - 1
        lines.append(_cluster(f"r{i}", first, last, place.carried))
        uplink = each * place.carried / float(over)
        lines.append(
            f'<link id="up{i}" bandwidth="{uplink:.0f}Bps" latency="0us" '
            'sharing_policy="SPLITDUPLEX"/>'
        )
    for i in range(len(starts)):
        for k in range(i + 1, len(starts)):
            lines.append(
                f'<zoneRoute src="r{i}" dst="r{k}" gw_src="r{i}r" gw_dst="r{k}r">'
                f'<link_ctn id="up{i}" direction="UP"/><link_ctn id="up{k}" direction="DOWN"/>'
                "</zoneRoute>"
            )
    return "\n".join(sorted(lines, key=lambda line: line.startswith("<zoneRoute")))


class Failed(Exception):
    """The simulation has ended with an error."""


def run(
    place: Place, tensors: Tensors, timeout: float = 600, algorithm: Optional[str] = None,
    **settings: Any,
) -> Dict[str, Any]:  # fmt: skip
    """Simulate a job; return the values that it prints.

    ``steps`` has the seconds of each step. ``ranks`` has, for each rank and step, the bytes and
    messages of data sent to other hosts, and the negotiation's messages sent and received.

    :param algorithm: one of ALGORITHMS, for allreduces by messages; None: hvdlite's choice.
    :param settings: settings of job.c: steps, warm, compute, forward, meet, fifo, ahead, ...
    :raises Failed: with the text that the program prints.
    """
    given = {"hosts": place.hosts, "ranks": place.ranks, **place.costs._asdict()}
    given.update(servers=place.servers, apart=int(place.apart), rate=place.carried, **settings)
    if algorithm:
        given["algorithm"] = ALGORITHMS.index(algorithm)
    with tempfile.TemporaryDirectory() as folder:
        platform, traces = Path(folder, "platform.xml"), Path(folder, "tensors")
        platform.write_text(place.platform())
        traces.write_text("".join(f"{n} {share}\n" for n, share in tensors))
        words = [f"{key}={value}" for key, value in given.items()]
        done = subprocess.run(
            [str(PROGRAM), str(platform), str(traces), *words, *SIMGRID],
            capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
    if done.returncode:
        raise Failed(f"exit status {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def missing() -> Optional[str]:
    """Return why this machine can't simulate, or None."""
    if not Path("/usr/include/simgrid/engine.h").exists():
        return "SimGrid is not installed: apt-get install libsimgrid-dev"
    built: List[str] = ["make", "-s", "sim"]
    done = subprocess.run(built, cwd=ROOT, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else None
