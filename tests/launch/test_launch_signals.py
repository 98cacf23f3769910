"""Signals to hvdliterun itself, and a reader of its output that goes away."""

import os
import signal
import uuid

import pytest
from launching import TIMEOUT, left_with, processes_with, python, start

from hvdlite.launch import cli, probe
from hvdlite.launch.job import Outcome

pytestmark = pytest.mark.skipif(not probe.find_program("mpirun"), reason="there is no mpirun")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_launcher_ends_all(number, tmp_path):
    """Also one that it cannot catch, and also what a rank has started in the background."""
    marker = f"hvdlite-test-{uuid.uuid4().hex}"
    code = "import os, time; os.system('sleep 60 &'); print('up', flush=True); time.sleep(60)"
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed launcher leaves an empty folder
    launcher = start("-n", 2, "--env", f"MARKER={marker}", *python(code), env=env)
    for _ in range(2):
        assert "up" in launcher.stdout.readline()
    assert len(processes_with(marker)) >= 4
    launcher.send_signal(number)
    code = launcher.wait(TIMEOUT)
    assert left_with(marker) == []
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    told = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}.get(number)
    line = f"hvdliterun: interrupted by {told}: the job was ended"
    assert (line in launcher.stderr.read().splitlines()) == (number != signal.SIGKILL)
    launcher.stdout.close()
    launcher.stderr.close()


def test_under_nohup_a_closed_terminal_ends_no_job():
    code = "import time; print('up', flush=True); time.sleep(2)"
    launcher = start("-n", 1, *python(code), prefix=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"])
    with launcher.stdout, launcher.stderr:
        assert "up" in launcher.stdout.readline()
        launcher.send_signal(signal.SIGHUP)
        assert launcher.wait(TIMEOUT) == 0


def test_a_signal_between_two_attempts_is_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(cli, "prepared", lambda *_: Outcome(1, [], [], None, []))
    monkeypatch.setattr(cli.check, "without_lost_hosts", lambda *_: cli._interrupt(15, None))
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    words = ["--transport", "tcp", "--restarts", "1", "-H", "far:1", "true"]
    assert cli.main(words) == 128 + signal.SIGTERM
    assert "interrupted by SIGTERM: the job was ended" in capsys.readouterr().err


def test_a_reader_that_goes_away_ends_the_job():
    launcher = start("-n", 2, *python("while True: print('x' * 1000)"))
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(TIMEOUT) == 128 + signal.SIGPIPE
    launcher.stderr.close()
