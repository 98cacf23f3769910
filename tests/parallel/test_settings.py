"""Settings that are wrong or differ between ranks: what init() and shutdown() report."""

import numpy as np
import pytest
from meeting import everyone

import hvdlite as hvd
import hvdlite.numpy

pytestmark = pytest.mark.usefixtures("several")

NO_SENSE = {  # wrong values, and the errors of init(); tests/c/test_env.c has more of them
    "HVDLITE_SEGMENT_BYTES=1000": "expected a number from 1024 to 1073741824",
    "HOROVOD_LOG_LEVEL=loud": "expected trace, debug",
    "HVDLITE_DATA_TIMEOUT_SECONDS=nan": "expected a number of at least 0",
}


@pytest.fixture
def a_new_job(monkeypatch):
    """Shut down the job; after the test, start a new job without the test's settings."""
    hvd.shutdown()
    yield
    hvd.shutdown()
    monkeypatch.undo()
    hvd.init()


@pytest.mark.parametrize("setting", NO_SENSE)
def test_a_wrong_setting_on_one_rank_fails_init_on_all_ranks(setting, rank, monkeypatch, a_new_job):
    """Otherwise the other ranks would wait in init() for the rank that has raised."""
    name, _, value = setting.partition("=")
    monkeypatch.delenv(name.replace("HOROVOD", "HVDLITE"), raising=False)
    if rank == 1:
        monkeypatch.setenv(name, value)
    with pytest.raises((ValueError, hvd.HvdliteError)) as caught:
        hvd.init()
    if rank == 1:
        assert f"{name} is '{value}': {NO_SENSE[setting]}" in str(caught.value)


def test_hvdlite_window_0_on_one_rank_disables_windows_with_a_warning(
    rank, monkeypatch, capfd, a_new_job
):
    if rank == 1:
        monkeypatch.setenv("HVDLITE_WINDOW", "0")
    hvd.init()
    if hvd.local_size() == 1:
        pytest.skip("no ranks share a host")
    assert hvd.numpy.allreduce(np.ones(3), op=hvd.Sum).sum() == 3 * hvd.size()
    assert hvd.stats()["bytes_sent_window"] == 0
    told = "".join(hvd.allgather_object(capfd.readouterr().err))
    assert told.count("HVDLITE_WINDOW is 0 on some") == 1, told
    assert "exchange data through MPI, which is slower" in told


def test_a_timeline_on_a_full_disk_is_reported(rank, monkeypatch, capfd, a_new_job):
    monkeypatch.setenv("HVDLITE_TIMELINE", "/dev/full")
    hvd.init()
    hvd.numpy.barrier()
    hvd.shutdown()
    told = "the timeline is incomplete: its file '/dev/full' can't be written"
    assert (told in capfd.readouterr().err) == (rank == 0)  # only rank 0 writes the timeline


def test_all_ranks_use_the_stall_limits_of_rank_0(rank, monkeypatch, a_new_job):
    """Otherwise ranks would name different limits in the error about one silent rank."""
    monkeypatch.setenv("HVDLITE_STALL_SHUTDOWN_TIME_SECONDS", "4" if rank == 0 else "0")
    hvd.init()
    if hvd.size() < 3:
        pytest.skip("a process set without rank 0 needs two other ranks")
    others = hvd.add_process_set(range(1, hvd.size()))
    if rank == 1:
        with pytest.raises(hvd.HvdliteError, match="submitted by rank 1, not by rank 2"):
            hvd.numpy.allreduce(np.ones(3), process_set=others)
    everyone.Barrier()  # MPI's barrier, because hvdlite's barrier has rank 0's limit, too
