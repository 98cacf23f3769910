"""hvdlite for torchft: a process group whose ranks change while it trains.

``torchft.Manager(pg=ProcessGroupHvdlite(timeout=timedelta(seconds=1)), ...)`` uses this group.
"""

import torch
from torch.distributed import ProcessGroup, Store
from torchft.process_group import ProcessGroupWrapper

from hvdlite.torch.backend import groups, reconfigure


class ProcessGroupHvdlite(ProcessGroupWrapper):
    """torchft's process group over hvdlite, in place of torchft's ``ProcessGroupGloo``.

    For each quorum, the process leaves its job and joins a new job. So a process may have only one
    such group, and must not call ``hvd.init()`` before the group is made.
    """

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ProcessGroup:
        reconfigure.join(store, rank, world_size, self._timeout)
        backend = groups.create(store, rank, world_size, self._timeout)
        backend._set_sequence_number_for_group()
        group = ProcessGroup(store, rank, world_size)
        group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        kind = ProcessGroup.BackendType.CUSTOM
        group._register_backend(torch.device("cpu"), kind, backend)
        return group

    def getBackendName(self) -> str:
        return "hvdlite"
