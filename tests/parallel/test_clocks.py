"""The clocks of hosts, compared by messages there and back."""

import time

import pytest

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
