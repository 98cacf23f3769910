"""The exceptions of elastic training, with Horovod's names."""

from hvdlite._native import HvdliteError

HorovodInternalError = HvdliteError


class HostsUpdatedInterrupt(RuntimeError):
    """A name for Horovod's scripts: ranks can't join a running job, so nothing raises it.

    :param skip_sync: nothing needs to be sent to the ranks that are there.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts have changed")
        self.skip_sync = skip_sync
