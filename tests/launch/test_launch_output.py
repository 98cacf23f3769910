import io
import os
import sys
import time

import pytest

from hvdlite.launch import check
from hvdlite.launch.channel import BadFrame
from hvdlite.launch.failure import (
    Ending,
    Signs,
    culprit,
    exit_code,
    last,
    report,
    report_standstill,
    who_stood_still,
)
from hvdlite.launch.job import Job, LaunchError
from hvdlite.launch.output import STDERR, STDOUT, Console, Files, Lines, Output


def output(**options):
    out, err = io.StringIO(), io.StringIO()
    return Output(Console(out, err), **options), out, err


def test_lines_are_put_together_and_told_apart():
    shown, out, err = output()
    shown.write(0, "0", STDOUT, b"he")
    shown.write(1, "1", STDOUT, b"other\n")
    shown.write(0, "0", STDOUT, b"llo\nrest")
    shown.write(0, "0", STDERR, b"bad\n")
    shown.end(0, "0")
    assert out.getvalue() == "[1] other\n[0] hello\n[0] rest\n"
    assert err.getvalue() == "[0] bad\n"


def test_of_a_progress_bar_its_last_state_is_shown():
    lines = Lines()
    assert lines.feed(b"1%\r50%\r") == []
    assert lines.feed(b"100%\r\nnext\n") == ["100%", "next"]


def test_a_line_of_many_megabytes_takes_no_minutes():
    """Each piece of it was searched with all before it: 32 MB took 20 s."""
    lines = Lines()
    began = time.process_time()
    for _ in range(512):
        assert lines.feed(bytes(1 << 16)) == []
    assert [len(line) for line in lines.end()] == [1 << 25]
    assert time.process_time() - began < 8


def test_bytes_that_are_no_text_are_shown_somehow():
    assert Lines().feed(b"\xff\n") == ["\ufffd"]


