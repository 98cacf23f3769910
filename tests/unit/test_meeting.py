"""Ranks meet without MPI at rank 0's port, even if strangers connect. The ranks are threads.

Strangers are connections of processes that are not ranks of the job.
"""

import contextlib
import itertools
import os
import socket
import threading
import time

import pytest
from threads import as_threads

from hvdlite.bootstrap import acceptor, exchange, handshake, mesh, values
from hvdlite.core import limits
from hvdlite.core.native import HvdliteError, RankFailedError
from hvdlite.core.places import Place

JOB = "torchrun 29500 x"
# These ports are below the ephemeral ports, and differ between test processes, which may run
# concurrently.
_ports = itertools.count(20_000 + os.getpid() % 180 * 64)


def places(size: int):
    port = next(_ports)
    return [Place("torchrun", rank, size, "127.0.0.1", (port,), JOB) for rank in range(size)]


def met(place, patience=30.0, joined=0) -> tuple:
    """Meet, connect to all ranks, and close; return what this rank has learned and received."""
    own = exchange.meet(place, joined, patience, set())
    all_values = own.allgather({"rank": own.rank})
    own_mesh = mesh.connect(own)
    received = []
    for kind, descriptors in (("data", own_mesh.data), ("messages", own_mesh.messages)):
        streams = {r: socket.socket(fileno=fd) for r, fd in enumerate(descriptors) if fd >= 0}
        for rank, stream in streams.items():
            values.send(stream, [kind, own.rank, rank])
        received += [values.receive(stream) for stream in streams.values()]
        for stream in streams.values():
            stream.close()
    own.allgather(None)  # no rank may leave before all have finished
    own.close()
    return all_values, own_mesh.lowest, sorted(received)


def expected(rank: int, size: int) -> tuple:
    others = [r for r in range(size) if r != rank]
    received = [[kind, other, rank] for kind in ("data", "messages") for other in others]
    return [{"rank": r} for r in range(size)], [0] * size, received


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_ranks_are_connected_to_each_other(size):
    assert as_threads(met, [(p,) for p in places(size)]) == [expected(r, size) for r in range(size)]


def with_strangers(act, size=3, **rest):
    """Run ranks as threads; the last rank comes after the strangers have acted."""
    ranks = places(size)
    address = ("127.0.0.1", ranks[0].ports[0])

    def last(place):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                socket.create_connection(address).close()
                break
            except OSError:
                time.sleep(0.01)
        kept = act(address, place)
        result = met(place, **rest)
        del kept
        return result

    calls = [(met, p) for p in ranks[:-1]] + [(last, ranks[-1])]
    return as_threads(lambda function, place: function(place), calls)


def send(data: bytes):
    def act(address, place):
        connection = socket.create_connection(address)
        connection.sendall(data)
        return connection

    return act


def flood(address, place):
    return [socket.create_connection(address) for _ in range(300)]


def other_key(address, place):
    hello = handshake.Hello(handshake.EXCHANGE, 1, 3, 0)
    with pytest.raises(handshake.Stranger, match="refuses this rank: the peer has another key"):
        handshake.introduce(socket.create_connection(address), hello, b"guessed")


class Recorder:
    """A connection that records the bytes that are sent."""

    def __init__(self, connection):
        self.connection, self.sent = connection, []

    def sendall(self, data):
        self.sent.append(data)
        self.connection.sendall(data)

    def recv(self, size):
        return self.connection.recv(size)


def replay(address, place):
    """Send again the bytes that a rank with the right key but another job size has sent."""
    key = handshake.key_of(JOB)
    told = Recorder(socket.create_connection(address))
    handshake.introduce(told, handshake.Hello(handshake.EXCHANGE, 1, 4, 0), key)
    again = socket.create_connection(address)
    for data in told.sent:
        again.sendall(data)
    again.settimeout(60)
    # rank 0 sends the hello that every client gets, but no proof of the key
    assert len(again.recv(1000)) == len(told.sent[0])
    with contextlib.suppress(ConnectionResetError):
        assert again.recv(1000) == b""


STRANGERS = {
    "junk": send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "begins well": send(b"hvdlite\0" + b"\xff" * 100),
    "slow": send(b"hvd"),
    "flood": flood,
    "other key": other_key,
    "replay": replay,
}


def test_data_of_a_connection_that_was_just_dropped_raises_no_error(monkeypatch):
    """The selector reports data of a connection; then the acceptor drops this connection."""
    monkeypatch.setattr(acceptor, "MOST_PENDING", 0)
    listener = acceptor.listen(["127.0.0.1"], [0])
    own = handshake.Hello(handshake.EXCHANGE, 0, 2, 0)
    room = acceptor.Acceptor(listener, own, b"key", set(), lambda: None)
    callers = [socket.create_connection(listener.getsockname()) for _ in range(2)]
    room._selector.register(listener, 1)
    room._admit()  # accepts both connections, and drops one, because MOST_PENDING is 0
    assert not room._pending
    (ended,) = [c for c in [callers[0]] if c.recv(1) == b""]
    room._serve(ended)  # handles data that the selector reported before the connection was dropped
    room._close()
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("who", STRANGERS)
def test_connections_of_strangers_only_cause_lines_in_the_log(who, caplog, monkeypatch):
    # no stranger is dropped for being slow, so the test fails if a rank waits until one is dropped
    monkeypatch.setattr(acceptor, "HANDSHAKE_SECONDS", 1e4)
    assert with_strangers(STRANGERS[who]) == [expected(r, 3) for r in range(3)]
    told = [r for r in caplog.records if "turned away" in r.message]
    assert len(told) <= acceptor.MOST_LINES + 1
    # rank 0 may close its port before it recognizes "slow" and "flood" as strangers
    if who not in ("slow", "flood"):
        assert len(told) >= 1


