"""Which ranks remain after deaths and lost hosts: rerendezvous, with ranks as threads."""

import contextlib
import itertools
import re
import socket
import threading
import time

import pytest
from threads import as_threads

from hvdlite.bootstrap import acceptor, arrivals, handshake, host_watch, mesh
from hvdlite.core import limits
from hvdlite.core.native import RankFailedError
from hvdlite.membership import lives, open_port, rerendezvous


def pair():
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


def lives_of(numbers) -> dict:
    """Return, by number, each process's ``Lives`` object, which knows which processes live."""
    found = {number: lives.Lives() for number in numbers}
    for one, other in itertools.combinations(numbers, 2):
        near, far = pair()
        found[one].add(other, near)
        found[other].add(one, far)
    return found


def called(
    numbers, votes=None, lost=(), dead=(), new=(), stopped=(), mute=(), wrong=(), squatted=(),
    late=(),
) -> list:  # fmt: skip
    """Return the results of a rerendezvous on all ranks that take part.

    :param dead: ranks that have ended.
    :param mute: ranks that stop after their proof of the key.
    :param wrong: pairs (a, b): rank a believes that rank b is lost.
    :param squatted: dead ranks at whose port a stranger accepts connections and sends nothing.
    :param late: ranks that come when all other ranks have ended.
    """
    living, ports = lives_of(set(numbers) - set(new)), []
    listeners = {number: acceptor.listen(["127.0.0.1"], [0]) for number in numbers}
    addresses = {number: listener.getsockname() for number, listener in listeners.items()}
    for number in dead:
        if number not in squatted:
            listeners[number].close()
        living.get(number, lives.Lives()).close()

    def meet(number: int):
        old = {n: at for n, at in addresses.items() if n not in new}
        coming = {} if number in new else {n: addresses[n] for n in new}
        if number in mute:
            with socket.create_connection(addresses[min(old)]) as leader:
                hello = handshake.Hello(handshake.NEW, number, 0, 0)
                handshake.introduce(leader, hello, b"key")
                return leader.recv(1)
        silent = {*lost, *(b for a, b in wrong if a == number)} if number not in late else set()
        own = living.get(number, lives.Lives())
        port = open_port.OpenPort(listeners[number], number, b"key", len(numbers))
        ports.append(port)
        about = rerendezvous.Known(old, coming, own, lambda: silent, 1.0)
        call = rerendezvous.Rerendezvous(number, port, b"key", about)
        met = call.meet((votes or {}).get(number, 0), number, 0)  # epoch: differs by rank
        for connection in met.connections.values():
            connection.close()
        return met[:3]

    there = [(number,) for number in numbers if number not in (*dead, *lost, *stopped, *late)]
    try:
        found = as_threads(meet, there)
        for each in [*ports, *(living[number] for (number,) in there if late)]:
            each.close()
        return found + as_threads(meet, [(number,) for number in late])
    finally:
        for each in (*ports, *living.values(), *(listeners[n] for n in (*dead, *lost, *stopped))):
            each.close()


def test_a_rerendezvous_gives_the_same_result_on_all_remaining_ranks(monkeypatch):
    monkeypatch.setattr(rerendezvous, "REPLACEMENT_SECONDS", 2.0)
    assert called([0, 2, 3], votes={0: 3, 2: 1, 3: 5}) == 3 * [(1, 4, [0, 2, 3])]
    assert called([0, 2, 3], votes={2: 1, 3: 1}, dead=[0]) == 2 * [(0, 4, [2, 3])]
    assert called([0, 1, 2, 3], dead=[1, 2], votes={0: 1, 3: 1}) == 2 * [(0, 4, [0, 3])]
    assert called([0, 1, 2, 3], lost=[2, 3]) == 2 * [(0, 2, [0, 1])]
    assert called([0, 2, 5], new=[5], votes={0: 2, 2: 2}) == 3 * [(2, 6, [0, 2, 5])]
    assert called([0, 2, 5, 6], new=[5, 6], dead=[0, 5]) == 2 * [(0, 7, [2, 6])]
    assert called([0, 1, 5], new=[5], dead=[5], votes={0: 2, 1: 2}) == 2 * [(2, 2, [0, 1])]
    assert str(*called([0, 5], new=[5], dead=[0])) == "the other ranks have ended"


def test_a_stranger_at_the_port_of_a_dead_rank_does_not_count_as_that_rank():
    """Otherwise the other ranks would wait for the dead rank."""
    assert called([0, 1, 2], dead=[2], squatted=[2]) == 2 * [(0, 2, [0, 1])]
    assert called([0, 1, 2], dead=[0], squatted=[0]) == 2 * [(0, 3, [1, 2])]


