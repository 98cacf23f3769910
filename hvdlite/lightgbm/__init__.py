"""hvdlite for LightGBM: the parameters with which it trains on all ranks of the job."""

from typing import Any, Dict

from hvdlite.core import start, topology
from hvdlite.core.addresses import addresses_of_ranks
from hvdlite.core.objects import allgather_object


def network_parameters(tree_learner: str = "data") -> Dict[str, Any]:
    """Return LightGBM's parameters for training on all ranks. Collective; before each training::

        data = lightgbm.Dataset(part_of_x, part_of_y)  # this rank's rows
        booster = lightgbm.train({**parameters, **hvd.lightgbm.network_parameters()}, data)

    LightGBM's ranks are hvdlite's. LightGBM's histograms go through its own connections.

    :param tree_learner: "data", "voting" or "feature", as in LightGBM.
    :raises ValueError: before ``init()``.
    :raises hvdlite.HvdliteError: a rank has left.
    """
    port = start.free_port()
    ports = allgather_object(port, "lightgbm.ports")
    machines = [f"{host}:{port}" for host, port in zip(addresses_of_ranks(), ports)]
    return {
        "machines": ",".join(machines),
        "num_machines": topology.size(),
        "local_listen_port": port,
        "tree_learner": tree_learner,
        "pre_partition": True,  # True, because each rank has its own rows
    }
