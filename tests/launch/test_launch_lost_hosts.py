"""Jobs on emulated hosts that lose their power or their link, or whose firewall passes only ssh."""

import re
import time

import cluster as clusters
import pytest
from launching import HVDLITERUN, TIMEOUT, assert_clean, python, start, told


def start_up(cluster, script, *options):
    """Start hvdliterun on h0; return it when all ranks have printed "up 3"."""
    line = [*options, *python(script)]
    launcher = start(*line, prefix=cluster.command([]), env=cluster.environment())
    assert [launcher.stdout.readline()[4:] for _ in range(3)] == ["up 3\n"] * 3
    return launcher


def ends_without(cluster, launcher, lost, limit=TIMEOUT):
    """Wait for hvdliterun; return its output. Check that all hosts but the lost host are clean."""
    began = time.monotonic()
    out, err = launcher.communicate(timeout=TIMEOUT)
    assert time.monotonic() - began < limit, err
    for host in set(cluster.names) - {lost}:
        assert_clean(cluster, host)
    return out, err


TRAINS = """
import numpy, sys, time, hvdlite as hvd
hvd.init()
print("up", hvd.size(), flush=True)
for step in range(1500 if hvd.size() == 3 else 5):
    hvd.numpy.allreduce(numpy.ones(1000), name="step")
    time.sleep(0.01)
"""


@pytest.mark.parametrize("power", [False, True], ids=["connections closed", "power cut"])
@pytest.mark.parametrize("options", [[], ["--min-np", 2]], ids=["plain", "elastic"])
def test_a_job_starts_again_without_a_lost_host(own_cluster, options, power):
    line = [*options, "--restarts", 1, "-H", "h0,h1,h2", "--host-timeout", 8]
    launcher = start_up(own_cluster, TRAINS, *line)
    own_cluster.lose("h2", power)
    out, err = ends_without(own_cluster, launcher, "h2")
    assert launcher.returncode == 0, err
    assert "h2 cannot be reached: 2 ranks start on the other hosts" in err
    assert sorted(out.splitlines()) == ["[0] up 2", "[1] up 2"]
    assert "lack of memory" not in err


GOES_ON = """
import numpy, time, hvdlite as hvd
hvd.init()
print("up", hvd.size(), flush=True)
@hvd.elastic.run
def train(state):
    while state.step < 300 or hvd.size() < 3:
        hvd.numpy.allreduce(numpy.ones(1000), name="step")
        state.step += 1
        state.commit()
        time.sleep(0.01)
train(hvd.elastic.ObjectState(step=0))
print("done", hvd.rank(), hvd.size(), flush=True)
"""


def test_an_elastic_job_uses_a_host_again_after_a_power_cut(own_cluster):
    """The host has rank 0. The other ranks go on in the same processes."""
    line = ["--transport", "tcp", "--elastic", "-H", "h1:1,h2:1,h0:1", "--host-timeout", 8]
    launcher = start_up(own_cluster, GOES_ON, *line)
    own_cluster.lose("h1", power=True)
    said = "host h1 has been silent for"  # printed by ranks; the launcher may notice later
    assert any(said in text for text in launcher.stderr)
    own_cluster.restart("h1")
    out, err = ends_without(own_cluster, launcher, None)
    assert launcher.returncode == 0, err
    ends = [f"[{number}] done {rank} 3" for rank, number in enumerate((1, 2, 3))]
    assert sorted(out.splitlines()) == [*ends, "[3] up 1"]


def test_a_power_cut_on_the_host_of_rank_0_ends_the_job_in_seconds(own_cluster):
    launcher = start_up(own_cluster, TRAINS, "-n", 3, "-H", "h1:1,h2:2", "--host-timeout", 10)
    own_cluster.lose("h1", power=True)
    _, err = ends_without(own_cluster, launcher, "h1", limit=100)  # takes 13 s on an idle machine
    assert "hvdliterun: rank 0 on h1 was lost (its host has not answered for " in err
    raised = re.findall(r"RankFailedError: rank 0 .* on host h1\) is lost: its host has", err)
    assert len(raised) == 2, err
    assert "lack of memory" not in err


def test_a_job_survives_a_link_that_is_down_for_12_seconds(own_cluster):
    launcher = start_up(own_cluster, TRAINS, "-H", "h0,h1,h2")
    own_cluster.link("h2", up=False)
    time.sleep(12)
    own_cluster.link("h2", up=True)
    _, err = ends_without(own_cluster, launcher, None)
    assert launcher.returncode == 0, err


PRINTS = """
import hvdlite as hvd
hvd.init()
while hvd.rank() == 2:
    print("text" * 50)
hvd.numpy.barrier()
"""


@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_ranks_that_print_end_on_a_host_that_is_cut_off(own_cluster, transport):
    """The agent on this host waits until the launcher reads the rank's output."""
    line = ["--transport", transport, "-H", "h0,h1,h2", "--host-timeout", 6, *python(PRINTS)]
    launcher = start(*line, prefix=own_cluster.command([]), env=own_cluster.environment())
    assert launcher.stdout.readline().startswith("[2] text")
    own_cluster.link("h2", up=False)
    launcher.communicate(timeout=TIMEOUT)
    agents = "hvdlite.launch.agent"
    clusters.wait_for(lambda: agents not in str(own_cluster.processes("h2")), "the agent's end")


@pytest.mark.skipif(not clusters.can_filter(), reason="iptables is not installed")
def test_the_error_names_a_host_whose_firewall_passes_only_ssh(own_cluster):
    own_cluster.firewall("h2")
    line = [*HVDLITERUN, "--start-timeout", "6", "-H", "h0,h1,h2", "true"]
    environment = own_cluster.environment()
    done = own_cluster.run(line, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 2
    first, second = told(done.stderr)
    assert first.startswith("hvdliterun: only 0 of 3 processes have started within 6 s")
    assert "hvdliterun: h2 does not reach this host at 10.77.0.1 port " in second
    for host in own_cluster.names:
        assert_clean(own_cluster, host)


@pytest.mark.skipif(not clusters.can_filter(), reason="iptables is not installed")
def test_the_error_in_init_names_a_rank_behind_a_firewall(own_cluster):
    """The firewall blocks only new connections, so the launcher's connections still work."""
    begins = "import time; print('up 3', flush=True); time.sleep(5); import hvdlite; hvdlite.init()"
    line = ["-H", "h0,h1,h2", "--env", "HVDLITE_INIT_TIMEOUT_SECONDS=8"]
    launcher = start_up(own_cluster, begins, *line)
    own_cluster.firewall("h2", only_new=True)
    _, err = ends_without(own_cluster, launcher, None, limit=100)
    assert launcher.returncode == 1, err
    assert re.search(r"rank [01] on host h[01] has waited \d+ s in init\(\) for rank 2: ", err), err
