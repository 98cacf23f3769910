import io
import os

import pytest

from hvdlite.launch.failure import (
    Ending,
    culprit,
    exit_code,
    report,
    report_standstill,
    who_stood_still,
)
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


def test_bytes_that_are_no_text_are_shown_somehow():
    assert Lines().feed(b"\xff\n") == ["\ufffd"]


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


def test_the_last_twenty_lines_are_kept():
    shown, _, _ = output()
    shown.write(0, "0", STDOUT, b"".join(b"%d\n" % i for i in range(50)))
    assert shown.last_lines(0) == [str(i) for i in range(30, 50)]


def ending(rank, code, ended, after):
    return Ending(rank, str(rank), f"h{rank}", code, ended, after)


def test_the_first_traceback_counts_though_its_rank_ends_last():
    endings = [ending(0, 1, False, 5.0), ending(1, -15, True, 6.0)]
    first = culprit(endings, {1: 4.8, 0: 4.9}, {0: 4.9})
    assert first.rank == 1
    assert exit_code(first) == 1


def test_who_says_that_another_has_left_is_no_culprit_though_we_heard_of_it_first():
    endings = [ending(0, 1, False, 5.0), ending(1, 1, False, 5.2), ending(2, -15, True, 6.0)]
    assert culprit(endings, {0: 4.8, 1: 4.9}, {0: 4.81}).rank == 1
    left = [ending(1, 0, False, 4.0), endings[0], endings[2]]  # its script had ended
    assert culprit(left, {0: 4.8}, {0: 4.81}).rank == 0
    later = [ending(0, 3, False, 100.0), ending(1, -15, True, 101.0)]  # it was caught
    assert culprit(later, {1: 100.5}, {0: 4.81}).rank == 0


def test_output_notes_tracebacks_and_whose_error_is_another_ranks():
    shown, _, _ = output()
    shown.write(0, "0", STDERR, b"Traceback (most recent call last):\n  ...\nValueError: left\n")
    shown.write(1, "1", STDERR, b"Traceback (most recent call last):\n  File ...\n")
    shown.write(1, "1", STDERR, b"E: tensor 'x' can't complete: rank 0 left the job (its ...)\n")
    assert (set(shown.troubled), set(shown.bereft)) == ({0, 1}, {1})


def test_a_killed_rank_comes_before_the_tracebacks_that_follow():
    endings = [ending(2, -9, False, 5.0), ending(0, 1, False, 5.3)]
    first = culprit(endings, {0: 5.2}, {})
    assert (first.rank, exit_code(first)) == (2, 137)


def test_a_traceback_that_was_caught_long_ago_does_not_count():
    endings = [ending(0, -15, True, 101.0), ending(1, 3, False, 100.0)]
    assert culprit(endings, {0: 2.0}, {}).rank == 1


def test_who_ended_for_a_lost_peer_is_no_culprit_though_we_heard_of_it_first():
    endings = [ending(0, 14, False, 5.001), ending(1, 7, False, 5.004), ending(2, 14, False, 5.1)]
    assert culprit(endings, {}, {}).rank == 1
    assert culprit(endings[:1], {}, {}).rank == 0


def test_agents_that_were_killed_all_at_once_are_no_culprits():
    first = Ending(0, "0", "h0", -9, False, 2.1, silent=True)
    at_once = Ending(1, "1", "h0", -9, True, 2.2, silent=True)
    later = Ending(1, "1", "h0", -9, True, 5.2, silent=True)
    assert culprit([first, at_once], {}, {}) is None
    assert culprit([first, later], {}, {}) == first  # its host no longer answered
    assert culprit([first], {}, {}) == first
    assert culprit([first, ending(1, -15, True, 2.2)], {}, {}) == first


def test_who_was_only_ended_is_no_culprit():
    assert culprit([ending(0, -15, True, 3.0), ending(1, 0, False, 1.0)], {}, {}) is None


def test_the_report_names_rank_host_code_and_last_lines():
    lines = report(ending(2, -11, False, 1.5), 139, ["a", "b"], 3)
    assert lines[0].startswith("hvdliterun: rank 2 on h2 was killed by SIGSEGV (exit code 139)")
    assert lines[1:] == ["    a", "    b", "hvdliterun: the other 3 were ended"]


