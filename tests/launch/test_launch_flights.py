"""What hvdliterun reads from flight recorders: the failure report, the summary, the metrics."""

import os
import re
import socket
import threading
import time
import urllib.request

from launching import call, python

from hvdlite.launch import metrics

OPERATIONS = """
import os, signal, time, numpy as np, hvdlite as hvd
hvd.init()
for i in range(12):
    hvd.numpy.allreduce(np.ones(1000, np.float32), name=f"gradient{i % 4}")
"""
LATE = 'hvd.numpy.allreduce(np.ones(1000, np.float32), name="late")\n'
DIES = "if hvd.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"


def test_the_failure_report_has_a_killed_rank_and_its_last_operation(tmp_path):
    env = {**os.environ, "HVDLITE_REPORTS": str(tmp_path)}
    run = call("-n", 3, *python(OPERATIONS + DIES + LATE), env=env)
    assert run.code == 137
    (path,) = tmp_path.glob("*-failure.txt")
    assert f"hvdliterun: what each rank did last is in {path}" in run.err
    text = path.read_text()
    assert "rank 1 on " in text and "was killed by SIGKILL" in text
    dead = text.split("---- rank 1 ")[1].partition("\n---- ")[0]
    assert "no stacks: the process has ended" in dead
    assert "done       12    4.0 kB  allreduce.gradient3" in dead
    assert "allreduce.late" not in dead


SCRAPE = """
import urllib.request
text = ""
while hvd.rank() == 0 and "gain" not in text.partition("# TYPE hvdlite_gain")[2]:
    time.sleep(0.1)
    text = urllib.request.urlopen(f"http://127.0.0.1:{os.environ['METRICS']}/metrics").read().decode()
print(text)
"""


def test_a_metrics_client_that_never_completes_does_not_delay_the_job(capsys, monkeypatch):
    monkeypatch.setattr(metrics, "_PATIENCE", 1e4)
    with metrics.serve("0", str):
        port = int(re.findall(r":(\d+)/", capsys.readouterr().err)[0])
        client = socket.create_connection(("127.0.0.1", port))
        client.send(b"GET /")
        time.sleep(0.5)
    client.close()


def test_many_metrics_clients_do_not_use_up_threads_and_descriptors(capsys):
    """With a thread and a descriptor per client, the launcher would have none left for itself."""
    before = threading.active_count()
    with metrics.serve("0", lambda: "all"):
        port = int(re.findall(r":(\d+)/", capsys.readouterr().err)[0])
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read()
        assert text == b"all"
        assert threading.active_count() - before < 150
    for client in clients:
        client.close()


def test_summary_and_metrics_name_the_slow_rank():
    code = OPERATIONS.replace("    hvd", "    time.sleep(0.08 * hvd.rank())\n    hvd") + SCRAPE
    code = code.replace("range(12)", "range(48)")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = call("--metrics-port", port, "-n", 1, *python(""))
    assert refused.code == 2 and "Address already in use: use another port" in refused.err
    env = {**os.environ, "METRICS": str(port)}
    run = call("--summary", "--metrics-port", port, "-n", 2, *python(code), env=env)
    assert f"hvdliterun: metrics: http://127.0.0.1:{port}/metrics" in run.err
    (gain,) = re.findall(r'hvdlite_gain_share\{job="\w+",cause="slow rank"\} (.*)', run.out)
    shares = dict(re.findall(r'share\{.*,rank="(.)",.*part="waiting"\} (.*)', run.out))
    # rank 0 waits 0.08 s of each step; a busy machine may also make rank 1 wait
    assert float(gain) == float(shares["0"]) > max(0.1, float(shares["1"]))
    assert run.code == 0 and "rank 1 on " in run.err, run.err
    assert "which wait for it" in " ".join(run.err.split())


SLOW = """
import sys, time

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "hvdlite.monitor.memory" and "hvdlite.launch.agent" in sys.orig_argv:
            time.sleep(8)

sys.meta_path.insert(0, Finder())
"""


def test_the_summary_waits_for_agents_that_read_slowly(tmp_path):
    """Otherwise the summary would say that no rank had called hvd.init()."""
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = call("--summary", "-n", 2, *python(OPERATIONS), env=env)
    assert run.code == 0 and run.seconds > 8
    assert "2 ranks on" in run.err, run.err