@pytest.mark.parametrize("size, here, missing", [(4, (0, 2), "s 1, 3"), (2, (1,), " 0")])
def test_the_error_on_every_rank_names_the_missing_ranks(size, here, missing):
    ranks = places(size)
    for error in as_threads(met, [(ranks[rank], 2.0) for rank in here]):
        assert isinstance(error, HvdliteError)
        assert f"rank {here[0]} on host " in str(error)
        assert f" s in init() for rank{missing}: " in str(error)
        assert "To wait longer, set HVDLITE_INIT_TIMEOUT_SECONDS" in str(error)


@pytest.mark.parametrize("ended", [0, 1])
def test_the_error_names_a_rank_that_ends_without_init(ended, monkeypatch):
    is_in, let_in = threading.Event(), acceptor.Acceptor._accept_peer

    def noted(self, pending, hello):
        let_in(self, pending, hello)
        is_in.set()

    def run(place):
        if place.rank != ended:
            return met(place)
        if place.rank:
            assert is_in.wait(30)  # rank 2 has connected to rank 0's port
        exchange.report_end(place, 0, 10, set())

    monkeypatch.setattr(acceptor.Acceptor, "_accept_peer", noted)
    raised = as_threads(run, [(place,) for place in places(3)])
    assert raised[ended] is None
    for rank in {0, 1, 2} - {ended}:
        text = f"init(): rank {ended}'s script has ended without calling init()"
        assert str(raised[rank]) == text
        assert (raised[rank].kind, raised[rank].ranks) == ("rank left", (ended,))


def test_the_error_names_a_rank_that_ends_while_others_wait_in_init():
    ranks = places(3)
    raised = as_threads(
        lambda place: exchange.meet(place, 0, 30, set()).close() if place.rank else met(place),
        [(ranks[0],), (ranks[1],)],
    )
    assert isinstance(raised[0], RankFailedError) and raised[0].ranks == (1,)


def test_a_rank_that_expects_another_number_of_ranks_gets_an_error():
    first, second = places(2)
    results = as_threads(met, [(first, 5.0), (second._replace(rank=2, size=3), 5.0)])
    assert "for rank 1: " in str(results[0])
    assert (results[0].kind, results[0].ranks) == ("stalled", (1,))
    assert "rank 2 expects a job of 3 ranks" in str(results[1])


def test_the_users_limit_for_silent_hosts_replaces_the_default(monkeypatch):
    """The default is 120 s."""
    borne = []
    monkeypatch.setenv(limits.LIMIT, "300")
    monkeypatch.setattr(exchange, "bound", lambda _, seconds: borne.append(seconds))
    as_threads(met, [(place,) for place in places(2)])
    assert borne == [300.0, 300.0]


def test_ranks_meet_only_with_the_same_secret(monkeypatch, tmp_path):
    file = tmp_path / "secret"
    file.write_bytes(b"s3cret\n")
    monkeypatch.setenv(handshake.SECRET_FILE, str(file))
    file.chmod(0o640)
    with pytest.raises(ValueError, match="other users may read this file: run `chmod 600`"):
        handshake.key_of(JOB)
    file.chmod(0o600)
    kept = handshake.key_of(JOB)
    monkeypatch.setenv(handshake.SECRET, "s3cret")
    assert handshake.key_of(JOB) == kept
    monkeypatch.setenv(handshake.SECRET, "another")
    assert handshake.key_of(JOB) != kept


def test_the_error_names_two_ranks_that_a_firewall_separates(monkeypatch):
    """Ranks 1 and 2 can't connect to each other, though both are connected to rank 0."""
    calls, reach, over = itertools.count(), mesh.reach, threading.Barrier(3)

    def cut(*arguments):
        # rank 2 already has its two connections to rank 0
        if arguments[2].rank == 2 and next(calls) >= 2:
            while True:
                arguments[-1]()
                time.sleep(0.01)
        return reach(*arguments)

    def run(place):
        own, error = exchange.meet(place, 0, 30, set()), None
        try:
            mesh.close(mesh.connect(own, 3.0))
        except RankFailedError as failed:
            error = failed.ranks
        over.wait(60)
        own.close()
        return own.unreached, error

    monkeypatch.setattr(mesh, "reach", cut)
    first, second, third = as_threads(run, [(place,) for place in places(3)])
    assert first == (set(), None)
    assert (second[0], third[0]) == ({2}, {1})
    assert {second[1], third[1]} & {(2,), (1,)}
