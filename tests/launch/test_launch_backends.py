"""The commands and files that hvdliterun makes for its backends, without starting jobs."""

import json
import re
import shlex
import subprocess

import pytest
from jobs import ROOT

from hvdlite.launch import cli, mpirun, ranks, submit
from hvdlite.launch.backends import containers, sge
from hvdlite.launch.job import Job, LaunchError
from hvdlite.machine import probe
from hvdlite.machine.hosts import Host


def dry_run(line, capsys):
    assert cli.main(["--dry-run", *shlex.split(line)]) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    for name in ("SLURM_JOB_ID", "PE_HOSTFILE", "HADOOP_HOME", "HVDLITE_SSH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def an_mpi(monkeypatch):
    """Return a function that makes hvdliterun find the mpirun of a given MPI."""

    def choose(version):
        found = ("/mpi/bin/mpirun", mpirun.dialect_of(version))
        monkeypatch.setattr(mpirun, "find", lambda: found)

    return choose


HYDRA = "HYDRA build details:\n    Version:                                 5.0.2\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to", "Open MPI 5.0.11"),
        ("mpirun (Open MPI) 4.1.4", "Open MPI 4.1.4"),
        (HYDRA, "MPICH 5.0.2"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 1", "Intel MPI 2021.9 Build 1"),
    ],
)
def test_an_mpi_is_recognized_by_the_output_of_its_mpirun(text, name):
    assert probe.name_of_mpi(text) == name
    mpirun.dialect_of(name)


def test_hvdliterun_refuses_an_unknown_mpi():
    with pytest.raises(LaunchError, match="Open MPI and MPICH"):
        mpirun.dialect_of("mpirun (Other) 1")


LINES = {
    "Open MPI 5.0.11": "-n 3 --host a:2,b:1 --prtemca plm ssh --prtemca plm_ssh_agent",
    "Open MPI 4.1.4": "-n 3 --host a:2,b:1 --mca plm rsh --mca plm_rsh_agent",
    "MPICH 5.0.2": "-n 3 -hosts a:2,b:1 -launcher ssh -launcher-exec",
}


@pytest.mark.parametrize("version", LINES)
def test_each_kind_of_mpirun_gets_options_that_it_understands(an_mpi, version, capsys):
    an_mpi(version)
    out = dry_run("-n 3 -H a:2,b:2 python t.py 'x y'", capsys)
    last = out.splitlines()[-1]
    assert last.startswith(f"/mpi/bin/mpirun {LINES[version]}")
    assert last.endswith("-m hvdlite.launch.agent -- python t.py 'x y'")
    assert ("-x HVDLITE_LAUNCHER" in last) == version.startswith("Open MPI")


def test_mpich_gets_arguments_for_ssh_in_an_environment_variable(an_mpi, capsys):
    an_mpi("MPICH 5.0.2")
    out = dry_run("-n 2 -H a,b -p 2222 true", capsys)
    line = next(line for line in out.splitlines() if "HYDRA_LAUNCHER_EXTRA_ARGS" in line)
    assert "-p 2222" in line


def test_mpi_args_and_binding_args_reach_mpirun(an_mpi, capsys):
    an_mpi("Open MPI 5.0.11")
    out = dry_run("-n 2 --mpi-args '--mca pml ob1' --binding-args '--bind-to core' true", capsys)
    assert "--mca pml ob1" in out
    assert "--bind-to core" in out
    assert "--bind-to none" not in out


def test_outside_a_slurm_allocation_the_launcher_uses_salloc(capsys):
    out = dry_run("--launcher slurm -n 4 --queue q python t.py", capsys)
    last = shlex.split(out.splitlines()[-1])
    assert last[:4] == ["salloc", "--ntasks=4", "--job-name=hvdlite", "--partition=q"]
    assert last[-2:] == ["python", "t.py"]


def test_the_batch_script_for_slurm_has_its_directives(capsys):
    out = dry_run("--launcher slurm --batch --jobname j -n 4 python t.py 'a b'", capsys)
    lines = out.splitlines()
    script = lines[lines.index("#!/bin/sh") :]
    assert "#SBATCH --ntasks=4" in script
    assert script[-1].endswith("--launcher slurm --jobname j -n 4 python t.py 'a b'")


def test_grid_engine_gets_a_script_and_a_parallel_environment(capsys):
    out = dry_run("--launcher sge --pe mpi -n 4 python t.py", capsys)
    assert "-pe mpi 4" in out
    assert "-sync y" in out
    assert "-sync y" not in dry_run("--launcher sge --pe mpi -n 4 --batch python t.py", capsys)


def test_a_character_half_written_to_a_log_is_shown_when_complete(tmp_path, capsys):
    log, done = tmp_path / "log", 0
    for text in (None, b"\xc3", b"\xc3\xa9\n"):
        if text:
            log.write_bytes(text)
        done = submit._print_from(str(log), done)
    assert capsys.readouterr().out == "é\n"


