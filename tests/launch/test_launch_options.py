import os
import sys

import pytest

from hvdlite.launch import cli, environment, options, sizing
from hvdlite.launch.backends import BACKENDS
from hvdlite.launch.job_of_options import job_of
from hvdlite.machine import hosts, probe
from hvdlite.machine.hosts import Host


def job(*argv):
    return job_of(options.parser(list(BACKENDS)).parse_args(argv), list(argv))


def test_hvdliterun_takes_a_command_line_for_mxnets_launcher(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=4\nb slots=4\n")
    line = f"-n 8 -H {hosts} --launcher ssh --sync-dst-dir /d --mode mpi python t.py --kvstore x"
    found = job(*line.split())
    assert (found.ranks, found.launcher, found.mode) == (8, "ssh", "mpi")
    assert found.hosts == [Host("a", 4), Host("b", 4)]
    assert found.sync_dir == "/d"
    assert found.command == ["python", "t.py", "--kvstore", "x"]


@pytest.mark.parametrize(
    ("line", "mode", "servers"),
    [("-n 2 t", "mpi", 0), ("-n 2 -s 3 t", "ps", 3), ("-n 2 --mode ps t", "ps", 2)],
)
def test_hvdliterun_option_s_selects_the_parameter_server(line, mode, servers):
    found = job(*line.split())
    assert (found.mode, found.servers) == (mode, servers)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-n 2", "no program is given"),
        ("--nnodes 2 --nproc_per_node 2 t", "give -H host1,host2"),
        ("-n 3 --nproc-per-node 2 t", "leave one of them out"),
        ("-n 0 t", "at least one rank"),
        ("--mode ps -s 0 -n 1 t", "needs servers"),
        ("--launcher local -H a t", "takes no hosts"),
        ("--launcher ssh t", "needs hosts"),
        ("--sync-dst-dir /d t", "give them by -H"),
        ("--network-interfaces nope0 t", "has no interface 'nope0'"),
        (
            "-H a,b -i /a:b t",
            "ssh command has '/a:b', but Open MPI accepts no blank, colon or quote",
        ),
        ("--launcher sge t", "--pe"),
        ("--launcher k8s t", "--image"),
        ("--min-np 3 -n 2 t", "--min-np 3, -n 2, --max-np 2: expected 1 <= --min-np"),
        ("--max-np 1 -n 2 t", "--min-np 1, -n 2, --max-np 1: expected 1 <= --min-np"),
        ("--reset-limit -1 -n 2 t", "--reset-limit -1: expected at least 0"),
        ("--metrics-port abc t", "--metrics-port abc: expected PORT or ADDRESS:PORT"),
        ("--elastic -s 1 t", "MXNet's parameter server has no elastic training"),
        ("--elastic --transport mpi t", "--transport mpi: elastic training does not run over MPI"),
        (
            "--min-np 1 --transport mpi -n 3 t",
            "out, as in `hvdliterun --elastic -n 3 python train",
        ),
        ("--max-np 2 --mpi-args=-q t", "--mpi-args: elastic training does not run over MPI: leave"),
        ("--elastic --launcher mpi t", "--launcher mpi: elastic training does not run over MPI: "),
    ],
)
def test_the_error_of_a_wrong_command_line_is_one_sentence(line, says, capsys):
    assert cli.main(["--dry-run", *line.split()]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1


def test_the_option_host_timeout_limits_the_time_of_a_copy_to_a_host(capsys):
    line = "--dry-run --transport tcp --sync-dst-dir /d --host-timeout 30 -H far.invalid t"
    assert cli.main(line.split()) == 0
    assert "rsync -az --timeout=30 " in capsys.readouterr().out


def test_ranks_without_mpi_get_the_launchers_host_timeout(capsys):
    """With a shorter limit, the ranks would end the job too early."""
    assert cli.main(["--dry-run", "--transport", "tcp", "--host-timeout", "200", "t"]) == 0
    assert "HVDLITE_HOST_TIMEOUT_SECONDS=200\n" in capsys.readouterr().out


def test_a_dry_run_does_not_show_the_secret_of_the_job(capsys):
    assert cli.main(["--dry-run", "--transport", "tcp", "t"]) == 0
    assert "HVDLITE_SECRET=...\n" in capsys.readouterr().out


def test_on_one_host_mpirun_gets_no_network_interface(capsys):
    """Open MPI refuses "lo", and a job on one host needs no network."""
    assert cli.main(["--dry-run", "-n", "2", "--network-interfaces", "lo", "t"]) == 0
    assert "if_include" not in capsys.readouterr().out
    assert cli.main(["--dry-run", "-H", "a,b", "--network-interfaces", "lo", "t"]) == 0
    assert "prte_if_include lo" in capsys.readouterr().out


VALUES = {int: "4", float: "40", str: "x", list: "A:b"}
VALUE_OF = {
    "ranks": "3", "interfaces": "lo", "transport": "tcp", "metrics": "1", "mode": "ps",
}  # fmt: skip
# no fields of Job: main() uses these options, and compares nnodes with the number of hosts
NOT_OF_A_JOB = {"check", "json", "check_build", "version", "dry_run", "nnodes"}
ROWS = {row.attribute: row for rows in options.OPTIONS.values() for row in rows}


@pytest.mark.parametrize("name", sorted(ROWS.keys() - NOT_OF_A_JOB))
def test_every_option_of_hvdliterun_changes_the_job(name, monkeypatch):
    """An option that no code reads would be accepted without an effect."""
    monkeypatch.setattr(os, "urandom", bytes)  # the job's secret
    monkeypatch.setattr(hosts, "read_file", lambda path: [Host(path)])
    option = next(spelling for spelling in ROWS[name].names.split() if spelling[:2] == "--")
    value = VALUE_OF.get(name) or VALUES.get(ROWS[name].kind)
    given = [option] if value is None else [option, value]
    with_option, without = (job("-H", "a:2,b:2", *words, "t") for words in (given, []))
    assert with_option._replace(arguments=[]) != without._replace(arguments=[])


@pytest.mark.parametrize("option", ["-H", "--hostfile"])
def test_hvdliterun_refuses_an_empty_list_of_hosts(option, capsys):
    """`hvdliterun -H "$HOSTS"` must not silently train on only this host."""
    assert cli.main(["--dry-run", "-n", "2", option, "", "t"]) == 2
    assert capsys.readouterr().err.startswith("hvdliterun: ")


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "x"])
@pytest.mark.parametrize("option", ["--start-timeout", "--fusion-threshold-mb"])
def test_hvdliterun_refuses_a_value_that_is_not_a_number(option, value, capsys):
    with pytest.raises(SystemExit):
        job(f"{option}={value}", "t")
    assert f"{option}: '{value}': expected a number of at least 0" in capsys.readouterr().err


