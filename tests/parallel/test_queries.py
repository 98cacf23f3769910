"""What a script may ask: the build, MPI, and whether hosts are alike."""

from mpi4py import MPI

import hvdlite as hvd


def test_what_is_built():
    assert hvd.mpi_built() is True
    assert hvd.mpi_enabled() is True
    for ask in (hvd.gloo_built, hvd.gloo_enabled, hvd.ddl_built, hvd.ccl_built):
        assert ask() is False
    for ask in (hvd.cuda_built, hvd.rocm_built):
        assert ask() is False
    assert hvd.nccl_built() == 0  # scripts compare it with version numbers


def test_threads_of_mpi():
    assert hvd.mpi_threads_supported() == (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    assert len(set(hvd.allgather_object(hvd.mpi_threads_supported()))) == 1


def test_hosts_are_alike(size):
    ranks_of_hosts = set(hvd.allgather_object((hvd.cross_rank(), hvd.local_size())))
    assert hvd.is_homogeneous() == (len({n for _, n in ranks_of_hosts}) == 1)