def test_the_hosts_of_grid_engine_are_read_from_its_file(monkeypatch, tmp_path, an_mpi):
    an_mpi("Open MPI 5.0.11")
    file = tmp_path / "hosts"
    file.write_text("node1 2 all.q@node1 UNDEFINED\nnode2 2 all.q@node2 UNDEFINED\n")
    monkeypatch.setenv("PE_HOSTFILE", str(file))
    command = sge.command(Job(["t"], ranks=4))
    assert "node1:2,node2:2" in command.argv
    assert "qrsh -inherit -nostdin -V" in command.argv


def test_the_command_for_yarn_has_the_documented_options(capsys):
    """The allowed options are those of "Writing YARN Applications" at hadoop.apache.org."""
    out = dry_run("--launcher yarn -n 4 --queue q python t.py 'a b'", capsys)
    words = shlex.split(shlex.split(out.splitlines()[-1])[2])
    assert words[:3] == ["exec", "yarn", "jar"]
    assert words[4].endswith("distributedshell.Client")
    options = dict(zip(words[5::2], words[6::2]))
    assert set(options) <= DISTRIBUTED_SHELL
    assert (options["-container_vcores"], options["-queue"]) == ("4", "q")
    inner = shlex.split(options["-shell_command"])
    assert inner[-5:] == ["--launcher", "local", "python", "t.py", "a b"]


DISTRIBUTED_SHELL = {
    *("-appname", "-container_memory", "-container_vcores", "-jar", "-num_containers", "-queue"),
    *("-shell_args", "-shell_command", "-shell_env", "-shell_script"),
}


def test_the_manifest_for_kubernetes_has_only_fields_that_the_operator_knows(capsys):
    """The allowed fields are those of the custom resource definition kubeflow.org/v2beta1."""
    out = dry_run("--launcher k8s --image me/hvd:1 -n 4 --jobname j python t.py 'a b'", capsys)
    job = containers.manifest(Job(["t"], ranks=4, image="me/hvd:1"))
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert set(job["spec"]) <= MPI_JOB_SPEC
    assert set(job["spec"]["runPolicy"]) <= RUN_POLICY
    replicas = job["spec"]["mpiReplicaSpecs"]
    assert set(replicas) == {"Launcher", "Worker"}
    assert all(set(r) == {"replicas", "restartPolicy", "template"} for r in replicas.values())
    assert replicas["Launcher"]["replicas"] == 1
    assert replicas["Worker"]["replicas"] == 4
    assert '"a b"\n' in out


MPI_JOB_SPEC = {
    *("launcherCreationPolicy", "mpiImplementation", "mpiReplicaSpecs", "runLauncherAsWorker"),
    *("runPolicy", "slotsPerWorker", "sshAuthMountPath"),
}
RUN_POLICY = {
    *("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy", "schedulingPolicy"),
    *("suspend", "ttlSecondsAfterFinished"),
}


def test_the_example_files_for_clusters_are_valid(capsys):
    """Check examples/deploy as far as possible without Slurm, Docker and Kubernetes."""
    folder = ROOT / "examples" / "deploy"
    script = (folder / "job.slurm").read_text()
    assert subprocess.run(["sh", "-n", folder / "job.slurm"]).returncode == 0
    line = script.splitlines()[-1].partition(" ")[2].replace('"$ranks"', "8")
    assert "python train.py" in dry_run(line, capsys)
    copied = re.findall(r"^COPY (\S+)", (folder / "Dockerfile").read_text(), re.M)
    assert [name for name in copied if list(ROOT.glob(name))] == copied[1:] != []
    job = pytest.importorskip("yaml").safe_load((folder / "trainjob.yaml").read_text())
    assert set(job["spec"]["trainer"]) <= {
        *("command", "image", "numNodes", "numProcPerNode", "resourcesPerNode")
    }


def test_the_manifest_for_kubernetes_keeps_the_words_of_the_command(capsys):
    out = dry_run("--launcher k8s --image me/hvd:1 -n 2 python t.py 'a: \"b\"'", capsys)
    lines = [line for line in out.splitlines() if not line.startswith("#")]
    job = json.loads("\n".join(lines))
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert launcher["command"][-1] == 'a: "b"'


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_each_process_of_a_job_with_servers_gets_a_different_role(servers):
    there = [ranks.Rank(n, None, h, f"10.0.0.{ord(h)}", n, {}) for n, h in enumerate("aaaabbbb")]
    roles = ranks.roles_of(there, Job([], 7 - servers, servers=servers))
    assert len(set(roles)) == 8
    assert roles[0].kind == "scheduler"
    assert sum(role.kind == "server" for role in roles) == servers


def test_mpirun_shares_ranks_among_hosts_without_slots(an_mpi):
    an_mpi("Open MPI 5.0.11")
    job = Job(["t"], ranks=2, servers=2, mode="ps", hosts=[Host("a"), Host("b")], launcher="ssh")
    assert "a:3,b:2" in mpirun.command(job, "ssh").argv
