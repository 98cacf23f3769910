"""Unchanged scripts for Horovod run with hvdlite."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from jobs import MPI_SETTINGS, TESTS, assert_passed, mpirun
from launch.launching import call

SCRIPT = str(TESTS / "scripts" / "clips_sums.py")


def weights_of(results: dict) -> np.ndarray:
    """Return the weights; check that they are equal on all ranks."""
    every = [np.concatenate(values["weights"]) for values in results.values()]
    for other in every[1:]:
        np.testing.assert_array_equal(every[0], other)
    return every[0]


def trained(ranks: int, **env) -> dict:
    return assert_passed(mpirun(ranks, "-m", "hvdlite.as_horovod", SCRIPT, env=env)).results()


@pytest.fixture(scope="module")
def alone() -> dict:
    """Return the results of one process that trains on all rows."""
    return trained(1)


def test_clipping_of_summed_gradients_gives_the_weights_of_one_process(alone):
    ranks = 3
    results = trained(ranks)
    assert len(results) == ranks
    np.testing.assert_allclose(weights_of(results), weights_of(alone), 1e-5, 1e-6)
    norms = np.array(results[0]["norms"])
    np.testing.assert_allclose(norms, ranks * np.array(alone[0]["norms"]), 1e-5)
    assert (norms > ranks).all()  # otherwise nothing has been clipped


def test_horovods_module_names_can_be_imported(alone):
    assert alone[0]["modules"] == ["horovod", "hvdlite.mxnet", "horovod.mxnet.mpi_ops"]
    assert alone[0]["doubled"] == 42


def test_hvdliterun_as_horovod_trains_as_one_process(alone, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
    run = call("--as-horovod", "-n", 2, sys.executable, SCRIPT)
    assert run.code == 0, run.err
    lines = [line.partition("RESULT ")[2] for line in run.out.splitlines() if "RESULT " in line]
    results = dict(json.loads(line) for line in lines)
    assert sorted(results) == [0, 1]
    np.testing.assert_allclose(weights_of(results), weights_of(alone), 1e-5, 1e-6)


def python(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, **options
    )


BY_AN_IMPORT = """
import hvdlite.as_horovod, importlib.util, sys
print({"mxnet", "mpi4py.MPI"} & set(sys.modules))
import horovod, hvdlite
from horovod.mxnet.compression import Compression
import horovod.mxnet as hvd
print(hvd is hvdlite.mxnet is sys.modules["horovod.mxnet"], Compression is hvd.Compression)
print(importlib.util.find_spec("horovod.nothing"), horovod.run.__name__)
"""


def test_importing_as_horovod_loads_neither_mxnet_nor_mpi():
    """MXNet and MPI are loaded when the script imports horovod.mxnet."""
    ended = python("-c", BY_AN_IMPORT)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stdout.splitlines() if "src/storage" not in line]
    assert lines == ["set()", "True True", "None run"]


WHERE = """
import os, sys
import hvdlite.as_horovod
import horovod
NAMES = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOSTNAME".split()
before = [os.environ.get(f"HOROVOD_{name}") for name in NAMES[:4]]
horovod.init()
own = [str(getattr(horovod, name.lower())()) for name in NAMES[:6]]
values = [os.environ[f"HOROVOD_{name}"] for name in NAMES]
assert values[:4] == before and values[:6] == own and values[6], (before, own, values)
print("RESULT", [horovod.rank(), horovod.__version__])
"""


def test_horovods_environment_variables_give_rank_and_size():
    job = assert_passed(mpirun(2, "-c", WHERE))
    for rank in (0, 1):
        assert f"RESULT [{rank}, '0.28.1']" in job.output


def test_an_already_imported_horovod_is_an_error(tmp_path):
    (tmp_path / "horovod.py").write_text("")
    ended = python("-c", "import horovod, hvdlite.as_horovod", cwd=tmp_path)
    assert "ImportError: horovod is imported already (" in ended.stderr
    assert "import hvdlite.as_horovod first" in ended.stderr


def test_an_installed_horovod_is_ignored(tmp_path):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise RuntimeError('the real one')")
    ended = python(
        "-c", "import hvdlite.as_horovod, horovod.mxnet as hvd; print(hvd.__name__)", cwd=tmp_path
    )
    assert ended.stdout.splitlines()[-1:] == ["hvdlite.mxnet"], ended.stderr


PROGRAM = """
import multiprocessing as mp, pickle, sys, beside
def square(x): return x * x
main = sys.modules["__main__"]
names = "__name__", "__file__", "__package__", "__cached__", "__doc__"
if __name__ == "__main__":
    print([getattr(main, name) for name in names], getattr(main.__spec__, "name", None))
    print(main.__dict__ is globals(), type(main.__loader__).__name__, __builtins__.__name__)
    print(sys.argv, sys.path[0], beside.VALUE, pickle.loads(pickle.dumps(square))(3))
    for context in sys.argv[2].split(","):
        with mp.get_context(context).Pool(1) as pool:
            print(context, pool.map(square, [2, 3]), flush=True)
    sys.exit(7)
