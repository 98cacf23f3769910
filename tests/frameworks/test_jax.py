"""Jobs with JAX: failures, launchers, and the order of imports."""

import re
from importlib.metadata import version

import pytest
from jobs import HVDLITERUN, ROOT, Job, alone, assert_passed, mpirun
from places import start_ranks

SCRIPT = """
import hvdlite.jax as hvd
hvd.init()
import os, signal, sys, time
import hvdlite, jax, numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mode, last = sys.argv[1], hvd.size() - 1
mesh = Mesh(np.array(jax.devices()), ("i",))

def run(f, count, mesh=mesh, dtype="float32"):
    x = jax.make_array_from_callback(
        (count * mesh.size,), NamedSharding(mesh, P("i")), lambda at: np.ones(count, dtype))
    mapped = jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    return np.asarray(jax.jit(mapped)(x).addressable_shards[0].data)

def total(a):
    return lax.psum(a, "i")

def say(what):
    print(f"RANK {hvd.rank()} {time.time() - begin:.1f} {what}\\n", end="", flush=True)

def tell(*arguments):
    try:
        say(f"result {run(*arguments)[0]:.0f}")
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        failed = hvdlite.failure_of(error)
        say(f"error {error} {failed and failed.kind}")

run(total, 64)
begin = time.time()
if hvd.rank() == last:
    if mode == "dies": os.kill(os.getpid(), signal.SIGKILL)
    if mode == "stops": os.kill(os.getpid(), signal.SIGSTOP)
    if mode == "raises": raise KeyError("label")
    if mode == "absent":
        while True: signal.pause()
if mode == "crossed":
    hvd.barrier()  # so that the time limits of all ranks begin together
    tell(total, 64, Mesh(mesh.devices[:2], ("i",)) if hvd.rank() == 0 else mesh)
    hvd.barrier()  # no rank may go on before the time limits of all ranks have passed
    sys.exit()
if mode == "opens":  # ranks open a group; one of its ranks dies before or while they do
    hvd.barrier()
    if hvd.rank() == last:
        os.kill(os.getpid(), signal.SIGKILL)
    mesh = Mesh(mesh.devices[[last, hvd.rank()]], ("i",))
if mode == "differs":
    gathered = lambda a: lax.all_gather(a, "i", tiled=True)
    for other in ((total, 128), (total, 64, mesh, "int32"), (gathered, 64)):
        tell(*(other if hvd.rank() == last else (total, 64)))
    tell(gathered, 128 if hvd.rank() == last else 64)
else:
    tell(total, 64, mesh)
if mode in ("absent", "stops"): sys.exit("failed: this ends the last rank, too")
tell(total, 64)
"""


def hvdliterun(ranks: int, options: str, code: str, *arguments: str, **env: str) -> Job:
    how = {"launcher": HVDLITERUN, "options": options.split(), "env": env, "timeout": 240}
    return mpirun(ranks, "-c", code, *arguments, **how)


def told(output: str, rank: int) -> list:
    """Return what the rank has printed: pairs of seconds and text."""
    found = re.findall(rf"RANK {rank} ([\d.]+) (.*)", output)
    return [(float(seconds), words) for seconds, words in found]


@pytest.mark.parametrize(
    "mode, transport, text",
    [
        ("dies", "tcp", r"rank 2 .*is dead.* rank dead$"),
        ("dies", "mpi", r"rank 2 .*is dead.* rank dead$"),
        ("opens", "mpi", r"rank 2 .*is dead"),
        ("raises", "tcp", r"raised KeyError: 'label'.* rank left$"),
    ],
)
def test_the_error_inside_a_jitted_program_names_the_rank_that_ended(mode, transport, text):
    output = hvdliterun(3, f"--transport {transport}", SCRIPT, mode).output
    for rank in (0, 1):
        assert re.search(text, told(output, rank)[0][1]), output


