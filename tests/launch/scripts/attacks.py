"""Rank 0 sends its launcher what no agent sends; then all go on as if nothing had happened."""

import os
import socket
import struct
import time
from pathlib import Path

import numpy as np

import hvdlite as hvd
from hvdlite.launch import channel

FRAME = struct.Struct(">BI")
BODIES = [b"abcd", b"[1]", b"17", b"\xff\xfe", b"[" * 9000, b"{}", b'{"token": 3}', b'"x"']


def frame(kind: int, body: bytes) -> bytes:
    return FRAME.pack(kind, len(body)) + body


def attack(address: str, port: int) -> socket.socket:
    messages = [*(frame(channel.HELLO, body) for body in BODIES), os.urandom(300)]
    messages += [frame(kind, b"1234") for kind in (*range(1, 8), 255)]
    messages += [FRAME.pack(channel.HELLO, 1 << 31), b"GET / HTTP/1.1\r\n\r\n", b"\0"]
    for message in messages:
        with socket.create_connection((address, port)) as sock:
            sock.sendall(message)
    return socket.create_connection((address, port))  # and says nothing


hvd.init()
if hvd.rank() == 0:
    environment = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    start = f"{channel.VARIABLE}=".encode()
    invitation = channel.invitation_of(next(x for x in environment if x.startswith(start)).decode())
    address, port = invitation.addresses[0].rsplit(":", 1)
    silent = attack(address, int(port))
    print("listens at", address)
    time.sleep(0.5)
print(hvd.rank(), hvd.numpy.allreduce(np.ones(1), op=hvd.Sum)[0])
if hvd.rank() == 0 and os.fork() == 0:  # the silent connection outlives the job
    os.setsid()
    for descriptor in range(3):
        os.close(descriptor)
    time.sleep(15)
    os._exit(0)