"""


@pytest.mark.parametrize("how", [["job.py"], ["to/job.py"], ["-m", "job"], ["folder"]], ids=str)
def test_hvdlite_as_horovod_runs_programs_as_python_itself_does(tmp_path, how):
    """Programs can start workers by fork, spawn and forkserver (which imports the main module).

    A folder's ``__main__.py`` is tried only with fork, because Python itself can't do more there.
    """
    contexts = "fork" if how == ["folder"] else "fork,spawn,forkserver"
    (tmp_path / "folder").mkdir()
    for folder, name in ((tmp_path, "job.py"), (tmp_path / "folder", "__main__.py")):
        (folder / "beside.py").write_text("VALUE = 5")
        (folder / name).write_text(PROGRAM)
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "job.py").symlink_to(tmp_path / "job.py")
    expected = python(*how, "--lr", contexts, cwd=tmp_path)
    ended = python("-m", "hvdlite.as_horovod", *how, "--lr", contexts, cwd=tmp_path)
    assert (expected.returncode, expected.stderr) == (7, "")
    assert (ended.returncode, ended.stdout) == (7, expected.stdout), ended.stderr


def test_calls_before_init_raise_an_error_with_horovods_text():
    code = "import hvdlite.as_horovod, horovod.mxnet as hvd; hvd.rank()"
    error = python("-c", code).stderr.splitlines()[-1]
    assert error.endswith("ValueError: Horovod has not been initialized; use hvd.init()."), error


def test_hvdlite_as_horovod_prints_its_help():
    ended = python("-m", "hvdlite.as_horovod", "--help")
    assert ended.returncode == 0 and ended.stdout.startswith("usage: python -m"), ended.stderr
    assert "import hvdlite instead of Horovod" in ended.stdout


STARTS_RANKS = """
import horovod
def where():
    import horovod.mxnet as hvd
    hvd.init()
    return hvd.allgather_object(hvd.rank())
if __name__ == "__main__":
    print(horovod.run(where, np=2))
"""


def test_horovod_run_starts_ranks(tmp_path):
    """The ranks must not inherit the variables by which a job of one rank forbids MPI sockets."""
    (tmp_path / "starts.py").write_text(STARTS_RANKS)
    ended = python("-m", "hvdlite.as_horovod", "starts.py", cwd=tmp_path)
    assert ended.stdout.endswith("[[0, 1], [0, 1]]\n"), ended.stdout + ended.stderr


def test_a_wrong_value_of_hvdlite_horovod_sums_is_an_error():
    ended = python(
        "-c",
        "import hvdlite as hvd, mxnet as mx; hvd.init()\n"
        "hvd.DistributedTrainer(mx.gluon.nn.Dense(1).collect_params(), 'sgd')",
        env={**os.environ, **MPI_SETTINGS, "HVDLITE_HOROVOD_SUMS": "yes"},
    )
    assert "HVDLITE_HOROVOD_SUMS is 'yes': expected 0 or 1" in ended.stderr


def test_horovods_data_loader_reads_ahead_and_raises_the_readers_error():
    from hvdlite.horovod.data import AsyncDataLoaderMixin, BaseDataLoader

    class Numbers(BaseDataLoader):
        error = OSError

        def _iterate(self):
            yield from range(5)
            raise self.error("the disk is gone")

        def _process_batch(self, batch):
            return 2 * batch

    class Ahead(AsyncDataLoaderMixin, Numbers):
        pass

    for size in (0, 1, 64):
        got = []
        with pytest.raises(OSError, match="the disk is gone"):
            got.extend(batch for batch in iter(Ahead(size)) if got.append(batch))
        assert got == [0, 2, 4, 6, 8]
    Numbers.error = SystemExit
    with pytest.raises(SystemExit):
        got.extend(Ahead(2).__iter__())
    one = Ahead(2)
    assert next(iter(one)) == 0  # a loop that stops early leaves no thread behind
    one.close_async_loader()
    assert [batch for batch in one] == []  # noqa: C416 - list(one) would call len(one)