def test_who_stood_still_is_blamed_not_who_waited_for_it():
    shown, _, _ = output()
    text = b"hvdlite.HvdliteError: tensor 'allreduce.x' has waited for 5 s: submitted by "
    for rank in (3, 0, 1):
        shown.write(rank, str(rank), STDERR, b"Traceback (most recent call last):\n  ...\n")
        shown.write(rank, str(rank), STDERR, text + b"ranks 0, 1, 3, not by rank 2\n")
    shown.write(2, "2", STDOUT, b"computing\n")
    endings = [ending(rank, 1, False, 7.0) for rank in (3, 0, 1)] + [ending(2, -15, True, 8.0)]
    first = culprit(endings, shown.troubled, shown.bereft)
    late = who_stood_still(first, endings, shown.waited_for)
    assert [e.rank for e in late] == [2]
    assert report_standstill(late, first, shown.last_lines(2)) == [
        f"hvdliterun: rank 2 on h2 stood still, and rank {first.rank} failed after 7.0 s; "
        "its last lines:",
        "    computing",
    ]
    died = [*endings[:3], ending(2, -9, False, 5.0)]
    assert who_stood_still(endings[0], died, shown.waited_for) == []


STALLED = "mxnet.base.MXNetError: MXNetError: tensor 'net.{}' has waited for 5 s: submitted by {}"


@pytest.mark.parametrize(
    ("text", "still"),
    [
        ("rank 0, not by ranks 1-3", [1, 2, 3]),
        ("ranks 0, 1, not by ranks 2, 3", [2, 3]),
        ("ranks 0, 2, not by ranks 1, 3 (rank 1 waits for 'x')", [3]),  # rank 1 has its own error
        ("ranks 0, 2, 3, not by rank 1 (rank 1 waits for 'x')", []),
    ],
)
def test_several_ranks_that_stood_still_are_blamed_by_errors_of_several_tensors(text, still):
    shown, _, _ = output()
    line = "; ".join(STALLED[STALLED.index("tensor") * bool(i) :].format(i, text) for i in (0, 1))
    shown.write(0, "0", STDERR, f"Traceback (most recent call last):\n  ...\n{line}\n".encode())
    waits = "rank 1 waits" in text
    endings = [ending(0, 1, False, 7.0), ending(1, 1, not waits, 7.1)]
    endings += [ending(rank, -15, True, 8.0) for rank in (2, 3)]
    late = who_stood_still(endings[0], endings, shown.waited_for)
    assert [e.rank for e in late] == still
    for line in report_standstill(late, endings[0], ["x"])[:1] if len(late) > 1 else ():
        assert f"rank {still[0]} on " in line
        assert f" and {len(still) - 1} more stood still, and rank 0 failed after 7.0 s; " in line
        assert line.endswith(f"rank {still[0]}'s last lines:")


TRACEBACK = b"Traceback (most recent call last):\n  File ...\n    x()\n"


def test_the_traceback_of_who_only_heard_of_a_failure_is_folded_away():
    shown, _, err = output()
    for rank, last in ((1, b"KeyError: 'label'"), (0, b"E: rank 1 left the job (its script ...)")):
        shown.write(rank, str(rank), STDERR, TRACEBACK)
        assert f"[{rank}]" not in err.getvalue()
        shown.write(rank, str(rank), STDERR, last + b"\n")
    assert err.getvalue().splitlines() == [
        "[1] Traceback (most recent call last):",
        "[1]   File ...",
        "[1]     x()",
        "[1] KeyError: 'label'",
        "[0] E: rank 1 left the job (its script ...) (traceback folded: another rank is to blame)",
    ]
    assert len(shown.last_lines(0)) == 4


def test_a_traceback_that_is_cut_off_is_shown_at_the_end():
    shown, _, err = output()
    shown.write(0, "0", STDERR, TRACEBACK + b"Key")
    shown.end(0, "0")
    shown.write(1, "1", STDERR, TRACEBACK)
    shown.end(1, "1")
    assert len(err.getvalue().splitlines()) == 7