def test_a_terminal_that_lacks_a_character_shows_another():
    """The job was ended: 'latin-1' codec can't encode character."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    Output(Console(out, io.StringIO())).write(0, "0", STDOUT, b"gr\xfc\xc3\x9fe\n")
    assert out.buffer.getvalue() == b"[0] gr?\xdfe\n"


def test_colour_is_for_terminals(monkeypatch):
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


def test_a_reader_that_has_gone_is_told_of_once():
    reader, writer = os.pipe()
    with open(writer, "w") as out:
        console = Console(out, io.StringIO())
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            console.write(0, "0", STDOUT, "x")
        console.write(0, "0", STDOUT, "y")


def test_files_have_what_a_rank_wrote(tmp_path):
    shown, out, _ = output(files=Files(str(tmp_path)))
    shown.write(3, "3", STDOUT, b"a\xffb")
    shown.write(4, "server 0", STDERR, b"c\n")
    shown.close()
    assert (tmp_path / "rank.3" / "stdout").read_bytes() == b"a\xffb"
    assert (tmp_path / "server.0" / "stderr").read_bytes() == b"c\n"
    assert out.getvalue() == ""


@pytest.mark.parametrize("stream", [STDOUT, STDERR])
def test_on_a_full_disk_output_comes_to_the_screen_and_the_user_is_told_once(
    stream, tmp_path, capsys
):
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


def test_a_folder_for_output_that_can_not_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="--output-filename .*/file/logs: Not a directory"):
        Files(str(tmp_path / "file" / "logs"))


def test_a_screen_on_a_full_disk_is_told_once(capsys):
    with open("/dev/full", "w") as out:
        shown = Output(Console(out, io.StringIO()))
        for _ in range(2):
            shown.write(0, "0", STDOUT, b"x\n")
    told = "stdout can't be written: No space left on device: the job goes on without it"
    assert capsys.readouterr().err == f"hvdliterun: {told}\n"


def test_a_warning_that_can_not_be_written_ends_no_job(monkeypatch):
    monkeypatch.setattr(check, "_allow_files", print)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        check.prepare_host(Job(["true"], 1000))
        assert os.readlink(f"/proc/self/fd/{full.fileno()}") == "/dev/null"


def test_the_last_twenty_lines_are_kept():
    shown, _, _ = output()
    shown.write(0, "0", STDOUT, b"".join(b"%d\n" % i for i in range(50)))
    assert shown.last_lines(0) == [str(i) for i in range(30, 50)]


def ending(rank, code, ended, after):
    return Ending(rank, str(rank), f"h{rank}", code, ended, after)


def signs(raised=(), blamed=(), stalled=()) -> Signs:
    """What the launcher makes of these frames: (rank, seconds), (rank, seconds), (rank, sign).

    An exception comes after what has caused it.
    """
    new = Signs()
    for rank, after in dict(blamed).items():
        new.add(rank, b"0 1 7", after)
    for rank, sign in dict(stalled).items():
        new.add(rank, sign, 1.0)
    for rank, after in dict(raised).items():
        new.add(rank, b"", after)
    return new


def test_the_first_traceback_counts_though_its_rank_ends_last():
    endings = [ending(0, 1, False, 5.0), ending(1, -15, True, 6.0)]
    first = culprit(endings, signs({1: 4.8, 0: 4.9}, {0: 4.9}))
    assert first.rank == 1
    assert exit_code(first) == 1


def test_who_says_that_another_has_left_is_no_culprit_though_we_heard_of_it_first():
    endings = [ending(0, 1, False, 5.0), ending(1, 1, False, 5.2), ending(2, -15, True, 6.0)]
    assert culprit(endings, signs({0: 4.8, 1: 4.9}, {0: 4.81})).rank == 1
    left = [ending(1, 0, False, 4.0), endings[0], endings[2]]  # its script had ended
    assert culprit(left, signs({0: 4.8}, {0: 4.81})).rank == 0
    later = [ending(0, 3, False, 100.0), ending(1, -15, True, 101.0)]  # it was caught
    assert culprit(later, signs({1: 100.5}, {0: 4.81})).rank == 0


def test_who_raised_and_then_blames_those_that_end_is_the_culprit():
    """On a busy host the other was blamed: it had ended by itself, and this one was ended."""
    endings = [ending(1, 1, True, 15.4), ending(2, 9, False, 13.5)]
    told = signs({1: 13.31}, {2: 13.32})
    told.blamed[2] = 13.32, [1]
    told.add(1, b"0 1 2", 15.4)
    assert culprit(endings, told).rank == 1


def test_a_killed_rank_comes_before_the_tracebacks_that_follow():
    endings = [ending(2, -9, False, 5.0), ending(0, 1, False, 5.3)]
    first = culprit(endings, signs({0: 5.2}))
    assert (first.rank, exit_code(first)) == (2, 137)


def test_a_traceback_that_was_caught_long_ago_does_not_count():
    endings = [ending(0, -15, True, 101.0), ending(1, 3, False, 100.0)]
    assert culprit(endings, signs({0: 2.0})).rank == 1


def test_who_ended_for_a_lost_peer_is_no_culprit_though_we_heard_of_it_first():
    for later in (0.003, 1.1):  # on a busy host
        peers = [ending(0, 14, False, 5.0), ending(2, 14, False, 5.1)]
        assert culprit([*peers, ending(1, 7, False, 5.0 + later)], signs()).rank == 1
        assert culprit(peers, signs()).rank == 0


def test_agents_that_were_killed_all_at_once_are_no_culprits():
    first = Ending(0, "0", "h0", -9, False, 2.1, silent=True)
    at_once = Ending(1, "1", "h0", -9, True, 2.2, silent=True)
    later = Ending(1, "1", "h0", -9, True, 5.2, silent=True)
    assert culprit([first, at_once], signs()) is None
    assert culprit([first, later], signs()) == first  # its host no longer answered
    assert culprit([first], signs()) == first
    assert culprit([first, ending(1, -15, True, 2.2)], signs()) == first


def test_who_blames_a_rank_that_the_backend_had_ended_is_no_culprit():
    ended, follower = ending(0, -15, True, 2.0), ending(1, 1, False, 2.1)
    assert culprit([ended, follower], signs({1: 2.05}, {1: 2.05})) == follower
    blames = signs({1: 2.05}, {1: 2.05})
    blames.blamed[1] = 2.05, [0]
    assert culprit([ended, follower], blames) is None
    assert culprit([ending(0, -15, True, 3.0), follower], blames) == follower


def test_who_was_only_ended_is_no_culprit():
    assert culprit([ending(0, -15, True, 3.0), ending(1, 0, False, 1.0)], signs()) is None


@pytest.mark.parametrize("code, ended", [(14, False), (75, False), (143, True), (-15, True)])
def test_who_ends_because_others_have_ended_is_no_reason_why_nobody_went_on(code, ended):
    killed, failed = ending(0, -9, False, 2.0), ending(1, 3, False, 1.0)
    follower = ending(2, code, ended, 3.0)
    assert last([failed, killed, follower]) == failed
    assert last([killed, follower]) == killed
    assert last([follower]) == follower
    assert last([ending(0, 0, False, 1.0)]) is None


def test_the_report_names_rank_host_code_and_last_lines():
    lines = report(ending(2, -11, False, 1.5), 139, ["a", "b"], 3)
    assert lines[0].startswith("hvdliterun: rank 2 on h2 was killed by SIGSEGV (exit code 139)")
    assert lines[1:] == ["    a", "    b", "hvdliterun: the other 3 were ended"]


def test_who_stood_still_is_blamed_not_who_waited_for_it():
    told = signs({3: 6.9, 0: 6.9, 1: 6.9}, stalled=dict.fromkeys((3, 0, 1), b"1 1 2"))
    endings = [ending(rank, 1, False, 7.0) for rank in (3, 0, 1)] + [ending(2, -15, True, 8.0)]
    first = culprit(endings, told)
    late, more = who_stood_still(first, endings, told)
    assert ([e.rank for e in late], more) == ([2], 0)
    assert report_standstill(late, more, first, ["computing"]) == [
        f"hvdliterun: rank 2 on h2 stood still, and rank {first.rank} failed after 7.0 s; "
        "its last lines:",
        "    computing",
    ]
    died = [*endings[:3], ending(2, -9, False, 5.0)]
    assert who_stood_still(endings[0], died, told)[0] == []


@pytest.mark.parametrize(
    ("sign", "ended", "still"),
    [
        (b"1 3 1 2 3", (1, 2, 3), [1, 2, 3]),
        (b"1 2 2 3", (1, 2, 3), [2, 3]),
        (b"1 2 1 3", (2, 3), [3]),  # rank 1 has its own error
        (b"1 1 1", (2, 3), []),
        (b"1 30 1 2", (1, 2, 3), [1, 2]),
        (b"0 1 1", (1, 2, 3), []),  # it did not stand still: it has left
        (b"2 1 1", (1, 2, 3), [1]),  # it gave no sign of life
        (b"2 1 1", (2, 3), []),  # it was dead
    ],
)
def test_several_ranks_that_stood_still_are_blamed(sign, ended, still):
    told = signs(stalled={0: sign})
    endings = [ending(0, 1, False, 7.0)]
    endings += [ending(rank, -15, rank in ended, 8.0) for rank in (1, 2, 3)]
    late, more = who_stood_still(endings[0], endings, told)
    assert [e.rank for e in late] == still
    for line in report_standstill(late, more, endings[0], ["x"])[:1] if len(late) > 1 else ():
        assert f"rank {still[0]} on " in line
        assert f" and {len(still) - 1 + more} more stood still, and rank 0 failed after 7.0" in line
        assert line.endswith(f"rank {still[0]}'s last lines:")


def test_who_was_ended_before_the_others_failed_for_it_did_not_stand_still():
    told = signs(stalled={0: b"2 1 1"})
    endings = [ending(0, 1, False, 7.0), ending(1, -15, True, 6.0)]
    assert who_stood_still(endings[0], endings, told) == ([], 0)


def test_who_notices_a_silent_rank_comes_before_those_that_notice_its_own_end():
    """Though they are heard of first."""
    endings = [ending(1, 1, False, 7.0), ending(2, 1, False, 7.01), ending(0, -9, True, 8.0)]
    told = signs({1: 6.9, 2: 5.0}, stalled={1: b"2 1 2", 2: b"2 1 0"})
    assert culprit(endings, told).rank == 2
    assert culprit(endings, signs({1: 4.9, 2: 5}, stalled={1: b"2 1 2", 2: b"2 1 0"})).rank == 2


def test_a_sign_that_is_none_is_refused():
    for sign in (b"x", b"1", b"0 1 a", b"\xff"):
        with pytest.raises(BadFrame):
            Signs().add(0, sign, 1.0)
