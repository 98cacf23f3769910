import os
import re

import pytest
from launching import call

from hvdlite import lightgbm
from hvdlite.core import addresses
from hvdlite.core.native import HvdliteError
from hvdlite.launch import check, cli, folder_copy
from hvdlite.launch.job import Job
from hvdlite.launch.ranks import place
from hvdlite.machine.hosts import SSH, Host, is_here, parse_list, read_file


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "no host"), ("a:x", "'a:x' is not a host"), ("a:0", "1 to 1024"), ("a,a", "twice"),
     ("a:2222", "--ssh-port"), ("a,-oProxyCommand=id", "'-oProxyCommand=id' is not a host"),
     ("me@-oX", "not a host"), ("-l@b", "not a host"), ("a;id", "not a host"),
     ("a/b", "not a host")],
)  # fmt: skip
def test_hvdliterun_refuses_a_wrong_host_list(text, says):
    with pytest.raises(ValueError, match=says):
        parse_list(text)


@pytest.mark.parametrize(
    ("line", "says"),
    [("b slots=0", "'b:0': a host takes 1 to 1024 ranks"), ("b slot=2", "'slot=2' is unknown"),
     ("b,c", "'b,c' is not a host"), ("b c", "'c' is unknown"), ("b slots=", "'b:' is not a host"),
     ("-oProxyCommand=id slots=1", "'-oProxyCommand=id' is not a host"),
     ("b:2 slots=2", "'slots=2'"), ("b slots=1 slots=2", "'slots=2' is unknown"),
     ("b max_slots=x", "'max_slots=x'"),
     ("b 4", "'4' is unknown"), ("b\0", "not a host"), ("b slots=" + 99 * "9", "not a host")],
)  # fmt: skip
def test_the_error_names_a_wrong_line_of_a_host_file(tmp_path, line, says):
    file = tmp_path / "hosts"
    file.write_text(f"a\n\n{line}\n")
    with pytest.raises(ValueError, match=f"host file {file}, line 3: .*{re.escape(says)}"):
        read_file(file)


def test_host_files_of_mpi_and_of_mxnet_are_read(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# head\nserver1 slots=4\n\nserver2:2  # two\nserver3\n")
    assert read_file(file) == [Host("server1", 4), Host("server2", 2), Host("server3", None)]
    file.write_text("\ufeffa slots = 2 max_slots=4\r\nme@b.example  \n")
    assert read_file(file) == [Host("a", 2), Host("me@b.example")]


@pytest.mark.parametrize("processes", range(1, 9))
def test_hosts_without_slots_share_ranks_evenly(processes):
    counts = [count for _, count in place([Host("a"), Host("b"), Host("c")], processes)]
    assert sum(counts) == processes
    assert max(counts) - min(counts) <= 1


def test_more_ranks_than_slots_are_refused():
    with pytest.raises(ValueError, match="7 processes do not fit on 6 slots"):
        place([Host("a", 2), Host("b", 4)], 7)


def test_names_and_addresses_of_this_host_are_recognized():
    assert is_here("localhost")
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.77")
    assert not is_here("a..b")  # a name that Python refuses to look up


def test_without_ssh_the_error_names_the_missing_command():
    env = {**os.environ, "HVDLITE_SSH": "/nowhere/ssh"}
    done = call("--transport", "tcp", "-H", "far", "true", env=env)
    told = "far cannot be reached by ssh: /nowhere/ssh: No such file or directory"
    assert (done.code, done.err) == (2, f"hvdliterun: {told}\n")


def test_the_launcher_ignores_output_of_shell_startup_files_on_a_host(tmp_path):
    """The output may be on stderr, or before or after the JSON on stdout. It need not be UTF-8."""
    shell = tmp_path / "ssh"
    shell.write_text("#!/bin/sh\nprintf 'gr\\374ezi\\n'; printf '\\374\\n' >&2\neval \"$8\"\n")
    shell.chmod(0o755)
    report = check.ask(SSH([str(shell)]), "far.invalid", load=False, tcp=True)
    assert (report.trouble, report.facts["host"]) == (None, os.uname().nodename)


def test_hosts_with_only_a_loopback_interface_use_the_loopback_address():
    """Containers may share a loopback interface."""
    loopback = ["127.0.0.1"]
    assert addresses._address_towards(loopback, [loopback]) == "127.0.0.1"


def test_lightgbm_refuses_a_host_that_has_only_ipv6(monkeypatch):
    """LightGBM 4.7 skips such an address, also in brackets, and trains without the host."""
    monkeypatch.setattr(lightgbm, "addresses_of_ranks", lambda: ["10.0.0.1", "fd00::2"])
    with pytest.raises(HvdliteError, match="rank 1's host has the address fd00::2: expected"):
        lightgbm.network_parameters()


@pytest.mark.skipif(addresses.probe.source_towards("::1") is None, reason="this host has no IPv6")
def test_hosts_with_only_ipv6_use_an_ipv6_address():
    """Otherwise the address would be 127.0.0.1, and JAX's processes would wait for each other."""
    assert addresses._address_towards(["127.0.0.1"], [["127.0.0.1", "::1"]]) == "::1"


def test_the_error_names_a_folder_that_cannot_be_made():
    job = Job(["true"], 1, sync_dir="/proc/nowhere/copy")
    told = "the folder can't be copied to localhost:/proc/nowhere/copy: No such file or directory"
    assert folder_copy._copy_to(job, "localhost") == told


@pytest.mark.parametrize("option", ["-H", "--hostfile"])
def test_the_error_names_a_missing_host_file(option, capsys):
    assert cli.main(["-n", "2", option, "nofile.txt", "true"]) == 2
    form = "a list of hosts has the form host1:4,host2:4"
    told = f"hvdliterun: host file nofile.txt: No such file or directory; {form}\n"
    assert capsys.readouterr().err == told
