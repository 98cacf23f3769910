"""Rank 0 is killed while it writes its second checkpoint; argv: folder, and "save" or "go on"."""

import os
import signal
import sys
from pathlib import Path

import hvdlite.mxnet as hvd  # noqa: F401

# isort: split
from jobs import report
from mxnet import gluon

folder = Path(sys.argv[1])


class Deadly(gluon.nn.Dense):
    """A layer that kills its process when the file of the second checkpoint is half written."""

    def save_parameters(self, filename, **options):
        super().save_parameters(filename, **options)
        if (folder / "00000001").exists() and sys.argv[2] == "save":
            os.truncate(filename, 9)
            os.kill(os.getpid(), signal.SIGKILL)


hvd.init()
net = Deadly(3, in_units=4)
net.initialize()
checkpoint = hvd.Checkpoint(folder, net=net)
begin, text = checkpoint.load()[0], ""
try:
    for epoch in (begin + 1, begin + 2):
        hvd.barrier()  # wait until the first save has ended on all ranks
        checkpoint.save(epoch)
except hvd.RankFailedError as error:
    assert error.rank == 0
    text = str(error)
report(hvd.rank(), begin=begin, text=text, left=sorted(path.name for path in folder.iterdir()))
hvd.shutdown()
