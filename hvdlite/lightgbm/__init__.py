"""hvdlite for LightGBM: parameters that make LightGBM train on all ranks of the job."""

from typing import Any, Dict

from hvdlite.core import places, topology
from hvdlite.core.addresses import addresses_of_ranks, joined
from hvdlite.core.native import HvdliteError
from hvdlite.core.objects import allgather_object


def network_parameters(tree_learner: str = "data") -> Dict[str, Any]:
    """Return LightGBM's parameters for one training on all ranks. Collective::

        data = lightgbm.Dataset(part_of_x, part_of_y)  # this rank's rows
        booster = lightgbm.train({**parameters, **hvd.lightgbm.network_parameters()}, data)

    Call the function before each training. A process has the same rank in LightGBM and in hvdlite.
    LightGBM sends histograms over its own connections.

    :param tree_learner: "data", "voting" or "feature", as in LightGBM.
    :raises ValueError: ``hvdlite.init()`` was not called.
    :raises hvdlite.HvdliteError: a rank has left, or a rank's host has no IPv4 address.
    """
    port, addresses = places.free_port(), addresses_of_ranks()
    for rank, address in enumerate(addresses):
        if ":" in address:
            raise HvdliteError(
                f"hvdlite.lightgbm: rank {rank}'s host has the address {address}: expected an IPv4 "
                "address, because LightGBM knows only IPv4: give the host one, or use XGBoost"
            )
    machines = map(joined, addresses, allgather_object(port, "lightgbm.ports"))
    return {
        "machines": ",".join(machines),
        "num_machines": topology.size(),
        "local_listen_port": port,
        "tree_learner": tree_learner,
        "pre_partition": True,  # each rank has its own rows already
    }
