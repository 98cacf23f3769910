"""The connections to the agents of a job's ranks."""

import selectors
import time
from typing import Callable, Dict

from hvdlite.launch import channel
from hvdlite.launch.channel import BadFrame, Channel, ChannelClosed
from hvdlite.launch.ranks import Rank

SEND_PATIENCE = 10.0  # seconds in which agents must read what the launcher sends


class Links:
    """Sends frames to agents, and passes the frames of agents to ``heard``.

    :param heard: called with each frame; raises BadFrame if the rank may not send that frame now.
    :param lost: called when an agent has ended or is lost, with its host's seconds of silence.
    :param complain: called with the connection and the reason if an agent sends a wrong frame.
    """

    def __init__(
        self, selector: selectors.BaseSelector, heard: Callable[[Rank, int, bytes], None],
        lost: Callable[[Rank, float], None], complain: Callable[[Channel, str], None],
    ):  # fmt: skip
        self._selector, self._heard = selector, heard
        self._lost, self._complain = lost, complain
        self._ranks: Dict[Channel, Rank] = {}

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def add(self, rank: Rank) -> None:
        self._ranks[rank.link] = rank
        self._selector.register(rank.link.sock, selectors.EVENT_READ, lambda _: self._receive(rank))

    def send(
        self, link: Channel, kind: int, data: bytes = b"", patience: float = SEND_PATIENCE
    ) -> None:
        try:
            link.send(kind, data, patience)
        except ChannelClosed:
            # data that has arrived must be read before the agent counts as lost
            if not link.has_more():
                self.lose(link)

    def send_all(self, kind: int, data: bytes = b"") -> None:
        """Send a frame to all agents. Stopped agents together get SEND_PATIENCE to read the frame.

        After this time, the frame must fit into the buffer of an agent's socket.
        """
        until = time.monotonic() + SEND_PATIENCE
        for link in list(self._ranks):
            # The connection may have been closed meanwhile. A silent host gets no LOOK, because the
            # kernel would resend the frame at longer and longer intervals.
            if link in self._ranks and (kind != channel.LOOK or link.silence() < channel.LATE):
                self.send(link, kind, data, until - time.monotonic())

    def lose(self, link: Channel, silence: float = 0) -> None:
        """Close the connection, unless it is closed already."""
        if link in self._ranks:
            self._selector.unregister(link.sock)
            link.close()
            self._lost(self._ranks.pop(link), silence)

    def lose_all(self, unread: bool) -> None:
        """Close the connections.

        :param unread: True: also close connections with data that has not been read.
        """
        for link in list(self._ranks):
            if unread or not link.has_more():
                self.lose(link)

    def close(self) -> None:
        for link in self._ranks:
            link.close()

    def _receive(self, rank: Rank) -> None:
        try:
            for kind, data in rank.link.receive():
                self._heard(rank, kind, data)
        except BadFrame as why:
            self._complain(rank.link, f"rank {rank.label} sent unexpected data: {why}")
            self.lose(rank.link)
        except ChannelClosed:
            self.lose(rank.link)