def test_ranks_with_different_programs_get_errors_and_the_job_goes_on():
    output = hvdliterun(3, "--transport tcp", SCRIPT, "differs").output
    for rank in range(3):
        *differ, (_, after) = told(output, rank)
        for kind, (_, text) in zip(["shape", "dtype", "kind", "shape"], differ):
            assert re.search(f"ranks disagree on the {kind}.* mismatch$", text), output
        assert len(differ) == 4 and after == "result 3", output


LIMITS = {
    "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "4", "HVDLITE_STALL_CHECK_TIME_SECONDS": "2",
    "HVDLITE_DATA_TIMEOUT_SECONDS": "6",
}  # fmt: skip


@pytest.mark.parametrize("mode", ["stops", "absent"])
def test_the_error_of_a_timeout_names_the_rank_that_is_missing(mode):
    output = hvdliterun(3, "--transport tcp", SCRIPT, mode, **LIMITS).output
    for rank in (0, 1):
        assert re.search(r"error .*rank 2", told(output, rank)[0][1]), output


def test_groups_used_in_opposite_order_time_out_with_errors():
    output = hvdliterun(3, "--transport tcp", SCRIPT, "crossed", **LIMITS).output
    for rank in range(3):
        assert "error" in told(output, rank)[0][1], output


RESTARTED = """
import hvdlite.jax as hvd
hvd.init()
import os, pathlib, signal, sys
import jax

saved = pathlib.Path(sys.argv[1])
begun = step = int(saved.read_text()) if saved.exists() else 0
hvd.barrier()
total = jax.jit(lambda x: hvd.allreduce(x, "x", op=hvd.Sum))
for step in range(begun, 4):
    assert total(1.0) == 2
    if hvd.rank() == 0: saved.write_text(str(step + 1))
    hvd.barrier()
    if (begun, step, hvd.rank()) == (0, 1, 1): os.kill(os.getpid(), signal.SIGKILL)
print(f"BEGUN AT {begun}\\n", end="")
"""


def test_the_launcher_restarts_a_job_and_the_job_resumes_from_its_file(tmp_path):
    saved = str(tmp_path / "saved")
    job = assert_passed(hvdliterun(2, "--transport tcp --restarts 1", RESTARTED, saved))
    assert job.output.count("BEGUN AT ") == 2 and "BEGUN AT 0" not in job.output, job.output


def test_the_error_of_elastic_training_names_the_option_dash_dash_restarts():
    code = "import hvdlite.jax as hvd\ntry: hvd.elastic\nexcept AttributeError as e: print(e)"
    assert "start it by `hvdliterun --restarts N`" in alone(code)


def test_importing_jax_before_hvdlite_is_an_error_with_the_line_to_add():
    code = "import os; os.environ.pop('MPITRAMPOLINE_LIB', None)\nimport jax\n"
    code += "import hvdlite.jax\ntry: hvdlite.jax.init()\nexcept ImportError as error: print(error)"
    assert "import hvdlite.jax before jax" in alone(code)


def test_hvdliterun_lets_scripts_import_jax_first():
    code = "import jax\nimport hvdlite.jax as hvd\nhvd.init()\nprint('SIZE', hvd.size())"
    assert hvdliterun(2, "--transport tcp", code).output.count("SIZE 2") == 2


JOINED = """
import os, sys
import hvdlite.jax as hvd
import jax
rank = int(os.environ["RANK"])
address = f"127.0.0.1:{int(os.environ['MASTER_PORT']) + 100}"
jax.distributed.initialize(address, 2, rank if sys.argv[1] == "same" else 1 - rank)
try:
    hvd.init()
    print(f"PROCESS {jax.process_index() == hvd.rank()} of {jax.process_count()}\\n", end="")
except RuntimeError as error:
    print(f"REFUSED {error}\\n", end="")
"""


@pytest.mark.parametrize(
    "numbers, text", [("same", "PROCESS True of 2"), ("other", "remove that call")]
)
def test_a_job_that_called_jax_distributed_initialize_works(numbers, text):
    jobs = start_ranks(2, "-c", JOINED, numbers)
    assert [text in job.output for job in jobs] == [True, True], [job.output for job in jobs]


