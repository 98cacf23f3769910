"""Fixtures of the launcher's tests: emulated hosts."""

import cluster as clusters
import pytest
from launching import assert_clean, call


@pytest.fixture(scope="session")
def cluster():
    """Four hosts; the same for all tests, each of which leaves them as it found them."""
    with clusters.or_skip(4) as running:
        yield running


@pytest.fixture
def own_cluster():
    """Three hosts of which a test may lose some."""
    with clusters.or_skip(3) as running:
        yield running


@pytest.fixture
def on_cluster(cluster):
    """hvdliterun on host h0; afterwards no host may have a process or shared memory left."""

    def run(*argv, env=None, **options):
        environment = {**cluster.environment(), **(env or {})}
        prefix = cluster.command([], cwd=options.pop("cwd", None))
        return call(*argv, prefix=prefix, env=environment, **options)

    yield run
    for host in cluster.names:
        assert_clean(cluster, host)
