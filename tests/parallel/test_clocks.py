"""The clocks of hosts, compared by messages there and back."""

import time

import numpy as np
import pytest

import hvdlite as hvd
from hvdlite.core import topology
from hvdlite.lifecycle import recorder


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_a_clock_that_is_ahead(hosts, rank, size, monkeypatch):
    """Host i's clock is 1000 * i seconds ahead; all these hosts are one in truth."""
    of_rank = [min(i, hosts - 1) for i in range(size)]
    now, own = time.monotonic, of_rank[rank]
    monkeypatch.setattr(recorder.time, "monotonic", lambda: now() + 1000.0 * own)
    offset, error = recorder.offset_to_first(topology.world(), [f"host{i}" for i in of_rank])
    assert (error == 0) == (own == 0)
    assert offset == pytest.approx(-1000.0 * own, abs=error + 1e-9)
    assert error < 5


def test_stats_tell_where_the_last_steps_went(rank, size):
    for _ in range(8):
        time.sleep(0.05 if rank == size - 1 else 0.01)
        hvd.numpy.allreduce(np.ones(10), name="in each step")
    told = hvd.stats(steps=True)
    assert set(hvd.stats()) < set(told)
    shares = [told[part] for part in ("waiting", "moving", "input", "update")]
    assert all(0 <= share <= 1 for share in shares)
    if size > 1 and rank < size - 1:
        assert told["waiting"] > 0.05  # 0.8 on a machine that does nothing else
