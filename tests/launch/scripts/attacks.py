"""Rank 0 sends its launcher what no agent sends; then all go on as if nothing had happened."""

import os
import socket
import time
from pathlib import Path

import numpy as np

import hvdlite as hvd
from hvdlite.launch import channel

hvd.init()
if hvd.rank() == 0:
    environment = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    start = f"{channel.VARIABLE}=".encode()
    invitation = channel.invitation_of(next(x for x in environment if x.startswith(start)).decode())
    address, port = invitation.addresses[0].rsplit(":", 1)
    for message in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(300), b"\0\x7f\xff\xff\xff", b"\0"):
        with socket.create_connection((address, int(port))) as sock:
            sock.sendall(message)
    silent = socket.create_connection((address, int(port)))
    print("listens at", address)
    time.sleep(0.5)
print(hvd.rank(), hvd.numpy.allreduce(np.ones(1), op=hvd.Sum)[0])
if hvd.rank() == 0 and os.fork() == 0:  # the silent connection outlives the job
    os.setsid()
    for descriptor in range(3):
        os.close(descriptor)
    time.sleep(15)
    os._exit(0)
