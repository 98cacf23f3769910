"""Call the function of this file that the first argument names, with the other arguments."""

import hashlib
import sys

import jobs
import numpy as np

import hvdlite as hvd

ROWS, COLUMNS, ROUNDS = 6000, 12, 20


def made_data():
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.float32)


def xgboost_model(x, y):
    import xgboost as xgb

    parameters = {"objective": "binary:logistic", "nthread": 1, "tree_method": "hist"}
    with hvd.xgboost.communicator():
        ranks = [xgb.collective.get_rank(), xgb.collective.get_world_size()]
        booster = xgb.train(parameters, xgb.QuantileDMatrix(x, y), ROUNDS)
    return ranks, bytes(booster.save_raw("json")), lambda x: booster.predict(xgb.DMatrix(x))


def lightgbm_model(x, y):
    import lightgbm as lgb

    parameters = {"objective": "binary", "num_threads": 1, "verbosity": -1, "deterministic": True}
    parameters = {**parameters, **hvd.lightgbm.network_parameters()}
    booster = lgb.train(parameters, lgb.Dataset(x, y), ROUNDS)
    own = f"[local_listen_port: {parameters['local_listen_port']}]"  # differs between ranks
    machines = parameters["machines"].split(",")
    ranks = [
        [m.endswith(f":{parameters['local_listen_port']}") for m in machines].index(True),
        parameters["num_machines"],
    ]
    return ranks, booster.model_to_string().replace(own, "").encode(), booster.predict


def train(library: str) -> None:
    """Train on this rank's part of synthetic data."""
    x, y = made_data()
    ranks, model, predict = globals()[f"{library}_model"](
        x[rank :: hvd.size()], y[rank :: hvd.size()]
    )
    p = np.clip(predict(x).astype(np.float64), 1e-7, 1 - 1e-7)
    loss = float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))
    digest = hashlib.sha256(model).hexdigest()
    jobs.report(rank, ranks=ranks, model=digest, loss=loss, host=hvd.cross_rank())


def fail(failing: str) -> None:
    """Raise on one rank inside XGBoost's communicator, while the other ranks train."""
    import xgboost as xgb

    with hvd.xgboost.communicator():
        if rank == int(failing):
            raise KeyError("label")
        xgb.train({}, xgb.DMatrix(np.ones((10, 2)), np.ones(10)), 2)


def fail_before_finalize(failing: str) -> None:
    """Raise on one rank between init and finalize of rabit, while the other ranks train."""
    import xgboost as xgb

    from hvdlite.xgboost import rabit

    rabit.init()
    try:
        if rank == int(failing):
            raise KeyError("label")
        xgb.train({}, xgb.DMatrix(np.ones((10, 2)), np.ones(10)), 2)
    finally:
        rabit.finalize()


def libsvm(*files: str) -> None:
    """Load this rank's part of each file."""
    for number, path in enumerate(files):
        try:
            data, labels = hvd.xgboost.load_libsvm(path)
        except ValueError as error:
            jobs.report(rank, **{f"error{number}": str(error)})
            continue
        entries = [row.tolist() for row in data.toarray()]
        jobs.report(rank, **{f"rows{number}": entries, f"labels{number}": labels.tolist()})


def rabit() -> None:
    """Run the calls of a script for the old ``xgboost.rabit``; only its import is changed."""
    from hvdlite.xgboost import rabit

    rabit.init()
    rank, size = rabit.get_rank(), rabit.get_world_size()
    word = rabit.broadcast({"word": "from rank 0"} if rank == 0 else None, 0)
    ones = np.zeros(3)
    total = rabit.allreduce(ones, rabit.Op.SUM, lambda data: data.fill(rank + 1))
    most = rabit.allreduce(np.array([rank]), rabit.Op.MAX)
    rabit.tracker_print(f"printed by rank {rank}\n")
    rabit.finalize()
    with rabit.RabitContext():
        again = rabit.get_rank()
    jobs.report(
        rank, size=size, word=word, total=total.tolist(), most=most.tolist(), again=again,
        left=not rabit.is_distributed(), host=bool(rabit.get_processor_name()),
    )  # fmt: skip


what, *given = sys.argv[1:]
if what != "rabit":
    hvd.init()
    rank = hvd.rank()
globals()[what](*given)
