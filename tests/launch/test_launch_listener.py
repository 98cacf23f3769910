"""The launcher's port: connections from outside of the job are dropped and reported once."""

import contextlib
import fcntl
import json
import resource
import selectors
import socket
import sys
import threading
import time

import pytest

from hvdlite.launch import channel, encryption, links, listener
from hvdlite.launch.channel import BadFrame, Channel
from hvdlite.launch.job import Command, Job
from hvdlite.launch.links import Links
from hvdlite.launch.output import Console, Output
from hvdlite.launch.ranks import Rank
from hvdlite.launch.watch import Watch

HELLO = {"rank": 0, "host": "h", "address": "127.0.0.1", "port": 1, "versions": {}, "allowed": [5]}


class Open:
    """A listener and the agents that it has accepted."""

    def __init__(self, key=None):
        self.selector = selectors.DefaultSelector()
        self.let_in = []
        self.listener = listener.Listener(self.selector, ["127.0.0.1"], 2, key, self._welcome)
        self.invitation = self.listener.invitation()
        self.address = ("127.0.0.1", int(self.invitation.addresses[0].split(":")[1]))

    def _welcome(self, link, hello):
        self.let_in.append((link, hello))

    def turn(self, thread=None):
        """Look for events ten times, for up to 0.02 s each, then until the thread has ended."""
        left = 10
        while left > 0 or thread and thread.is_alive():
            left -= 1
            for key, _ in self.selector.select(0.02):
                key.data(key.fileobj)
            self.listener.drop_the_silent()


@pytest.fixture
def opened():
    one = Open()
    yield one
    one.listener.close()


def hello(invitation, **other):
    return json.dumps({**HELLO, "token": invitation.token, **other}).encode()


def is_dropped(sock):
    sock.settimeout(60)
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(1) == b""
    return True


def frame(kind, body):
    return channel._HEAD.pack(kind, len(body)) + body


@pytest.mark.parametrize(
    "sent",
    [
        *(frame(0, b"abcd"), frame(0, b"[1]"), frame(0, b"17"), frame(0, b"\xff\xfe")),
        *(frame(0, b"[" * 9000), frame(0, b'{"token": null}'), b"GET / HTTP/1.1\r\n\r\n"),
        *(b"\0\x7f\xff\xff\xff", frame(channel.OUTPUT, b"\0"), frame(channel.BYE, b"")),
        frame(0, json.dumps({**HELLO, "token": "\ud800"}).encode()),
    ],
)
def test_a_malformed_frame_closes_only_its_senders_connection(opened, sent, capsys):
    good = channel.connect(opened.invitation)
    with socket.create_connection(opened.address) as sock:
        sock.sendall(sent)
        opened.turn()
        assert is_dropped(sock)
    good.send(channel.HELLO, hello(opened.invitation))
    opened.turn()
    assert [(told["host"], told["allowed"]) for _, told in opened.let_in] == [("h", [5])]
    err = capsys.readouterr().err
    assert err.startswith("hvdliterun: dropped a connection from 127.0.0.1: ")
    assert len(err.splitlines()) == 1


def test_a_connection_with_a_wrong_token_is_reported_once(opened, capsys):
    for _ in range(5):
        link = channel.connect(opened.invitation)
        link.send(channel.HELLO, hello(opened.invitation, token="é"))
        opened.turn()
        assert is_dropped(link.sock)
    err = capsys.readouterr().err
    assert err.splitlines() == [
        "hvdliterun: dropped a connection from 127.0.0.1: it does not know the token of this job "
        "(reported once)"
    ]
    assert not opened.let_in


def test_silent_connections_are_dropped_after_a_time_or_if_there_are_too_many(opened, monkeypatch):
    silent = [socket.create_connection(opened.address) for _ in range(3)]
    opened.turn()
    monkeypatch.setattr(listener, "PATIENCE", 0.1)
    opened.turn()
    assert all(is_dropped(sock) for sock in silent)
    monkeypatch.setattr(listener, "PATIENCE", 60)
    opened.listener._most = 2
    silent = [socket.create_connection(opened.address) for _ in range(3)]
    opened.turn()
    assert is_dropped(silent[0])
    newest = socket.create_connection(opened.address)
    silent[1].close()  # the client closes the connection that the listener drops
    opened.turn()
    assert list(opened.listener._strangers)[1].sock.getpeername() == newest.getsockname()


def test_agents_without_a_number_get_free_numbers_after_a_loss():
    """Open MPI may lose an agent (a process that starts a rank) while other agents connect."""
    watch = Watch(
        Job(["t"], 9), Command(["t"], remote=False), Output(Console(sys.stdout, sys.stderr))
    )
    watch._listener = watch._listen()
    watch._links = Links(watch._selector, watch._heard, watch._note_loss, watch._listener.complain)
    invitation = watch._listener.invitation()

    def turn():
        for _ in range(10):
            for key, _ in watch._selector.select(0.02):
                key.data(key.fileobj)

    def connect():
        agent = channel.connect(invitation)
        agent.send(channel.HELLO, hello(invitation, rank=-1))
        turn()
        return agent

    first, second = connect(), connect()
    first.close()
    turn()
    third = connect()
    assert sorted(watch._ranks) == [0, 1]
    for one in (second, third, watch._links, watch._listener):
        one.close()


@contextlib.contextmanager
def descriptors_left(number):
    with socket.socket() as lowest:
        limit = lowest.fileno() + number
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)


