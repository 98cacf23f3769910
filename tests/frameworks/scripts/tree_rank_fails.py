"""A rank raises in XGBoost's block, where the others train; argument: which rank."""

import sys

import numpy as np
import xgboost as xgb

import hvdlite as hvd

hvd.init()
with hvd.xgboost.communicator():
    if hvd.rank() == int(sys.argv[1]):
        raise KeyError("label")
    xgb.train({}, xgb.DMatrix(np.ones((10, 2)), np.ones(10)), 2)
