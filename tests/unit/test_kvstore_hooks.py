"""Registration of hvdlite's kvstore with MXNet: order of imports, names of stores, errors."""

import pytest
from jobs import alone as run
from versions import mxnet_alone

from hvdlite.bootstrap import servers

USE = """
kv = mx.kv.create("dist_sync_mpi")
a = mx.nd.ones(2)
kv.pushpull("a", a)
print(kv.type, kv.rank, kv.num_workers, a.asnumpy().tolist(), hvdlite.is_initialized())
hvdlite.init()  # does nothing, because making the store has joined the job
hvdlite.shutdown()
hvdlite.init()
print(hvdlite.size())
"""
USED = "dist_sync_mpi 0 1 [1.0, 1.0] True\n1\n"


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("import mxnet as mx; import hvdlite", marks=mxnet_alone),
        "import hvdlite; import mxnet as mx",
        "import hvdlite; hvdlite.kvstore.create('dist_sync_mpi'); import mxnet as mx",
        "import hvdlite, importlib as i, importlib.util; i.util.find_spec('mxnet'); "
        "i.reload(hvdlite); from mxnet import gluon; import mxnet as mx; i.reload(hvdlite)",
    ],
)
def test_a_kvstore_works_with_mxnet_imported_before_or_after_hvdlite(imports):
    assert run(f"{imports}\n{USE}") == USED


def test_the_error_of_a_library_that_mxnet_lacks_names_its_package(tmp_path):
    why = "libgomp.so.1: cannot open shared object file: No such file or directory"
    (tmp_path / "mxnet.py").write_text(f"raise OSError({why!r})")
    code = "import hvdlite\ntry:\n    import mxnet\nexcept OSError as error:\n    print(error)"
    told = run(code, PYTHONPATH=str(tmp_path))
    assert told == f"{why}: run `apt-get install libgomp1 libquadmath0`\n"


@mxnet_alone
def test_registering_the_kvstore_starts_no_mpi_and_only_wraps_mxnets_functions():
    """A notebook that starts jobs with hvdlite.run() must not start MPI itself."""
    code = """
import sys, mxnet as mx
init, create = mx.gluon.Trainer.__init__, mx.model._create_kvstore
import hvdlite
print([name for name in sys.modules if name.startswith("mpi4py")])
hooked = mx.gluon.Trainer.__init__
print(init is hooked.__wrapped__, init.__doc__ == hooked.__doc__)
print(create is mx.gluon.trainer._create_kvstore.__wrapped__)
"""
    assert run(code) == "[]\nTrue True\nTrue\n"


def test_importing_mxnet_raises_importerror_if_mxnet_is_not_installed():
    code = """
import sys, hvdlite
sys.path = [p for p in sys.path if "site-packages" not in p]
try:
    import mxnet
except ImportError as error:
    print(error)
"""
    assert run(code) == "No module named 'mxnet'\n"


MODE = """
import hvdlite, mxnet as mx
for name in sys.argv[1:]:
    try:
        print(mx.kv.create(name).type)
    except (ValueError, mx.MXNetError) as error:
        print(error)
"""


def created(mode: str, *names: str) -> list:
    code = f"import sys\nsys.argv = {['', *names]}\n{MODE}"
    return run(code, HVDLITE_KVSTORE_MODE=mode).splitlines()


def test_in_a_job_without_servers_dist_sync_is_hvdlites_store():
    names = ("dist_sync", "DIST_SYNC", "dist", "dist_device_sync", "dist_sync_device")
    *types, refused = created("mpi", *names, "dist_async")
    assert types == [name.lower() for name in names]
    assert "need MXNet's servers: start the job with `hvdliterun --mode ps`" in refused


def test_an_unknown_store_name_is_an_error():
    """MXNet 1.9 makes a store of one process for any name without 'dist'."""
    *ours, unknown, typo = created(
        "", "horovod", "Horovod", "local", "device", "byte_ps", "dist_snyc"
    )
    assert ours == ["horovod", "horovod", "local", "device"]
    assert unknown.startswith("kvstore 'byte_ps' is unknown to MXNet")
    assert typo == unknown.replace("byte_ps", "dist_snyc")


@pytest.mark.parametrize("mode", ["", "ps"])
def test_a_store_that_needs_servers_is_an_error_without_servers(mode):
    """MXNet itself raises only "Check notnull"."""
    *refused, made = created(mode, "dist_sync", "DIST_ASYNC", "dist_sync_mpi")
    assert refused == [
        f"kvstore '{name}' needs MXNet's servers, and there are none (DMLC_NUM_WORKER is "
        "not set): use 'dist_sync_mpi', which needs no servers, or start the job with servers, by "
        "`hvdliterun -n 2 -s 2 python train.py`"
        for name in ("dist_sync", "dist_async")
    ]
    assert made == "dist_sync_mpi"


@pytest.mark.parametrize("with_servers", [False, True])
def test_without_servers_a_worker_warns_that_the_tracker_waits_forever(
    with_servers, monkeypatch, capsys
):
    """launch.py -s 0 and dmlc-submit start a tracker that waits forever."""
    for name in servers._NUMBERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DMLC_ROLE", "worker")
    monkeypatch.setenv("DMLC_NUM_WORKER", "4")
    monkeypatch.setenv("DMLC_TRACKER_URI", "h1")
    if with_servers:
        monkeypatch.setenv("DMLC_PS_ROOT_URI", "h1")
    servers._warn_of_tracker()
    assert ("`hvdliterun -n 4 python train.py`" in capsys.readouterr().err) != with_servers