def test_an_unsupported_jax_is_an_error_that_names_supported_versions():
    code = "import hvdlite.jax as hvd, jax\ndel jax.make_user_context\n"
    code += "try: hvd.init()\nexcept RuntimeError as error: print('ERROR', error)\n"
    job = assert_passed(mpirun(2, "-c", code))
    text = f"hvdlite.jax does not support JAX {version('jax')}: it was tested with JAX 0.7.2 to "
    assert job.output.count(f"ERROR {text}") == 2, job.output


def test_hvdlites_library_does_not_affect_jax_without_hvdlite():
    path = alone("import hvdlite.jax.library as library; print(library.PATH)").strip()
    code = "import jax; print(float(jax.jit(lambda x: x + 1)(1.0)))"
    assert alone(code, MPITRAMPOLINE_LIB=path).strip() == "2.0"


def test_several_devices_in_a_process_are_refused():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    job = mpirun(2, "-c", SCRIPT, "none", env=flags)
    assert "joins several devices of one process" in job.output


LOCAL = """
import hvdlite.jax as hvd, jax, numpy as np
hvd.init()
from jax.sharding import Mesh, PartitionSpec as P
mesh = Mesh(np.array(jax.local_devices()), ("device",))
total = lambda a: hvd.allreduce(a, "total", op=hvd.Sum)
mapped = jax.shard_map(total, mesh=mesh, in_specs=P("device"), out_specs=P("device"))
try:
    jax.jit(mapped)(np.arange(2.0, dtype="f4"))
except RuntimeError as error:
    assert "a jit program of 2 devices calls a collective of hvd" in str(error), error
    print("REFUSED\\n", end="")

def late(x, steps):  # rank 0 reaches the call after rank 1
    matrix = jax.lax.fori_loop(0, steps, lambda _, a: (a @ a) * 0.001, np.eye(90))
    return total(x + 0 * matrix[0, 0])

late, total = jax.jit(late), jax.jit(total)
inputs = [jax.device_put(np.float32(each), device) for each, device in zip([1, 9], mesh.devices)]
for _ in range(4):
    got = late(inputs[0], 0 if hvd.rank() else 2000), total(inputs[1])
    assert got == (2, 18), got
print("RIGHT\\n", end="")
"""


def test_hvdlite_collectives_work_on_several_local_devices_but_not_in_one_program():
    """hvdlite refuses a jit program of two devices, because XLA does not order their calls."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    job = assert_passed(mpirun(2, "-c", LOCAL, env=flags))
    assert [job.output.count(word) for word in ("REFUSED", "RIGHT")] == [2, 2], job.output


DEVICES = """
import hvdlite.jax as hvd, jax, numpy as np
hvd.init()
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
for ranks in (hvd.size(), 2):
    if hvd.rank() >= ranks: continue
    mesh = Mesh(np.array(jax.devices()).reshape(-1, 4)[:ranks], ("process", "device"))
    spec, rows = P("process", "device"), np.arange(ranks * 4.0).reshape(ranks, 4)
    x = jax.make_array_from_callback(rows.shape, NamedSharding(mesh, spec), lambda at: rows[at])
    total = lambda a: jax.lax.psum(a, "process")
    mapped = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=spec, out_specs=P(None, "device")))
    for _ in range(5):
        parts = mapped(x).addressable_shards
        assert [float(p.data[0, 0]) for p in parts] == list(rows.sum(0)), parts
print("RIGHT\\n", end="")
"""


def test_collectives_of_the_same_ranks_on_other_devices_run_at_the_same_time():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    job = assert_passed(mpirun(3, "-c", DEVICES, env=flags))
    assert job.output.count("RIGHT") == 3, job.output


THREADS = """
import threading
import hvdlite.jax as hvd, jax, numpy as np
hvd.init()
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
devices = np.array(jax.devices()).reshape(-1, 2)
both, right = threading.Barrier(2), []