@pytest.mark.parametrize("strangers", (0, 2))
def test_a_launcher_that_has_no_descriptor_left_accepts_agents_later(
    opened, strangers, monkeypatch
):
    pauses = []
    monkeypatch.setattr(listener.time, "sleep", pauses.append)
    # The kernel queues these connections until the listener accepts them.
    silent = [socket.create_connection(opened.address) for _ in range(strangers)]
    agent = channel.connect(opened.invitation)
    agent.send(channel.HELLO, hello(opened.invitation))
    with descriptors_left(min(strangers, 1)):
        opened.turn()
        assert (len(opened.let_in), bool(pauses)) == ((1, False) if strangers else (0, True))
    opened.turn()
    assert len(opened.let_in) == 1
    for sock in silent:
        sock.close()


def test_the_launcher_refuses_a_frame_that_is_too_long():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        agent = socket.create_connection(listener.getsockname())
        link = Channel(listener.accept()[0], channel.FROM_AGENTS)
        agent.sendall(channel._HEAD.pack(channel.EXIT, 1 << 20))
        time.sleep(0.1)
        with pytest.raises(BadFrame, match="kind 3 and 1048576 bytes"):
            link.receive()


def test_the_agents_channel_works_with_a_descriptor_above_1023():
    """select() takes no descriptor above 1023."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1024:
        pytest.skip("the limit of open files is too low here")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        agent = socket.create_connection(listener.getsockname())
        high = fcntl.fcntl(agent.fileno(), fcntl.F_DUPFD, 1024)
        with agent, socket.socket(fileno=high) as sock:
            assert not Channel(sock, {}).has_more()


def test_agents_that_are_stopped_share_one_time_limit(monkeypatch):
    """Otherwise each stopped agent would delay the message to the next agent by the whole limit."""
    monkeypatch.setattr(links, "SEND_PATIENCE", 2.0)
    lost = []
    sent_to = Links(selectors.DefaultSelector(), None, lambda rank, _: lost.append(rank), None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stopped = [socket.create_connection(listener.getsockname()) for _ in range(40)]
        for number, _ in enumerate(stopped):
            link = Channel(listener.accept()[0], channel.FROM_AGENTS)
            sent_to.add(Rank(number, link, "h", "127.0.0.1", 0, {}))
        began = time.monotonic()
        sent_to.send_all(channel.DATA, bytes(16 << 20))
    assert len(lost) == 40 and not sent_to
    assert time.monotonic() - began < 60  # one limit of 2 s for each of the 40 agents takes 80 s
    for sock in stopped:
        sock.close()


def test_a_host_is_not_silent_while_its_agent_does_not_read():
    """The kernels of such hosts exchange messages less and less often."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stopped = socket.create_connection(listener.getsockname())
        link = Channel(listener.accept()[0], channel.FROM_AGENTS)
        with contextlib.suppress(BlockingIOError):
            while True:
                link.sock.send(bytes(1 << 20))
        time.sleep(2)
        assert link.silence() == 0
        link.close()
        stopped.close()


@pytest.fixture(scope="module")
def key():
    made = encryption.new_key()
    if made is None:
        pytest.skip("there is no openssl")
    return made


def test_a_connection_between_hosts_is_encrypted(key):
    opened = Open(key)
    links = []
    thread = threading.Thread(target=lambda: links.append(channel.connect(opened.invitation)))
    thread.start()
    opened.turn(thread)
    thread.join()
    (link,) = links
    assert link.sock.version() == "TLSv1.3"
    link.send(channel.HELLO, hello(opened.invitation))
    opened.turn()
    ((mine, _),) = opened.let_in
    big = bytes(range(256)) * 4096
    sender = threading.Thread(target=lambda: mine.send(channel.DATA, big))
    sender.start()
    frames, until = [], time.monotonic() + 60
    while not frames and time.monotonic() < until:
        frames += link.receive()
    sender.join()
    assert frames == [(channel.DATA, big)]
    opened.listener.close()


def test_an_agent_refuses_the_launcher_of_another_job(key):
    opened = Open(key)
    invitation = opened.invitation._replace(fingerprint="0" * 64)
    errors = []

    def connect():
        try:
            channel.connect(invitation)
        except ConnectionError as error:
            errors.append(str(error))

    thread = threading.Thread(target=connect)
    thread.start()
    opened.turn(thread)
    thread.join()
    assert "another job" in errors[0]
    assert not opened.let_in
    opened.listener.close()


def test_an_encrypted_port_refuses_plain_bytes(key, capsys):
    opened = Open(key)
    with socket.create_connection(opened.address) as sock:
        sock.sendall(channel._HEAD.pack(0, 4) + b"abcd" * 10)
        opened.turn()
        assert is_dropped(sock)
    assert "not a TLS handshake" in capsys.readouterr().err
    opened.listener.close()


def test_without_openssl_there_is_no_encryption_key(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert encryption.new_key() is None


def test_the_launcher_listens_only_on_addresses_that_ranks_use():
    assert listener.listening_addresses(False, [], []) == ["127.0.0.1"]
    assert listener.listening_addresses(True, [], ["localhost"]) == ["127.0.0.1"]
    everywhere = listener.listening_addresses(True, [], ["a-name-that-only-ssh-knows"])
    assert everywhere == listener.listening_addresses(True, [], [])
    assert "0.0.0.0" not in everywhere
