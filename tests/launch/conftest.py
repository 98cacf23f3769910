"""Fixtures of the launcher's tests: emulated hosts."""

import cluster as clusters
import pytest
from launching import assert_clean, call


@pytest.fixture(scope="session")
def cluster():
    """Yield four emulated hosts that all tests share. A test must leave them unchanged."""
    with clusters.or_skip(4) as running:
        yield running


@pytest.fixture
def own_cluster():
    """Yield three emulated hosts for one test, which may cut off some of them."""
    with clusters.or_skip(3) as running:
        yield running


@pytest.fixture
def on_cluster(cluster):
    """Yield a function that runs hvdliterun on host h0. Finally check that all hosts are clean."""

    def run(*argv, env=None, **options):
        environment = {**cluster.environment(), **(env or {})}
        prefix = cluster.command([], cwd=options.pop("cwd", None))
        return call(*argv, prefix=prefix, env=environment, **options)

    yield run
    for host in cluster.names:
        assert_clean(cluster, host)