def test_hvdliterun_refuses_more_bytes_than_the_core_can_count():
    with pytest.raises(
        ValueError, match=r"--fusion-threshold-mb 1e\+308: expected less than 8796093"
    ):
        job("--fusion-threshold-mb=1e308", "t")


HOROVODS = "-bind-to none -map-by slot -x NCCL_DEBUG=INFO -x PATH -mca pml ob1 -mca btl ^openib"
TWO, SIX = [Host("a", 2), Host("b", 2)], [Host("a", 3), Host("b", 3)]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        # Horovod: docs/mpi.rst, docs/docker.rst, docs/troubleshooting.rst
        (f"-np 4 {HOROVODS} t", {"ranks": 4, "binding": []}),
        (
            "-np 3 -H a:2,b:2 --fusion-threshold-mb 32 python t.py -H t",
            {
                "ranks": 3,
                "launcher": "ssh",
                "env": {"HVDLITE_FUSION_THRESHOLD": str(32 << 20)},
                "command": ["python", "t.py", "-H", "t"],
            },
        ),
        (
            f"-np 4 -H a:2,b:2 {HOROVODS} t",
            {"hosts": TWO, "mpi_args": "--mca pml ob1 --mca btl ^openib"},
        ),
        (
            "-np 4 -mca btl_tcp_if_include lo,eth0 t",
            {"mpi_args": "--mca btl_tcp_if_include lo,eth0"},
        ),
        ("--bind-to core --map-by socket t", {"binding": "--bind-to core --map-by socket"}),
        ("--allow-run-as-root -oversubscribe -np 2 -host a,b t", {"ranks": 2}),
        ("-np 4 -hostfile FILE t", {"hosts": TWO}),
        # MPICH and Intel MPI
        ("-n 4 -ppn 2 -hosts a,b t", {"ranks": 4, "hosts": TWO}),
        ("-n 4 -perhost 2 -machinefile FILE t", {"ranks": 4, "hosts": TWO}),
        ("-f FILE -n 4 t", {"hosts": TWO}),
        ("-genv OMP_NUM_THREADS 4 -n 2 t", {"env": {"OMP_NUM_THREADS": "4"}}),
        ("-env A 1 -genvlist HOME -l -n 2 t", {"env": {"A": "1", "HOME": os.environ.get("HOME")}}),
        ("-iface lo -n 2 t", {"interfaces": ["lo"]}),
        ("-prepend-rank -n 2 t", {"ranks": 2}),
        # srun
        ("--ntasks 4 --ntasks-per-node=2 --nodes 2 --host a,b --label t", {"hosts": TWO}),
        ("--mpi=pmix --ntasks=3 t", {"ranks": 3}),
        # torchrun, torch.distributed.launch
        ("--standalone --nnodes=1 --nproc_per_node=2 t", {"ranks": 2}),
        ("--nnodes 1 --nproc-per-node 3 t", {"ranks": 3, "hosts": []}),
        ("--nnodes 2 --nproc-per-node 3 -H a,b:8 t", {"ranks": 6, "hosts": SIX}),
        ("--np 4 --oversubscribe -x A=1 t", {"ranks": 4, "hosts": []}),
        ("-H a:2,b:2 t", {"ranks": 4, "hosts": TWO}),  # without -np, ranks fill all slots
        ("t", {"ranks": 1, "hosts": []}),
        ("--nproc-per-node=2 --max-restarts=3 --log-dir=d t", {"restarts": 3, "output_dir": "d"}),
        ("--use-env --nproc_per_node 2 -m t", {"command": [sys.executable, "-m", "t"]}),
        # horovodrun with one dash
        ("-np 2 -start-timeout 60 -ssh-port 22 t", {"start_timeout": 60.0}),
        ("-p8022 -n2 -xA=1 t", {"ranks": 2, "env": {"A": "1"}}),
    ],
)
def test_command_lines_from_the_docs_of_other_launchers_work(line, found, tmp_path):
    """For example, -map-by must not be read as -m with the value `ap-by`."""
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb slots=2\n")
    made = job(*line.replace("FILE", str(file)).split())._asdict()
    for name, value in found.items():
        expected = value.split() if name in ("mpi_args", "binding") and value else value
        assert made[name] == expected, name
    assert made["command"][-1] == "t"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-N 4 t", "-N: counts a host's ranks in mpirun but hosts in srun: use --nproc-per-node 4"),
        ("-wdir /d t", "-wdir: run hvdliterun in that folder"),
        ("-genvall -n 2 t", "-genvall: name each variable: --genvlist A,B"),
        ("--prefix /opt/mpi t", "set PATH and LD_LIBRARY_PATH"),
        ("-bootstrap ssh t", "use --launcher ssh"),
        ("-mca plm_rsh_agent rsh t", "-mca plm_rsh_agent: use --ssh-port 2222"),
        ("--rdzv_id=7 --rdzv-endpoint=h:1 t", "tells them their meeting place: give -H"),
        ("--cpus-per-task=2 t", "-x OMP_NUM_THREADS"),
        ("-report-bindings t", "use --mpi-args=--report-bindings"),
        ("--master_addr h t", "tells them their meeting place: give -H"),
        ("--num-procs 2 t", "unknown option --num-procs: did you mean --num-proc?"),
        ("--start_timeout=9 t", "unknown option --start_timeout: did you mean --start-timeout?"),
        ("--zzyzx t", "unknown option --zzyzx: see hvdliterun --help"),
    ],
)
def test_the_error_of_an_unsupported_option_names_the_supported_option(line, says, capsys):
    with pytest.raises(SystemExit):
        job(*line.split())
    assert says in capsys.readouterr().err


