"""The core in the simulated cluster of benchmarks/sim: each run gives the same simulated times."""

import subprocess
import sys

import pytest

from benchmarks import sim
from benchmarks.sim import models

PLACE = sim.Place(4, 2, 10e9)
TENSORS = [(100_000, 0.25)] * 4
TRAINING = {"meet": 0, "steps": 7, "compute": 20e-3}


@pytest.fixture(scope="module", autouse=True)
def built():
    lacks = sim.missing()
    if lacks and "not installed" in lacks:
        pytest.skip(lacks)
    assert lacks is None


def test_a_small_simulated_job_is_close_to_the_bound_of_the_links():
    place = sim.Place(8, rate=1e9)
    found = sim.run(place, [(250_000, 1.0)])
    assert all(1 <= step / place.bound(1_000_000) < 1.1 for step in found["steps"])
    assert {rank[0] for rank in found["ranks"]} == {2 * 7 * 1_000_000 // 8}


def test_a_simulated_ring_cuts_its_chunks_evenly():
    """Uneven segments, of 60 KiB and 1 KB, would take 3.2 times the bound of the links."""
    place = sim.Place(8, rate=25e9)
    found = sim.run(place, [(125_000, 1.0)], algorithm="ring")
    assert found["steps"][0] < 2.8 * place.bound(500_000)


def test_in_the_simulation_more_servers_have_less_traffic_each():
    def seconds(servers, **more):
        place = sim.Place(8, rate=1e9, servers=servers, **more)
        return sim.run(place, [(4_000_000, 1.0)])["steps"][0] * place.carried / 16_000_000

    # the worker on the server's host uses no link
    assert seconds(1) == pytest.approx(2 * 7, rel=0.1)
    assert seconds(1, apart=True) == pytest.approx(2 * 8, rel=0.1)
    assert seconds(4) == pytest.approx(2 * 8 / 4, rel=0.2)  # a quarter for each server


def test_oversubscribed_racks_slow_traffic_between_racks():
    steps = [
        sim.run(sim.Place(4, rate=1e9, topology=each, rack=2), [(250_000, 1.0)], algorithm="ring")
        for each in ("star", "tree:2", "tree:4", "torus")
    ]
    star, tree, narrow, torus = (found["steps"][0] for found in steps)
    # In a ring only one of a rack's two hosts sends to the other rack, so half the rate is enough.
    assert star == pytest.approx(tree, rel=0.01)
    assert narrow > 1.5 * star
    assert torus > 0.9 * star


def test_a_simulated_death_ends_the_job_at_the_same_time_in_every_run():
    found = [sim.run(PLACE, TENSORS, dead_rank=3, dead_at=0.1, **TRAINING) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0]["failed"] == 7
    assert "rank 3" in found[0]["error"] and "is dead" in found[0]["error"]
    assert 0.1 < found[0]["ended"] < 0.2


def test_a_simulated_slow_host_gives_the_same_times_in_every_run():
    alone = sim.run(PLACE, TENSORS, **TRAINING)["steps"]
    slow = [sim.run(PLACE, TENSORS, slow_host=2, slow=3, **TRAINING)["steps"] for _ in range(2)]
    assert slow[0] == slow[1]
    assert alone == pytest.approx([0.02] * len(alone), rel=0.3)
    assert slow[0] == pytest.approx([0.06] * len(alone), rel=0.1)


@pytest.mark.parametrize(
    "name, tensors, elements",
    [("resnet50", 161, 25_557_032), ("vgg16", 32, 138_357_544), ("bert", 199, 109_482_240)],
)
def test_simulated_models_have_the_published_gradient_sizes(name, tensors, elements):
    made = models.tensors(name)
    assert (len(made), sum(n for n, _ in made)) == (tensors, elements)
    assert sum(share for _, share in made) == pytest.approx(1)


def test_the_simulator_takes_tensor_sizes_from_the_user(tmp_path):
    sizes = tmp_path / "sizes"
    sizes.write_text("1000\n64\n250000\n")
    assert models.own(str(sizes)) == [(n, pytest.approx(1 / 3)) for n in (1000, 64, 250_000)]
    assert models.own("1.5M/3") == models.own("1500K/3") == [(500_000, pytest.approx(1 / 3))] * 3


def test_too_many_tensors_for_the_simulator_are_an_error():
    with pytest.raises(sim.Failed, match="has too many tensors"):
        sim.run(PLACE, [(64, 1 / 1025)] * 1025)


def test_the_simulator_prints_times_over_the_links_bound_and_the_number_of_messages():
    words = ["--hosts", "2", "--rate", "1gbit", "--bytes", "1000", "--algorithm", "doubling"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sim", *words], capture_output=True, text=True, timeout=99
    )
    assert "of the bound of the links" in done.stdout, done.stderr
    assert "messages sent, a step" in done.stdout