def work(device):
    hvd.init()
    for ranks in ([1, 0], [2, 1], [0, 2], [2, 1, 0]):
        if hvd.rank() not in ranks: continue
        mesh = Mesh(devices[ranks, device], ("i",))
        x = jax.make_array_from_callback((len(ranks),), NamedSharding(mesh, P("i")),
                                         lambda at: np.full(1, device))
        total = lambda a: jax.lax.psum(a, "i")
        mapped = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("i"), out_specs=P()))
        both.wait()
        right.append(int(mapped(x).addressable_shards[0].data[0]) == len(ranks) * device)

threads = [threading.Thread(target=work, args=[device]) for device in range(2)]
for each in threads: each.start()
for each in threads: each.join()
print(f"RIGHT {right.count(True)}\\n", end="")
"""


def test_threads_of_two_devices_may_open_groups_of_the_same_ranks_at_the_same_time():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    job = assert_passed(mpirun(3, "-c", THREADS, env=flags))
    assert job.lines("RIGHT ") == ["6"] * 3, job.output


def test_programs_of_the_jax_page_run():
    """The programs print small losses, so they have trained."""
    text = (ROOT / "docs" / "jax.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", text, re.S):
        job = assert_passed(mpirun(2, "-c", code))
        assert float(re.search(r"loss ([\d.]+) on 2", job.output).group(1)) < 0.5


WITHOUT = {
    "thread": "#include <errno.h>\n#include <pthread.h>\n#define pthread_create(...) EAGAIN",
    "future": '#include "xla/ffi/api/c_api.h"\n#define XLA_FFI_Future_Create(made) '
    'XLA_FFI_Error_Create(ARGS(Error_Create, .message = ""))',
}


@pytest.mark.parametrize("without", WITHOUT.values(), ids=WITHOUT)
def test_long_jax_calls_are_right_even_if_no_thread_can_complete_them_later(without, tmp_path):
    """hvdlite must then complete long custom calls in the calling thread."""
    header = tmp_path / "none.h"
    header.write_text(without)
    code = (
        "import hvdlite.jax as hvd, jax, numpy as np\nhvd.init()\n"
        "total = jax.jit(lambda x: hvd.allreduce(x, 'x', op=hvd.Sum))\n"
        "print('TOTAL', float(total(np.ones(1 << 23, 'float32')).min()))\n"
    )
    env = {"CC": f"cc -include {header}", "HVDLITE_CACHE": str(tmp_path)}
    job = assert_passed(mpirun(2, "-c", code, env=env))
    assert job.lines("TOTAL ") == ["2.0", "2.0"]


def test_a_jax_call_of_several_tensors_fails_at_once_if_one_cannot_start(tmp_path):
    """The other tensors of the group must not start, because they would wait for that tensor."""
    header = tmp_path / "fails.h"
    header.write_text(
        '#include "functions.h"\n#include <string.h>\n'
        "#define hvd_plan(t, err) "
        'hvd_plan((strstr((t)->name, "bad#1[1]") ? (t)->ndim = 99 : 0, t), err)'
    )
    code = (
        "import hvdlite.jax as hvd, jax, numpy as np\nhvd.init()\n"
        "x = [np.ones(3, 'float32')] * 2\n"
        "try: jax.block_until_ready(jax.jit(lambda x: hvd.allreduce(x, 'bad'))(x))\n"
        "except (jax.errors.JaxRuntimeError, ValueError) as e: print('ERROR', '99 dim' in str(e))\n"
        "print('TOTAL', float(jax.jit(lambda x: hvd.allreduce(x, 'good', op=hvd.Sum))(x)[1][0]))\n"
    )
    env = {"CC": f"cc -include {header}", "HVDLITE_CACHE": str(tmp_path)}
    job = assert_passed(mpirun(2, "-c", code, env=env))
    assert job.lines("ERROR ") == ["True"] * 2 and job.lines("TOTAL ") == ["2.0"] * 2