@pytest.fixture
def unreachable():
    """Yield a port to which connecting never completes, as on a host without power."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    # this connection fills the queue of the listener
    with listener, socket.create_connection(listener.getsockname()):
        yield listener.getsockname()


def test_a_rank_learns_of_a_lost_host_while_it_connects(unreachable, monkeypatch):
    """Connecting to a host without power must not delay the rerendezvous."""
    for module in rerendezvous, acceptor:
        monkeypatch.setattr(module, "CONNECT_SECONDS", 1e4)
    known, looks = lives_of([0, 1]), itertools.count()

    def lost():
        if next(looks) == 5:
            known[0].close()
        return set()

    port = open_port.OpenPort(acceptor.listen(["127.0.0.1"], [0]), 1, b"key", 2)
    addresses = {0: unreachable, 1: port.address}
    about = rerendezvous.Known(addresses, {}, known[1], lost, 60.0)
    call = rerendezvous.Rerendezvous(1, port, b"key", about)
    assert call.meet(0, 0, 0).members == [1]
    port.close()
    known[1].close()

    def poll():
        if next(looks) > 20:
            raise arrivals.ended(0)

    own = handshake.Hello(handshake.LIFE, 1, 0, 0)
    with pytest.raises(RankFailedError):
        acceptor.reach(*unreachable[:1], unreachable[1:], own, b"key", poll)


def test_strangers_at_an_open_port_do_not_keep_ranks_out():
    """If strangers could fill the queue of a computing rank, other ranks would report it lost."""
    port = open_port.OpenPort(acceptor.listen(["127.0.0.1"], [0]), 0, b"key", 2)
    strangers = [socket.create_connection(port.address, timeout=30) for _ in range(200)]
    for stranger, junk in zip(
        strangers, itertools.cycle([b"", b"GET /", b"hvdlite\0", bytes(100)])
    ):
        with contextlib.suppress(OSError):  # the port may already have refused the stranger
            stranger.sendall(junk)
    with socket.create_connection(port.address, timeout=30) as peer:
        handshake.introduce(peer, handshake.Hello(handshake.READY, 1, 0, 0), b"key")
        while not port.present():
            port.wait_for_one(1)
        assert port.present() == {(handshake.READY, 1)}
        port.take((handshake.READY, 1)).close()
    for stranger in strangers:
        stranger.close()
    port.close()


def test_a_process_counts_as_dead_only_when_it_has_ended():
    known = lives_of([0, 1])
    states = set()
    while states != {lives.UNKNOWN, lives.ANSWERS}:
        states.add(known[0].state(1, 10))
    assert states == {lives.UNKNOWN, lives.ANSWERS}
    assert known[0].state(2, 60) == lives.UNKNOWN
    known[1].close()
    while (state := known[0].state(1, 60)) != lives.DEAD:
        assert state in states
    known[0].close()


def test_a_rerendezvous_does_not_wait_for_a_stopped_replacement(monkeypatch):
    monkeypatch.setattr(rerendezvous, "REPLACEMENT_SECONDS", 2.0)
    found = called([0, 1, 5, 6], new=[5, 6], stopped=[5], votes={0: 2, 1: 2})
    assert found == 3 * [(2, 7, [0, 1, 6])]
    found = called([0, 1, 5, 6], new=[5, 6], mute=[5], votes={0: 2, 1: 2})
    assert found == [(2, 7, [0, 1, 6])] * 2 + [b""] + [(2, 7, [0, 1, 6])]


@pytest.mark.parametrize("alarm", [(1, 0), (2, 0), (3, 0)])
def test_a_false_alarm_of_the_host_watch_on_one_rank_excludes_no_rank(alarm):
    assert called([0, 1, 2, 3], wrong=[alarm]) == 4 * [(0, 4, [0, 1, 2, 3])]


@pytest.mark.parametrize("pair", [(1, 2), (1, 3), (0, 3)])
def test_if_two_ranks_cannot_reach_each_other_one_of_them_leaves(pair):
    """The other ranks reach both. If both stayed, all ranks would wait until these two connect."""
    found, stay = called([0, 1, 2, 3], wrong=[pair, pair[::-1]]), [0, 1, 2, 3]
    goes = stay.pop(max(pair))
    assert re.search("the other ranks (have trained|train) on", str(found.pop(goes)))
    assert found == 3 * [(0, max(stay) + 1, stay)]


def test_the_half_without_rank_0_ends_if_the_network_between_hosts_splits():
    for error in called([0, 1, 2, 3], lost=[0, 2]):
        assert "2 ranks are on this side, and 2 ranks do not answer" in str(error)


def test_a_rank_that_connects_after_the_other_ranks_have_ended_gets_an_error(monkeypatch):
    """The late rank must not take the other ranks for dead and train on alone."""
    *others, late = called([0, 1, 2], lost=[1], late=[1])
    assert others == 2 * [(0, 3, [0, 2])]
    assert "the other ranks have trained on or ended" in str(late)
    monkeypatch.setenv(limits.PATIENCE, "2")
    for stopped in 0, 1:
        *others, late = called([0, 1, 2], late=[stopped])
        assert all("has waited 2 s for the ranks at" in str(error) for error in others)
        assert "the other ranks have trained on or ended" in str(late)


@pytest.fixture
def watching():
    """Yield a HostWatch (the code that detects lost hosts) of a host that answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    streams = mesh.Mesh([0, 1], [], [], [-1, near.detach()], ["a", "b"])
    watching = host_watch.HostWatch(0, streams, lambda *_: None)
    yield watching
    watching.close()
    far.close()
    listener.close()


def test_a_shorter_timeout_for_lost_hosts_applies_immediately(monkeypatch, watching):
    """A longer timeout before makes the watching thread pause; the new timeout ends the pause."""
    looked = threading.Event()
    monkeypatch.setattr(host_watch.HostWatch, "_look_at", lambda *_: looked.set())
    monkeypatch.setattr(host_watch, "_LONGEST_PAUSE", 1e4)
    watching.set_limit(1e6)
    assert looked.wait(60)  # now the thread that watches the host pauses
    looked.clear()
    watching.set_limit(0.1)
    assert looked.wait(60)


def test_a_rank_that_was_paused_does_not_declare_a_host_lost(monkeypatch, watching):
    """The watching thread did not run: the rank had no core, or the script kept Python's GIL."""
    # The n-th measurement takes the n-th number of seconds and returns this number. 0.5 s is longer
    # than the limit.
    silences = [0.0, 0.0, 0.0, 0.0, 0.5, 0.0]

    def silence(_) -> float:
        time.sleep(silences[0])
        return silences.pop(0) if silences[1:] else silences[0]

    monkeypatch.setattr(host_watch, "_silence", silence)
    watching.set_limit(0.4)
    while silences[1:]:
        time.sleep(0.01)
    assert not watching.lost
