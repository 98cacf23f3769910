"""Loads this rank's part of a file, and says what was in it; arguments: the files."""

import sys

import jobs

import hvdlite as hvd

hvd.init()
for number, path in enumerate(sys.argv[1:]):
    try:
        data, labels = hvd.xgboost.load_libsvm(path)
    except ValueError as error:
        jobs.report(hvd.rank(), **{f"error{number}": str(error)})
        continue
    entries = [row.tolist() for row in data.toarray()]
    jobs.report(hvd.rank(), **{f"rows{number}": entries, f"labels{number}": labels.tolist()})
