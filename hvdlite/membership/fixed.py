"""A job over MPI, which ends with any of its ranks."""

from hvdlite.bootstrap.mpi_world import refuse_elastic
from hvdlite.core.membership import Membership
from hvdlite.core.world import World


class FixedMembership(Membership):
    """The processes that MPI has started. Only a single process may call hvd.elastic.run."""

    def begin(self, world: World) -> None:
        refuse_elastic()
