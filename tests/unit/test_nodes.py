"""NUMA nodes of a host, described by fake files of the kernel: this machine may have one node."""

import os
from pathlib import Path

import pytest

from hvdlite.launch import check, ranks, sizing
from hvdlite.launch.assignment import assign
from hvdlite.launch.job import Job
from hvdlite.machine import nodes
from hvdlite.machine.hosts import Host
from hvdlite.monitor import why
from hvdlite.monitor.memory import Snapshot

# a line of /proc/PID/stat, see proc_pid_stat(5)
STAT = "{} (a) b) S " + "0 " * 10 + "{} 0 " + "0 " * 23 + "{} 0\n"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Return a function that fakes a host with NUMA nodes; each core has two hardware threads."""
    monkeypatch.setattr(nodes, "SYSTEM", str(tmp_path / "system"))
    monkeypatch.setattr(nodes, "PROC", str(tmp_path / "proc"))

    def make(number_of_nodes, cores_of_each):
        whole = number_of_nodes * cores_of_each
        for node in range(number_of_nodes):
            first = node * cores_of_each
            last = first + cores_of_each - 1
            threads = f"{first}-{last},{whole + first}-{whole + last}\n"
            write(tmp_path / f"system/node/node{node}/cpulist", threads)
        for core in range(whole):
            for thread in (core, whole + core):
                folder = tmp_path / f"system/cpu/cpu{thread}/topology"
                write(folder / "physical_package_id", f"{core // cores_of_each}\n")
                write(folder / "core_id", f"{core % cores_of_each}\n")
        return range(2 * whole)

    return make


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("number_of_nodes", "cores_of_each", "size"), [(2, 4, 2), (2, 4, 5), (2, 4, 8), (12, 3, 36)]
)
def test_each_rank_is_bound_to_separate_whole_cores_of_one_node(
    host, number_of_nodes, cores_of_each, size
):
    allowed = host(number_of_nodes, cores_of_each)
    bound = [nodes.binding(rank, size, allowed) for rank in range(size)]
    all_cores = nodes.cores(allowed)
    assert sorted(map(sorted, sum(bound, []))) == sorted(map(sorted, all_cores))
    for own in bound:
        assert len({min(core) // cores_of_each for core in own}) == 1
        assert all(len(core) == 2 for core in own)


@pytest.mark.parametrize(
    ("number_of_nodes", "size", "why_not"),
    [(1, 2, "one node"), (4, 3, "fewer ranks than nodes"), (2, 9, "more ranks than cores")],
)
def test_no_rank_is_bound_if_there_are_too_few_nodes_ranks_or_cores(
    host, number_of_nodes, size, why_not
):
    allowed = host(number_of_nodes, 4)
    assert [nodes.binding(rank, size, allowed) for rank in range(size)] == [None] * size


def test_ranks_are_bound_only_to_cores_that_a_container_allows(host):
    host(2, 4)
    allowed = [2, 3, 4, 5, 10, 11, 12]  # core 5 lacks its second hardware thread, 13
    bound = [nodes.binding(rank, 4, allowed) for rank in range(4)]
    assert bound == [[{2, 10}], [{3, 11}], [{4, 12}], [{5}]]


def test_by_default_each_node_gets_the_same_number_of_ranks(host, monkeypatch):
    allowed = host(3, 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    monkeypatch.setattr(sizing, "quota", lambda: 96)
    ranks_, threads, reason = sizing.of_host(None)
    assert (ranks_, threads) == (6, 8)
    assert "48 cores on 3 NUMA nodes" in reason


@pytest.mark.parametrize(
    ("allowed", "how", "place"),
    [
        ([[0, 1], [0, 1]], {}, (1, 2)),
        ([[0], [1]], {}, None),  # mpirun or Slurm has already bound the ranks
        ([[0, 1], [0, 1]], {"unbound": True}, None),
        ([[0, 1], [0, 1]], {"binding": ["--bind-to", "none"]}, None),
    ],
)
def test_ranks_that_the_user_or_backend_binds_are_not_bound_again(allowed, how, place):
    there = [ranks.Rank(n, None, "a", "10.0.0.1", n, {}, own) for n, own in enumerate(allowed)]
    elsewhere = ranks.Rank(2, None, "b", "10.0.0.2", 2, {}, [7])
    assert assign(there[1], [*there, elsewhere], Job(["t"], 3, **how))["place"] == place


def process(number, threads, memory, allowed="0-3"):
    """Fake a process: threads as (CPU ticks, hardware thread), memory as lines of numa_maps."""
    folder = Path(nodes.PROC) / str(number)
    for thread, (ticks, where) in enumerate(threads):
        write(folder / f"task/{thread}/stat", STAT.format(thread, ticks, where))
        write(folder / f"task/{thread}/status", f"Name:\ta\nCpus_allowed_list:\t{allowed}\n")
    write(folder / "numa_maps", memory)


HEAP = "7f00 default anon=200 dirty=200 N0=100 N1=100 kernelpagesize_kB=2048\n"
SHARED = "7f01 default file=/memfd:hvdlite dirty=900 N1=900 kernelpagesize_kB=2048\n"
HALF = "50% of its memory (0 MiB) is on other nodes"
LITTLE = "7f02 default anon=20 dirty=20 N0=10 N1=10 kernelpagesize_kB=4\n"


@pytest.mark.parametrize(
    ("threads", "memory", "says"),
    [
        ([(500, 0), (400, 3)], SHARED + LITTLE, ""),
        # the thread on node 1 has used no CPU time, so it doesn't count
        ([(500, 0), (1, 4)], LITTLE, ""),
        ([(500, 0), (400, 4)], LITTLE, "its threads run on NUMA nodes 0, 1"),
        ([(500, 9)], HEAP, "node 0, and 50% of its memory (200 MiB) is on other nodes"),
    ],
)
def test_memory_and_threads_on_another_numa_node_are_reported(host, threads, memory, says):
    host(2, 4)
    process(4711, threads, memory)
    told = nodes.misplaced(4711)
    assert bool(told) == bool(says)
    assert says in told
    assert nodes.misplaced(4712) == ""  # there is no such process


@pytest.mark.parametrize(
    ("allowed", "memory", "says"),
    [
        ("0-3,8-11", SHARED, ""),
        ("2-5", SHARED, "its threads may run on NUMA nodes 0, 1"),
        ("4", LITTLE, f"its threads run on NUMA node 1, and {HALF}"),
    ],
)
def test_a_new_process_reports_the_numa_nodes_of_its_allowed_cores(host, allowed, memory, says):
    host(2, 4)
    process(4711, [(5, 0), (0, 1)], memory, allowed)
    assert nodes.misplaced(4711, has_just_started=True) == says
    assert nodes.misplaced(4711) == nodes.misplaced(4712, has_just_started=True) == ""


def test_hvdlite_check_starts_a_rank_per_numa_node_but_at_least_two():
    def slots(*nodes_of_hosts):
        reports = [check.Report(str(n), {"nodes": count}) for n, count in enumerate(nodes_of_hosts)]
        hosts = [Host(report.host) for report in reports]
        job = check.with_sums(Job(["t"], 9, hosts=hosts), reports)
        return job.ranks, [host.slots for host in job.hosts]

    assert slots(1) == (2, [2])
    assert slots(1, 1) == (2, [1, 1])
    assert slots(0, 4, 2) == (7, [1, 4, 2])


def test_hvdlite_why_names_a_rank_that_runs_on_two_numa_nodes():
    head = {"rank": 3, "host": "a", "job": "1", "clock_offset": 0.0}
    text = why.of_snapshots([Snapshot(head, [], "runs", 0.0, misplaced="its threads run on two")])
    assert "rank 3 on a: its threads run on two: start the job with hvdliterun" in text
