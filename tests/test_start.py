"""How init() starts a job: in scripts that handle MPI, in children and workers, and alone."""

import json
import re
import subprocess
import sys

import pytest
from jobs import MPI_SETTINGS, TESTS, Job, alone, assert_passed, mpirun
from places import CARRIERS, LIKE_TORCHRUN, init_with, on_carrier

from hvdlite.bootstrap.mpi import init_wait

every_carrier = pytest.mark.parametrize("carrier", CARRIERS)
SUM = "print('SUM', hvd.numpy.allreduce(np.ones(2), op=hvd.Sum, name='s')[0], flush=True)\n"
NOT_BEGUN = "import mpi4py; mpi4py.rc.initialize = False\n"
HVD = "import os, sys, numpy as np, hvdlite as hvd\n"
# How a script initializes MPI -> the script, and the lines that it prints besides its sum.
BEGINNINGS = {
    "not begun": (NOT_BEGUN + HVD + "hvd.init()\n" + SUM, []),
    "not begun, few threads": (
        NOT_BEGUN + "mpi4py.rc.thread_level = 'single'\n" + HVD + "hvd.init()\n" + SUM,
        [],
    ),
    "begun and ended by the script": (
        NOT_BEGUN + HVD + "from mpi4py import MPI; MPI.Init_thread(); hvd.init()\n" + SUM +
        "MPI.Finalize(); print('SAID', hvd.is_initialized())\n"
        "try: hvd.init()\nexcept hvd.HvdliteError as error: print('SAID', error)",
        ["False", "init(): MPI.Finalize() has been called, and MPI can't start again. Call "
         "MPI.Finalize() after the last use of hvdlite, or leave it to hvdlite, which calls it "
         "when Python exits"],
    ),
    "begun by mpi4py": ("from mpi4py import MPI\n" + HVD + "hvd.init(); hvd.init()\n" + SUM, []),
    "in a thread": (
        HVD + "import threading\nt = [threading.Thread(target=hvd.init) for _ in range(3)]\n"
        "[each.start() for each in t]; [each.join() for each in t]\n" + SUM,
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", BEGINNINGS)
def test_mpi_is_initialized_once_and_finalized(how):
    code, said = BEGINNINGS[how]
    job = assert_passed(mpirun(2, "-c", code))
    assert job.lines("SUM ") == ["2.0", "2.0"]
    assert sorted(job.lines("SAID ")) == sorted(2 * said)


@pytest.mark.parametrize("by_file", (False, True), ids=("by_option", "by_file"))
def test_mpi_uses_tcp_if_the_user_has_excluded_shared_memory(by_file, tmp_path):
    """Users exclude shared memory if /dev/shm is too small; hvdlite must not exclude TCP then."""
    file = tmp_path / "mca-params.conf"
    file.write_text("# for all jobs\nbtl = ^sm,ofi  # as it is full\n")
    options = () if by_file else ("--mca", "btl", "^sm,ofi")
    env = {"OMPI_MCA_mca_base_param_files": str(file)} if by_file else {}
    code = "import os; os.environ.pop('OMPI_MCA_btl')\n" if by_file else ""
    code += "from hvdlite.core import listening\n" + HVD + "hvd.init()\n" + SUM
    code += "print('ADDED', listening.confined(listening.with_files(os.environ)))"
    job = assert_passed(mpirun(2, "-c", code, options=options, env=env))
    assert job.lines("SUM ") == ["2.0", "2.0"]
    assert job.lines("ADDED ") == ["{}", "{}"]


CROWDED = """
import os
yields = "OMPI_MCA_mpi_yield_when_idle"
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import hvdlite as hvd
from hvdlite.bootstrap.mpi import loading
hvd.init()
print("YIELDS", loading._values_of_user.get(yields, "by the user"), os.environ.get(yields))
"""


@pytest.mark.parametrize("users", (None, "0"))
def test_mpi_yields_if_ranks_outnumber_cores(users):
    """If MPI did not yield, making 140 process sets of 9 ranks would take 83 s on 2 cores."""
    env = {"OMPI_MCA_mpi_yield_when_idle": users} if users else {}
    job = assert_passed(mpirun(2, "-c", CROWDED, env=env))
    assert job.lines("YIELDS ") == 2 * ["by the user 0" if users else "None None"]


# Rank 1 waits for the warning of init_wait.py, a child of rank 0. The warning takes some seconds.
LATE = """
import os, time
from pathlib import Path
from jobs import MARK, processes_of
def warns() -> bool:
    for pid in processes_of(f"{MARK}={os.environ[MARK]}"):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"init_wait.py\\0"): return True
        except OSError: pass  # the process has ended
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    while not warns(): time.sleep(0.1)
    while warns(): time.sleep(0.1)
import hvdlite as hvd
hvd.init()
"""


def test_a_warning_names_a_rank_that_is_late_for_mpi_init():
    """MPI_Init waits for all ranks and holds the GIL, so no Python thread of a rank can warn."""
    job = assert_passed(mpirun(3, "-c", LATE))
    told = re.findall(r"rank 0 on host .* waits in MPI_Init for (.*)", job.output)
    assert told == ["rank 1"]


@pytest.mark.parametrize(
    "own, here, begun, count, words",
    [
        ("0", "02", "012", 3, "for rank 1"),
        ("2", "02", "012", 3, ""),
        ("0", "0", "0", 3, "for 2 ranks that have not started"),
        ("0", "01", "01", 2, "for the ranks of other hosts"),
        ("4", "45", "45", 2, ""),
    ],
)
def test_only_one_rank_of_a_host_prints_which_ranks_are_late(own, here, begun, count, words):
    line = init_wait.text(own, set(here), set(begun), count)
    assert line.endswith(words) and bool(line) == bool(words)


def test_the_error_about_mpi_without_threads_says_what_to_set():
    begun = NOT_BEGUN + HVD + "from mpi4py import MPI; MPI.Init_thread(MPI.THREAD_FUNNELED)\n"
    job = mpirun(1, "-c", begun + "hvd.init()")
    assert "MPI was initialized with MPI_THREAD_FUNNELED, and hvdlite's own thread" in job.output
    assert "or call MPI.Init_thread(MPI.THREAD_MULTIPLE)" in job.output


PARENTS = {  # the transport, code of the parent before the fork, part of the child's error
    "hvdlite over MPI": ("mpi", "hvd.init()\n", "from a process that runs MPI"),
    "bare mpi4py": ("mpi", "from mpi4py import MPI\n", "from a process that runs MPI"),
    "hvdlite without MPI": ("tcp", "hvd.init()\n", "from a rank"),
}
CHILDREN = """
for end in "sys.exit(0)", "sys.exit(3)", "sys.exit('no')", "1 / 0":
    name = sys.argv[1] + str(os.getpid())
    if os.fork() == 0:
        file = open(name, "w"); file.write("buffered")
        try: hvd.init()
        except hvd.HvdliteError as error: print("REFUSED", error, flush=True)
        exec(end)
    print("CODE", os.WEXITSTATUS(os.wait()[1]), open(name).read(), flush=True)
if not hvd.is_initialized(): hvd.init()
"""


@pytest.mark.parametrize("parent", PARENTS)
def test_init_in_a_forked_child_is_an_error_and_the_parent_goes_on(parent, tmp_path):
    carrier, begins, told = PARENTS[parent]
    line = ["-c", HVD + begins + CHILDREN + SUM, f"{tmp_path}/"]
    job = assert_passed(on_carrier(carrier, 2, *line))
    assert sorted(job.lines("CODE ")) == sorted(2 * [f"{code} buffered" for code in (0, 3, 1, 1)])
    assert job.lines("SUM ") == ["2.0", "2.0"]
    refused = job.lines("REFUSED ")
    assert len(refused) == 8 and f"this process was forked {told}" in refused[0]
    # this text would mean that a child has closed its parent's connection
    assert "Bad file descriptor" not in job.output


def with_a_child(carrier: str, *command: str) -> Job:
    """Start a program as a child of each of two ranks; check that the ranks go on."""
    children = str(TESTS / "scripts" / "children.py")
    job = assert_passed(on_carrier(carrier, 2, children, *command))
    assert job.lines("SUM ") == 2 * ["2.0"]
    return job


@every_carrier
def test_importing_all_of_hvdlite_in_a_child_starts_no_mpi_and_no_thread(carrier):
    """Otherwise the child would wait in MPI_Init forever, or the ranks would die."""
    everything = str(TESTS / "scripts" / "imports_all.py")
    job = with_a_child(carrier, everything, "numpy", "mxnet")
    children = [json.loads(line) for line in job.lines("CHILD ")]
    assert len(children) == 2
    for child in children:
        modules = child.pop("modules")
        assert {"hvdlite.numpy", "hvdlite.mxnet.ops", "hvdlite.elastic.loop"} <= set(modules)
        assert ("hvdlite.bootstrap.mpi.loading" in modules) == (carrier == "mpi")
        assert child == {"threads": 0, "begun": False, "initialized": False}


# Each line is one write, so that lines of two processes don't mix.
INIT_IN_A_CHILD = "import os, hvdlite as hvd; hvd.init(); os.write(1, b'SIZE %d\\n' % hvd.size())"


@every_carrier
def test_a_ranks_child_does_not_join_the_job_a_second_time(carrier):
    """Otherwise the children would form another job, or the launcher would end the ranks."""
    job = with_a_child(carrier, "-c", INIT_IN_A_CHILD)
    assert not job.lines("SIZE ")
    told = re.findall(r"init\(\): this process was started by process \d+, which is", job.output)
    assert len(told) == 2 and "HVDLITE_ALONE=1" in job.output


def test_torchrun_started_by_a_rank_of_mpi_starts_a_separate_job():
    """MPI must not start in torchrun's ranks; it would wait for a second rank or end the job."""
    job = assert_passed(mpirun(2, LIKE_TORCHRUN, "-c", INIT_IN_A_CHILD))
    assert re.findall(r"SIZE (\d)", job.output) == 4 * ["2"]


OWN_JOBS = {
    "by torchrun": ([LIKE_TORCHRUN, "-c", INIT_IN_A_CHILD], ["2", "2"]),
    "alone on purpose": (["-HVDLITE_ALONE", "-c", INIT_IN_A_CHILD], ["1"]),
    "by hvdliterun": (["-m", "hvdlite.launch", "-n", "2"], ["2", "2"]),
    "by hvdliterun without MPI": (
        ["-m", "hvdlite.launch", "--transport=tcp", "-n", "2"],
        ["2", "2"],
    ),
}


@pytest.mark.parametrize("how", OWN_JOBS)
@every_carrier
def test_a_ranks_child_may_start_a_separate_job(how, carrier, tmp_path):
    words, sizes = OWN_JOBS[how]
    (tmp_path / "sizes.py").write_text(INIT_IN_A_CHILD)
    own = words if "-c" in words else [*words, sys.executable, str(tmp_path / "sizes.py")]
    if carrier == "tcp" and how == "by hvdliterun":
        pytest.skip("ranks without MPI can't start MPI")
    assert re.findall(r"SIZE (\d)", with_a_child(carrier, *own).output) == 2 * sizes


GIVEN = "hvd.init(); print('BTL', os.environ.get('OMPI_MCA_btl'))\n"


@pytest.mark.parametrize("begun", ["", NOT_BEGUN])
@pytest.mark.parametrize("ranks", [None, 2])
def test_processes_that_a_rank_starts_may_use_every_network(begun, ranks):
    """hvdlite excludes transports of Open MPI only in the rank itself, not in its children."""
    code = begun + HVD + GIVEN
    if ranks:
        assert assert_passed(mpirun(ranks, "-c", code)).lines("BTL ") == 2 * ["^ofi"]
    else:
        assert alone(code, **{**MPI_SETTINGS, "OMPI_MCA_btl": "^ofi"}) == "BTL ^ofi\n"


def test_a_process_without_a_launcher_makes_no_file_in_dev_shm():
    """Without a launcher, Open MPI would leave its file there."""
    code = HVD + "hvd.init(); print('sm_segment' in open('/proc/self/maps').read())"
    assert alone(code, **MPI_SETTINGS) == "False\n"


def test_a_clone_named_hvdlite_beside_a_script_is_not_imported(tmp_path):
    """The folder of a clone has the same name as the package inside it."""
    (tmp_path / "hvdlite").mkdir()
    (tmp_path / "train.py").write_text("import hvdlite; print(hvdlite.__version__)")
    line = [sys.executable, "train.py"]
    assert subprocess.check_output(line, cwd=tmp_path, text=True, timeout=120).strip()


ALONE = "import hvdlite as hvd; hvd.init(); print('SIZE', hvd.size())"
TF_CONFIG = '{"cluster":{"chief":["a:1"],"worker":["b:1","c:1"]},"task":{"type":"%s"}}'
# Environment of a process that is alone in MPI -> part of its error; "" means no error.
STARTED = {
    "RANK=1 WORLD_SIZE=2": "torchrun has started this process as one of 2 (RANK=1, WORLD_SIZE=2)",
    "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=3": "srun has started this process as one of 3",
    "SLURM_PROCID=1 SLURM_NTASKS=2": "srun has started this process as one of 2 (SLURM_PROCID=1)",
    "PMI_RANK=0 PMI_SIZE=2": "a launcher of PMI has",
    "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2": "Open MPI's mpirun has",
    "HOROVOD_RANK=0 HOROVOD_SIZE=2": "horovodrun has",
    "DMLC_ROLE=worker DMLC_NUM_WORKER=2": "launch.py or dmlc-submit has started",
    "DMLC_ROLE=worker DMLC_NUM_WORKER=2 DMLC_TASK_ID=0": "(DMLC_ROLE=worker, DMLC_NUM_WORKER=2)",
    "DMLC_ROLE=worker DMLC_NUM_WORKER=2 DMLC_TASK_ID=1": "`launch.py -s 0` that waits forever",
    "MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2": "MVAPICH's mpirun has",
    "JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=2": "jsrun has",
    "FLUX_TASK_RANK=0 FLUX_JOB_SIZE=2": "flux has",
    "ALPS_APP_PE=1": "aprun has started this process as one of 2 (ALPS_APP_PE=1)",
    f"TF_CONFIG={TF_CONFIG % 'chief'}": "TensorFlow's cluster has started this process as one of 3",
    f"TF_CONFIG={TF_CONFIG % 'ps'}": "",
    "TF_CONFIG=no": "",
    "DMLC_ROLE=worker DMLC_NUM_WORKER=1": "",
    "RANK=1 WORLD_SIZE=2 HVDLITE_ALONE=1": "",
    "RANK=0 WORLD_SIZE=1": "",
    "WORLD_SIZE=2": "",
    "SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_PROCID=0": "",  # the environment of a batch script
    "SLURM_JOB_ID=7 SLURM_NTASKS=2": "",  # the environment of salloc's shell
}


def test_init_refuses_a_process_that_a_launcher_started_as_one_of_several():
    given = [dict(v.split("=", 1) for v in variables.split()) for variables in STARTED]
    for line, told in zip(init_with(given), STARTED.values()):
        assert told in line
        assert ("`hvdliterun -n " in line and "HVDLITE_ALONE=1" in line) == bool(told)
        assert told or line == "SIZE 1"


def test_only_the_innermost_launcher_sets_the_number_of_ranks():
    """RANK and WORLD_SIZE count if set within mpirun -n 1, but not if set outside of it."""
    env = {"RANK": "1", "WORLD_SIZE": "2"}
    assert assert_passed(mpirun(1, "-c", ALONE, env=env)).lines("SIZE ") == ["1"]
    line = [sys.executable, "-c", ALONE]
    within = f"import os; os.execve({line[0]!r}, {line}, {{**os.environ, **{env}}})"
    assert "torchrun has started this process as one of 2" in mpirun(1, "-c", within).output


def test_ranks_with_equal_process_ids_in_separate_containers_work(tmp_path):
    """Open MPI 5 names shared memory after process ids and would crash."""
    contain = ["unshare", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*contain, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespaces here")
    code = HVD + "hvd.init()\n" + SUM + "print('PID', os.getpid())"
    (tmp_path / "script.py").write_text(code)
    start = (
        f"import os; os.execvp('unshare', {[*contain, sys.executable, f'{tmp_path}/script.py']})"
    )
    job = assert_passed(mpirun(2, "-c", start))
    assert (job.lines("SUM "), job.lines("PID ")) == (["2.0", "2.0"], ["1", "1"])


WORKERS = """
import multiprocessing as mp
from mpi4py import MPI
def square(x): return x * x, MPI.Is_initialized()
if __name__ == "__main__":
    hvd.init()
    for context in "fork", "spawn", "forkserver":
        with mp.get_context(context).Pool(2) as pool:
            results = pool.map(square, range(4))
        print("SAID", context, results, flush=True)
"""


def test_spawned_workers_do_not_hang_if_the_script_imports_mpi_first(tmp_path):
    script = tmp_path / "script.py"
    begin = "import hvdlite.numpy  # before mpi4py\n"
    script.write_text(begin + HVD + WORKERS + "    " + SUM)
    job = assert_passed(mpirun(2, str(script)))
    said = [
        f"{context} {[(x * x, context == 'fork') for x in range(4)]}"
        for context in ("fork", "spawn", "forkserver")
    ]
    assert sorted(job.lines("SAID ")) == sorted(2 * said)
    assert job.lines("SUM ") == ["2.0", "2.0"]
