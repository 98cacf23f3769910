"""hvdlite.run() runs a function on several ranks and returns their results."""

import os
import subprocess
import sys

import pytest

import hvdlite as hvd
from hvdlite.launch.api import JobFailed, _job, pack

SCRIPT = """\
import hvdlite as hvd

def where(x, scale=1):
    hvd.init()
    print("here")
    return hvd.rank(), hvd.size(), x * scale

if __name__ == "__main__":
    print(hvd.run(where, args=(3,), kwargs={"scale": 2}, np=2))
"""
WITHOUT_CLOUDPICKLE = "import sys; sys.modules['cloudpickle'] = None\n"


@pytest.mark.parametrize("head", ["", WITHOUT_CLOUDPICKLE])
def test_run_returns_results_in_the_order_of_ranks(tmp_path, head):
    script = tmp_path / "script.py"
    script.write_text(head + SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    *shown, results = done.stdout.splitlines()
    assert results == "[(0, 2, 6), (1, 2, 6)]", done.stderr
    assert sorted(shown) == ["[0] here", "[1] here"]


RETURNS_ITS_CLASS = """
import hvdlite as hvd
class Result:
    pass
def make():
    return Result()
if __name__ == "__main__":
    print("RESULT", [type(each) is Result for each in hvd.run(make, np=2)])
"""


def test_a_function_may_return_an_object_of_a_class_of_the_script(tmp_path):
    (tmp_path / "script.py").write_text(RETURNS_ITS_CLASS)
    line = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert "RESULT [True, True]" in done.stdout, done.stderr


def test_run_raises_an_error_if_the_function_raises_an_exception():
    with pytest.raises(JobFailed, match="ZeroDivisionError") as caught:
        hvd.run(divmod, args=(1, 0), np=2)
    assert caught.value.code == 1


def test_run_raises_broken_pipe_error_if_the_reader_of_stdout_closes():
    """The error must be BrokenPipeError, not KeyboardInterrupt."""
    there, here = os.pipe()
    os.close(there)
    code = "import hvdlite as hvd; hvd.run(print, ('here',), np=2)"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=here, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(here)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("BrokenPipeError"), done.stderr


def test_run_refuses_a_function_that_cannot_be_sent(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ValueError, match="pip install cloudpickle"):
        pack(lambda: 1, (), {})


def test_run_accepts_use_mpi_and_use_gloo_of_horovod():
    assert hvd.run(divmod, args=(7, 2), np=1, use_mpi=True, use_gloo=False) == [(3, 1)]
    assert hvd.run(os.getenv, args=("HVDLITE_TRANSPORT",), np=1, use_gloo=True) == ["tcp"]


def test_a_rank_that_exits_with_code_0_has_the_result_none():
    """A dead rank of an elastic job has no result either."""
    assert hvd.run(sys.exit, args=(0,), num_proc=1, transport="tcp") == [None]


def test_run_takes_the_options_of_hvdliterun(tmp_path):
    assert _job(["python"], {"mpi_args": "--verbose"}).mpi_args == ["--verbose"]
    hvd.run(print, ("there",), None, 2, start_timeout=60, output_filename=str(tmp_path / "out"))
    assert [file.read_text() for file in (tmp_path / "out").rglob("stdout")] == ["there\n"] * 2
    with pytest.raises(ValueError, match="hvdlite.run: .*--gloo-size"):
        hvd.run(divmod, (7, 2), gloo_size=3)
