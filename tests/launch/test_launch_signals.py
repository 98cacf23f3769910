"""Signals to hvdliterun, and a reader that closes the pipe of its output."""

import os
import signal
import subprocess
import uuid

import pytest
from jobs import processes_of, wait_until
from launching import HVDLITERUN, TIMEOUT, left_with, python, start

from hvdlite.launch import cli
from hvdlite.launch.job import Outcome
from hvdlite.machine import probe

pytestmark = pytest.mark.skipif(not probe.find_program("mpirun"), reason="there is no mpirun")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_ends_all_processes_of_the_job(number, tmp_path):
    """Background processes of ranks end, too, even after SIGKILL, which can't be caught."""
    marker = f"hvdlite-test-{uuid.uuid4().hex}"
    code = "import os, time; os.system('sleep 600 &'); print('up', flush=True); time.sleep(600)"
    # a killed launcher leaves its temporary folder
    env = {**os.environ, "MARKER": marker, "TMPDIR": str(tmp_path)}
    launcher = start("-n", 2, *python(code), env=env)
    for _ in range(2):
        assert "up" in launcher.stdout.readline()
    assert len(processes_of(marker)) >= 4
    launcher.send_signal(number)
    code = launcher.wait(TIMEOUT)
    assert left_with(marker) == []
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    told = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}.get(number)
    line = f"hvdliterun: interrupted by {told}: the job was ended"
    assert (line in launcher.stderr.read().splitlines()) == (number != signal.SIGKILL)
    launcher.stdout.close()
    launcher.stderr.close()


def test_under_nohup_a_closed_terminal_does_not_end_the_job():
    code = "import time; print('up', flush=True); time.sleep(2)"
    launcher = start("-n", 1, *python(code), prefix=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"])
    with launcher.stdout, launcher.stderr:
        assert "up" in launcher.stdout.readline()
        launcher.send_signal(signal.SIGHUP)
        assert launcher.wait(TIMEOUT) == 0


def test_a_signal_between_two_attempts_prints_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(cli, "check_and_run", lambda *_: Outcome(1, [], [], None, []))
    monkeypatch.setattr(cli.check, "without_lost_hosts", lambda *_: cli._interrupt(15, None))
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    words = ["--transport", "tcp", "--restarts", "1", "-H", "far:1", "true"]
    assert cli.main(words) == 128 + signal.SIGTERM
    assert "interrupted by SIGTERM: the job was ended" in capsys.readouterr().err


# A fake command that logs its arguments and the signals that it gets.
COMMAND = """#!/bin/sh
echo "$0 $*" >> {log}
case $0 in *qdel) exit; esac
trap 'echo SIGTERM >> {log}; exit 9' TERM
trap 'echo SIGINT >> {log}' INT
echo 17
cat > /dev/null
touch {log}.up; sleep 600 > /dev/null 2>&1 & wait; wait
"""


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Put fake commands into PATH; return the file to which they log."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("SLURM_JOB_ID", "PE_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("far_ssh", "qsub", "qdel", "salloc"):
        (tmp_path / name).write_text(COMMAND.format(log=tmp_path / "log"))
        (tmp_path / name).chmod(0o755)
    return tmp_path / "log"


def wait_for(commands):
    assert wait_until(lambda: os.path.exists(f"{commands}.up"), TIMEOUT)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("-H far", []),  # killed while the launcher asks the host for hvdlite
        ("--launcher salloc", ["SIGTERM"]),
        ("--launcher sge --pe mpi", ["SIGTERM", "qdel 17"]),
    ],
)
def test_sigterm_ends_the_command_that_the_launcher_waits_for(commands, line, told):
    mark = uuid.uuid4().hex
    env = {**os.environ, "HVDLITE_SSH": "far_ssh", "MARKER": mark}
    line = line.replace("salloc", "slurm").split()
    launcher = start("-n", 2, *line, "true", env=env, stdin=subprocess.DEVNULL)
    wait_for(commands)
    launcher.send_signal(signal.SIGTERM)
    _, err = launcher.communicate(timeout=TIMEOUT)  # the commands would run longer
    assert (launcher.returncode, err.splitlines()[-1]) == (
        143, "hvdliterun: interrupted by SIGTERM: the job was ended"
    )  # fmt: skip
    text = commands.read_text()
    assert [each for each in ("SIGTERM", "qdel 17") if each in text] == told
    for each in left_with(mark, 0):  # processes of the fake commands
        os.kill(each, signal.SIGKILL)


def test_the_command_of_a_batch_system_gets_ctrl_c(commands):
    """A shell or Java that is started with SIGINT ignored can't handle SIGINT later."""
    env = {**os.environ, "MARKER": str(commands)}
    line = [*HVDLITERUN, "--launcher", "slurm", "-n", "2", "true"]
    launcher = subprocess.Popen(line, env=env, start_new_session=True, stdin=subprocess.DEVNULL)
    wait_for(commands)
    os.killpg(launcher.pid, signal.SIGINT)
    got_it = wait_until(lambda: "SIGINT\n" in commands.read_text(), TIMEOUT)
    os.killpg(launcher.pid, signal.SIGTERM)
    launcher.wait(TIMEOUT)
    assert got_it


def test_a_closed_reader_of_the_output_ends_the_job():
    launcher = start("-n", 2, *python("while True: print('x' * 1000)"))
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(TIMEOUT) == 128 + signal.SIGPIPE
    launcher.stderr.close()