def test_a_python_file_or_module_runs_with_this_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (("plain.py", ""), ("own.py", "#!/bin/sh"), ("no_line.py", "")):
        (tmp_path / name).write_text(text)
    (tmp_path / "own.py").chmod(0o755)
    (tmp_path / "no_line.py").chmod(0o755)
    python = [sys.executable]
    assert job("-n", "2", "plain.py", "-x").command == [*python, "plain.py", "-x"]
    # own.py is not in PATH, so a shell would not find it
    assert job("own.py").command == [*python, "own.py"]
    assert job("./own.py").command == ["./own.py"]
    assert job("./no_line.py").command == [*python, "./no_line.py"]
    assert job("-m", "pkg.train", "a").command == [*python, "-m", "pkg.train", "a"]


def test_the_number_of_threads_depends_on_the_cores_of_the_container(monkeypatch):
    """The container may use 2 of 64 cores, so each of 2 ranks gets 1 thread."""
    monkeypatch.setattr(sizing, "quota", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert environment.threads({}, 2) == {"OMP_NUM_THREADS": "1"}
    ranks, threads, why = sizing.of_host("4,2")  # OMP_NUM_THREADS of nested loops
    assert (ranks, threads) == (1, 4) and "each with your OMP_NUM_THREADS=4" in why


def test_horovods_switches_without_effect_are_accepted(capsys):
    assert cli.main(["--cycle-time-ms", "5", "--dry-run", "true"]) == 0
    assert "--cycle-time-ms has no effect" in capsys.readouterr().err


def test_an_environment_variable_may_have_an_equals_sign_or_a_colon(monkeypatch):
    monkeypatch.setenv("MINE", "1")
    monkeypatch.delenv("NOT_SET", raising=False)
    texts = ["A=b=c", "D:e:f", "MINE", "NOT_SET"]
    assert environment.parse_assignments(texts, "--env") == {"A": "b=c", "D": "e:f", "MINE": "1"}
    with pytest.raises(ValueError, match="NAME=VALUE"):
        environment.parse_assignments(["=x"], "--env")


def test_hvdliterun_help_has_a_text_for_every_option():
    parser = options.parser(list(BACKENDS))
    assert [action.option_strings for action in parser._actions if not action.help] == []
    text = " ".join(parser.format_help().split())
    assert "as many as workers in mode ps" in text
    assert "process" not in text  # the help says "rank", not "process"


@pytest.mark.parametrize(
    ["line", "transport"],
    [("-n 2", "tcp"), ("-n 2 --transport mpi", "mpi"), ("-n 2 --mpi-args=-q", None),
     ("-n 2 -s 1", None), ("-H a,b", "tcp")],
)  # fmt: skip
def test_without_mpirun_ranks_are_joined_by_tcp(line, transport, monkeypatch, capsys):
    monkeypatch.setattr(probe, "find_program", lambda name: None)
    monkeypatch.delenv("HVDLITE_MPIRUN", raising=False)
    made = job(*line.split(), "python", "train.py")
    assert (made.transport, made.env.get("HVDLITE_TRANSPORT")) == (transport, transport)
    assert ("there is no mpirun" in capsys.readouterr().err) == (transport == "tcp")


@pytest.mark.parametrize("words", ["-c 1", "-m train", "-x -w", "-n"])
def test_options_after_the_program_belong_to_the_program(words):
    """-c of python must not be read as an abbreviation of -chdir."""
    assert job("-n2", "python", *words.split()).command == ["python", *words.split()]
    assert job("-n2", "python", "t.py").ranks == 2


@pytest.mark.parametrize("option", ["--elastic", "--min-np 1", "--max-np 3", "--reset-limit 1"])
def test_ranks_of_an_elastic_job_are_joined_by_tcp(option):
    made = job("-n", "2", *option.split(), "python", "train.py")
    assert (made.elastic, made.transport, made.env["HVDLITE_TRANSPORT"]) == (True, "tcp", "tcp")


@pytest.mark.parametrize("line, used", [("-s 1", True), ("", False)])
def test_dmlc_interface_selects_the_network_only_for_mxnets_servers(
    line, used, capsys, monkeypatch
):
    """hvdliterun sets DMLC_NODE_HOST, so MXNet itself ignores DMLC_INTERFACE."""
    monkeypatch.setenv("DMLC_INTERFACE", "lo")
    assert cli.main([*line.split(), "--dry-run", "-n", "1", "t"]) == 0
    assert ("HVDLITE_NETWORK_INTERFACES=lo" in capsys.readouterr().out) == used
    monkeypatch.setenv("DMLC_INTERFACE", "no0")
    assert cli.main([*line.split(), "--dry-run", "-n", "1", "t"]) == (2 if used else 0)
    text = "(or DMLC_INTERFACE): this host has no interface 'no0'"
    assert (text in capsys.readouterr().err) == used
