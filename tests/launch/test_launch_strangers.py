"""Another user of this host connects to the ports of a job or takes them; the job trains on."""

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

from launching import TIMEOUT, listeners, start

NOBODY = 65534
JUNK = [b"", b"GET / HTTP/1.0\r\n\r\n", b"hvdlite\0", bytes(60), os.urandom(300)]

PROGRAM = """if True:
    import os, sys, time
    from pathlib import Path
    import numpy as np
    import hvdlite as hvd
    folder = Path(sys.argv[1])
    hvd.init()
    @hvd.elastic.run
    def train(state):
        while not state.ends:
            total = hvd.numpy.allreduce(np.ones(3), name="sum", op=hvd.Sum)
            assert (total == hvd.size()).all()
            go = hvd.size() == 3 and state.squatted
            state.ends = bool(hvd.numpy.allreduce(np.array([int(go)]), name="go", op=hvd.Min)[0])
            state.squatted = hvd.broadcast_object((folder / "squatted").exists(), 0)
            state.commit()
            time.sleep(0.005)
    (folder / f"pid.{os.environ['HVDLITE_AGENT_RANK']}").write_text(str(os.getpid()))
    train(hvd.elastic.ObjectState(ends=False, squatted=False))
    print("ended", hvd.size())
"""


@contextlib.contextmanager
def stranger(act):
    """Run a function in a child process until the block ends, as user nobody if root runs this."""
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            act()
        os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def bother(ports):
    """Connect to all ports again and again, and send data that no rank sends, or nothing."""
    kept = []
    for turn in range(1 << 30):
        for port in ports:
            with contextlib.suppress(OSError):
                kept.append(socket.create_connection(("127.0.0.1", port), timeout=1))
                kept[-1].sendall(JUNK[turn % len(JUNK)])
        for _ in kept[300:]:
            kept.pop(0).close()


def squat(port, told):
    """Listen at the port of a rank as soon as this rank has ended."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while not bound(sock, port):
            time.sleep(0.001)
        sock.listen(100)
        os.write(told, b"!")
        signal.pause()


def bound(sock, port):
    with contextlib.suppress(OSError):
        sock.bind(("127.0.0.1", port))
        return True
    return False


def test_a_job_trains_on_though_another_user_floods_and_takes_its_ports(tmp_path):
    """The ranks must not take the other user's process for the dead rank and wait for it."""
    program = [sys.executable, "-c", PROGRAM, tmp_path]
    job = start("--transport", "tcp", "--elastic", "-n", 3, *program)
    pids = [Path(tmp_path, f"pid.{rank}") for rank in range(3)]
    until = time.monotonic() + TIMEOUT
    while not all(pid.exists() and pid.read_text() for pid in pids):
        assert time.monotonic() < until and job.poll() is None
        time.sleep(0.01)
    ranks = [int(pid.read_text()) for pid in pids]
    ports = [listeners([rank]) for rank in ranks]
    assert all(len(each) == 1 for each in ports)
    ((squatted,),) = ports[2:]
    listen, told = os.pipe()
    everywhere = {port for each in (*ports, listeners([job.pid])) for port in each}
    with stranger(lambda: bother(sorted(everywhere))), stranger(lambda: squat(squatted, told)):
        os.kill(ranks[2], signal.SIGKILL)
        assert os.read(listen, 1) == b"!"
        (tmp_path / "squatted").touch()
        out, err = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 0, err
    assert out.count("ended 3") == 3, out + err
