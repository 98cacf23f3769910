import contextlib
import io
import os
import sys
import threading
import time

import pytest

from hvdlite.core import agent_protocol
from hvdlite.launch import check
from hvdlite.launch.job import Job, LaunchError
from hvdlite.launch.output import STDERR, STDOUT, Console, Files, Lines, Output


def output(**options):
    out, err = io.StringIO(), io.StringIO()
    return Output(Console(out, err), **options), out, err


def test_parts_of_output_lines_are_joined_and_labeled_with_the_rank():
    shown, out, err = output()
    shown.write(0, "0", STDOUT, b"he")
    shown.write(1, "1", STDOUT, b"other\n")
    shown.write(0, "0", STDOUT, b"llo\nrest")
    shown.write(0, "0", STDERR, b"bad\n")
    shown.end(0, "0")
    assert out.getvalue() == "[1] other\n[0] hello\n[0] rest\n"
    assert err.getvalue() == "[0] bad\n"


def test_only_the_last_state_of_a_progress_bar_is_shown():
    lines = Lines()
    assert lines.feed(b"1%\r50%\r") == []
    assert lines.feed(b"100%\r\nnext\n") == ["100%", "next"]


def test_an_output_line_of_many_megabytes_is_shown_quickly():
    """Searching each new piece together with all earlier pieces would be quadratic."""
    lines = Lines()
    began = time.process_time()
    for _ in range(512):
        assert lines.feed(bytes(1 << 16)) == []
    assert [len(line) for line in lines.end()] == [1 << 25]
    assert time.process_time() - began < 8


def test_bytes_that_are_not_text_are_shown_as_replacement_characters():
    assert Lines().feed(b"\xff\n") == ["\ufffd"]


def test_a_character_that_the_terminal_lacks_is_replaced():
    """The terminal's encoding is latin-1."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    Output(Console(out, io.StringIO())).write(0, "0", STDOUT, b"gr\xfc\xc3\x9fe\n")
    assert out.buffer.getvalue() == b"[0] gr?\xdfe\n"


def test_only_terminals_get_colors(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    Console(terminal, terminal).write(1, "1", STDOUT, "x")
    assert terminal.getvalue() == "\x1b[33m[1]\x1b[0m x\n"
    monkeypatch.setenv("NO_COLOR", "1")
    Console(terminal, terminal).write(1, "1", STDOUT, "y")
    assert terminal.getvalue().endswith("\n[1] y\n")


def test_writing_output_without_a_reader_raises_only_once():
    reader, writer = os.pipe()
    with open(writer, "w") as out:
        console = Console(out, io.StringIO())
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            console.write(0, "0", STDOUT, "x")
        console.write(0, "0", STDOUT, "y")


def test_output_files_have_the_bytes_that_a_rank_wrote(tmp_path):
    shown, out, _ = output(files=Files(str(tmp_path)))
    shown.write(3, "3", STDOUT, b"a\xffb")
    shown.write(4, "server 0", STDERR, b"c\n")
    shown.close()
    assert (tmp_path / "rank.3" / "stdout").read_bytes() == b"a\xffb"
    assert (tmp_path / "server.0" / "stderr").read_bytes() == b"c\n"
    assert out.getvalue() == ""


@pytest.mark.parametrize("stream", [STDOUT, STDERR])
def test_if_the_disk_is_full_output_goes_to_the_screen_with_one_warning(stream, tmp_path, capsys):
    name = ("stdout", "stderr")[stream]
    (tmp_path / "rank.1").mkdir()
    (tmp_path / "rank.1" / name).symlink_to("/dev/full")
    shown, *screen = output(files=Files(str(tmp_path)))
    shown.write(0, "0", stream, b"kept\n")
    for _ in range(2):
        shown.write(1, "1", stream, b"more\n")
    assert (tmp_path / "rank.0" / name).read_text() == "kept\n"
    assert screen[stream].getvalue() == "[1] more\n" * 2
    told = f"hvdliterun: {tmp_path}/rank.1/{name} can't be written: No space left on device: "
    assert capsys.readouterr().err == f"{told}all output comes here now\n"


def test_an_output_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="--output-filename .*/file/logs: Not a directory"):
        Files(str(tmp_path / "file" / "logs"))


def test_a_full_disk_behind_stdout_is_reported_once(capsys):
    with open("/dev/full", "w") as out:
        shown = Output(Console(out, io.StringIO()))
        for _ in range(2):
            shown.write(0, "0", STDOUT, b"x\n")
    told = "stdout can't be written: No space left on device: the job goes on without it"
    assert capsys.readouterr().err == f"hvdliterun: {told}\n"


def test_a_warning_that_cannot_be_written_does_not_end_the_job(monkeypatch):
    monkeypatch.setattr(check, "_allow_files", print)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        check.prepare_host(Job(["true"], 1000))
        assert os.readlink(f"/proc/self/fd/{full.fileno()}") == "/dev/null"


def test_the_launcher_keeps_the_last_twenty_lines_of_a_rank():
    shown, _, _ = output()
    shown.write(0, "0", STDOUT, b"".join(b"%d\n" % i for i in range(50)))
    assert shown.last_lines(0) == [str(i) for i in range(30, 50)]


def test_a_rank_waits_until_a_busy_agent_has_room_for_its_report(monkeypatch):
    """A lost report of init() or shutdown() makes a good rank look failed, or the reverse."""
    reader, writer = os.pipe()
    monkeypatch.setenv(agent_protocol.VARIABLE, f"/proc/self/fd/{writer}")
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(1 << 16))
    threading.Timer(0.3, os.read, (reader, 1 << 16)).start()
    agent_protocol.report(agent_protocol.JOINED)
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert pipe.read() == b"+%d\n" % os.getpid()
