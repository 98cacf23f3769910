"""The exceptions of elastic training, with Horovod's names."""

from hvdlite.core.native import HvdliteError

HorovodInternalError = HvdliteError


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks come into the job: ``commit`` raises it on all ranks, and ``run`` goes on with them.

    :param skip_sync: nothing needs to be sent to the ranks that are there.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts have changed")
        self.skip_sync = skip_sync
