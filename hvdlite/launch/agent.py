"""The agent of one rank: a backend starts the agent, which runs the user's program.

    python -m hvdlite.launch.agent -- python train.py

The agent sends the program's output and exit code to the launcher. If the launcher sends STOP or
disappears, or if the backend ends the job, the agent ends the program and its children. Without a
launcher (HVDLITE_LAUNCHER is not set) the agent replaces itself with the program (exec).
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys

from hvdlite.core.launchers import OPEN_MPI, PMI, PMIX, SRUN
from hvdlite.launch import channel, environment
from hvdlite.launch.supervision import Agent
from hvdlite.machine import files, probe

RANK_VARIABLES = (environment.RANK, *(each.rank for each in (OPEN_MPI, PMIX, PMI, SRUN)))
# This variable holds the path of hvdlite.run's pickled call; the result is at the path + ".result".
DATA_VARIABLE = "HVDLITE_TASK"


def main() -> int:
    command = sys.argv[sys.argv.index("--") + 1 :]
    where = os.environ.get(channel.VARIABLE)
    if where is None:
        os.execvp(command[0], command)
    invitation = channel.invitation_of(where)
    try:
        link = channel.connect(invitation)
    except ConnectionError as error:
        sys.exit(
            f"hvdliterun: {socket.gethostname()} cannot reach the launcher ({error}): select a "
            "network that all hosts share with --network-interfaces"
        )
    try:
        return _run(command, link, invitation.token)
    except (channel.BadFrame, channel.ChannelClosed):
        return 1


def _run(command: list[str], link: channel.Channel, token: str) -> int:
    link.send(channel.HELLO, json.dumps(introduction(link.sock, token)).encode())
    assignment, task = _wait_for_start(link)
    agent = Agent(link)
    if task is None:
        return agent.leave(agent.run(command, assignment))
    import tempfile  # here, because only hvdlite.run needs it

    with tempfile.TemporaryDirectory(prefix="hvdlite-") as folder:
        assignment["env"][DATA_VARIABLE] = path = os.path.join(folder, "task")
        with files.create(path, "xb") as file:
            file.write(task)
        return agent.leave(agent.send_result(f"{path}.result", agent.run(command, assignment)))


def introduction(sock: socket.socket, token: str) -> dict[str, object]:
    """Return the facts that the launcher checks before it starts the job."""
    rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "-1")
    with socket.socket() as spare:
        spare.bind(("", 0))
        port = spare.getsockname()[1]
    return {
        "token": token,
        "rank": int(rank),
        "host": socket.gethostname(),
        "address": sock.getsockname()[0],
        "port": port,
        "versions": probe.versions(),
        "allowed": sorted(os.sched_getaffinity(0)),
    }


def _wait_for_start(link: channel.Channel) -> tuple[dict, bytes | None]:
    data = None
    while True:
        select.select([link.sock], [], [])
        for kind, body in link.receive():
            if kind == channel.DATA:
                data = body
            elif kind == channel.START:
                return json.loads(body), data
            elif kind == channel.STOP:
                raise channel.ChannelClosed


if __name__ == "__main__":
    os._exit(main())  # skips Python's shutdown, which takes 3 ms
