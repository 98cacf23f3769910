"""Trains trees on this rank's part of made data and reports them; argument: the library."""

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
    own = f"[local_listen_port: {parameters['local_listen_port']}]"  # all else is the same
    machines = parameters["machines"].split(",")
    ranks = [
        [m.endswith(f":{parameters['local_listen_port']}") for m in machines].index(True),
        parameters["num_machines"],
    ]
    return ranks, booster.model_to_string().replace(own, "").encode(), booster.predict


hvd.init()
rank, size = hvd.rank(), hvd.size()
x, y = made_data()
ranks, model, predict = globals()[f"{sys.argv[1]}_model"](x[rank::size], y[rank::size])
p = np.clip(predict(x).astype(np.float64), 1e-7, 1 - 1e-7)
loss = float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))
digest = hashlib.sha256(model).hexdigest()
jobs.report(rank, ranks=ranks, model=digest, loss=loss, host=hvd.cross_rank())
