"""Jobs that MPI did not start: ranks joined by sockets, in the library that has no MPI."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import TESTS

PACKAGE = Path(__file__).resolve().parents[1] / "hvdlite"
LIBRARY = next(PACKAGE.glob("_hvdlite_tcp.*.so"), None)
SECONDS = 100
# For each rank the lowest rank of its host.
ONE_HOST = {size: [0] * size for size in (1, 2, 3, 4)}
HOSTS = [*ONE_HOST.values(), [0, 1], [0, 0, 2], [0, 1, 0, 1], [0, 1, 2, 3]]


def pair(kind: str):
    if kind == "unix":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


@contextlib.contextmanager
def connected(size: int, kind: str):
    """Yield the sockets of each pair of ranks: [lane][of][to]."""
    lanes = [[[None] * size for _ in range(size)] for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for lane in lanes:
            for a in range(size):
                for b in range(a):
                    lane[a][b], lane[b][a] = map(stack.enter_context, pair(kind))
        yield lanes


def run(what: str, lowest: list, kind: str = "tcp", **environ) -> list:
    """Run the ranks; return for each its exit code and what it printed."""
    ranks = []
    with connected(len(lowest), kind) as lanes:
        for rank in range(len(lowest)):
            own = [[-1 if s is None else s.fileno() for s in lane[rank]] for lane in lanes]
            job = {"rank": rank, "size": len(lowest), "lowest": lowest}
            job.update(data=own[0], messages=own[1])
            ranks.append(
                subprocess.Popen(
                    [sys.executable, f"{TESTS}/scripts/by_sockets.py", what, json.dumps(job)],
                    env={**os.environ, "HVDLITE_TCP_LIBRARY": str(LIBRARY), **environ},
                    pass_fds=[file for lane in own for file in lane if file >= 0],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
    try:
        printed = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, text) for rank, text in zip(ranks, printed)]


def test_it_is_built_and_needs_no_libmpi():
    assert LIBRARY is not None
    done = subprocess.run(["ldd", str(LIBRARY)], capture_output=True, text=True, check=True)
    assert "mpi" not in done.stdout.replace(str(LIBRARY), "")


def test_it_says_that_it_has_no_mpi():
    [(code, text)] = run("without_mpi", [0])
    assert code == 0, text
    assert "was built without MPI" in text


@pytest.mark.parametrize("lowest", HOSTS, ids=str)
def test_sums(lowest):
    assert run("sums", lowest) == [(0, "")] * len(lowest)


@pytest.mark.parametrize("lowest", [[0, 0], [0, 1, 0]], ids=str)
def test_sums_without_a_window(lowest):
    assert run("sums", lowest, "unix", HVDLITE_WINDOW="0", HVDLITE_LOG_LEVEL="error") == [
        (0, "")
    ] * len(lowest)


@pytest.mark.parametrize("lowest", [[0, 0, 0], [0, 1, 0, 1]], ids=str)
def test_groups_share_the_streams(lowest):
    assert run("groups", lowest) == [(0, "")] * len(lowest)


@pytest.mark.parametrize("what, code", [("death", -9), ("death_midway", -14)])
@pytest.mark.parametrize("lowest", [[0, 0, 0], [0, 1, 2], [0, 0, 2, 2]], ids=str)
def test_the_death_of_a_rank_is_told_by_name(lowest, what, code):
    results = run(what, lowest)
    assert results.pop(1)[0] == code
    for code, text in results:
        assert code == 0, text
        dead, rank, why = json.loads(text)
        assert (dead, rank) == (True, 1), why
        assert "rank 1 (process " in why


@pytest.mark.parametrize("lowest", [[0, 1], [0, 0, 2, 2]], ids=str)
def test_waiting_costs_nothing(lowest):
    results = run("waiting", lowest)
    for code, text in results[:-1]:
        assert code == 0, text
        assert float(text) < 0.1  # in a second, on a busy machine; alone it is 0.01
