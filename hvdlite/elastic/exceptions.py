"""The exceptions of elastic training, with Horovod's names."""

from hvdlite._native import HvdliteError

HorovodInternalError = HvdliteError


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks wait to join: :func:`hvdlite.elastic.run` takes them in and calls the function again.

    ``State.commit`` and ``State.check_host_updates`` raise it, on every rank at the same call.

    :param skip_sync: nothing needs to be sent to the ranks that are there.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("ranks wait to join")
        self.skip_sync = skip_sync
