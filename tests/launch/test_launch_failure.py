"""How the launcher finds the rank to blame, from how ranks ended; what the launcher prints."""

import pytest

from hvdlite.core import limits
from hvdlite.launch import environment
from hvdlite.launch.channel import BadFrame
from hvdlite.launch.failure import (
    Ending,
    Signs,
    culprit,
    exit_code,
    last,
    who_stood_still,
)
from hvdlite.launch.job import Job
from hvdlite.launch.verdict import report, report_standstill


def ending(rank, code, ended, after, **more):
    return Ending(rank, str(rank), f"h{rank}", code, ended, after, **more)


def signs(raised=(), blamed=(), stalled=(), whom=(7,)) -> Signs:
    """Return the launcher's record of what ranks reported, in the order in which it happens.

    :param raised: rank -> second at which the rank reported an exception.
    :param blamed: rank -> second at which the rank blamed the ranks `whom` for its error.
    :param stalled: rank -> its report, in bytes, about ranks that stand still.
    """
    new = Signs()
    for rank, after in dict(blamed).items():
        new.add(rank, b"0 %d %s" % (len(whom), b" ".join(b"%d" % r for r in whom)), after)
    for rank, sign in dict(stalled).items():
        new.add(rank, sign, 1.0)
    for rank, after in dict(raised).items():
        new.add(rank, b"", after)
    return new


ENDED = ending(0, -15, True, 2.0)
FOLLOWER = ending(1, 1, False, 2.1)
SILENT = ending(0, -9, False, 2.1, silent=True)
LOST = [ending(0, 14, False, 5.0), ending(2, 14, False, 5.1)]
FIRST = [ending(0, 1, False, 5.0), ending(1, 1, False, 5.2), ending(2, -15, True, 6.0)]
STOPPED = [ending(1, 1, False, 7.0), ending(2, 1, False, 7.01), ending(0, -9, True, 8.0)]
SILENCES = {1: b"2 1 2", 2: b"2 1 0"}
CULPRITS = {  # how ranks ended, what they reported, which rank is to blame
    "rank with the first traceback, though it ends last": (
        [ending(0, 1, False, 5.0), ending(1, -15, True, 6.0)], signs({1: 4.8, 0: 4.9}, {0: 4.9}), 1
    ),
    "rank that left, though the blaming rank's traceback came first": (
        FIRST, signs({0: 4.8, 1: 4.9}, {0: 4.81}), 1
    ),
    "blaming rank, because the script of the rank that left had ended": (
        [ending(1, 0, False, 4.0), FIRST[0], FIRST[2]], signs({0: 4.8}, {0: 4.81}), 0
    ),
    "first rank to fail, which caught an earlier error that blamed another": (
        [ending(0, 3, False, 100.0), ending(1, -15, True, 101.0)], signs({1: 100.5}, {0: 4.81}), 0
    ),
    "killed rank, not one with a later traceback": (
        [ending(2, -9, False, 5.0), ending(0, 1, False, 5.3)], signs({0: 5.2}), 2
    ),
    "first rank to fail, not one that caught an exception long ago": (
        [ending(0, -15, True, 101.0), ending(1, 3, False, 100.0)], signs({0: 2.0}), 1
    ),
    "lost peer, not its followers": ([*LOST, ending(1, 7, False, 5.003)], signs(), 1),
    "lost peer, though a busy host reports it later": (
        [*LOST, ending(1, 7, False, 6.1)], signs(), 1
    ),
    "first rank that ended for a lost peer, if no other ended": (LOST, signs(), 0),
    "no rank, if all agents were killed together": (
        [SILENT, ending(1, -9, True, 2.2, silent=True)], signs(), None
    ),
    "first rank whose agent was silent, if agents ended at different times": (
        [SILENT, ending(1, -9, True, 5.2, silent=True)], signs(), 0
    ),
    "rank of the only agent": ([SILENT], signs(), 0),
    "rank of the only silent agent": ([SILENT, ending(1, -15, True, 2.2)], signs(), 0),
    "blaming rank, if it blames another than the rank that the backend had ended": (
        [ENDED, FOLLOWER], signs({1: 2.05}, {1: 2.05}), 1
    ),
    "no rank, if the blamed rank had been ended by the backend": (
        [ENDED, FOLLOWER], signs({1: 2.05}, {1: 2.05}, whom=[0]), None
    ),
    "blaming rank, if the backend ended the blamed rank later": (
        [ending(0, -15, True, 3.0), FOLLOWER], signs({1: 2.05}, {1: 2.05}, whom=[0]), 1
    ),
    "no rank, if the only failed rank was ended by the launcher": (
        [ending(0, -15, True, 3.0), ending(1, 0, False, 1.0)], signs(), None
    ),
    "rank that notices a silent rank, not those that notice its end": (
        STOPPED, signs({1: 6.9, 2: 5.0}, stalled=SILENCES), 2
    ),
    "rank that notices a silent rank, though others report first": (
        STOPPED, signs({1: 4.9, 2: 5}, stalled=SILENCES), 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CULPRITS)
def test_culprit_finds_the_rank_that_failed_first(case):
    endings, told, rank = CULPRITS[case]
    found = culprit(endings, told)
    assert (found and found.rank) == rank


@pytest.mark.parametrize(
    "end, code",
    [(ending(1, -15, True, 6.0), 1), (ending(2, -9, False, 5.0), 137), (FIRST[0], 1)],
)
def test_the_jobs_exit_code_is_that_of_the_culprit(end, code):
    assert exit_code(end) == code


def test_a_rank_that_raised_and_then_blames_others_is_the_culprit():
    """Rank 1, which the launcher ended, raised first. Rank 2, which blames rank 1, ended itself."""
    endings = [ending(1, 1, True, 15.4), ending(2, 9, False, 13.5)]
    told = signs({1: 13.31}, {2: 13.32}, whom=[1])
    told.add(1, b"0 1 2", 15.4)
    assert culprit(endings, told).rank == 1


def test_a_rank_that_waited_long_for_the_others_is_the_culprit():
    """Rank 1 raises and waits; rank 0 raises 9 s later, before it learns of rank 1's exception."""
    told = Signs(exit_timeout=10.0)
    told.add(1, b"", 1.0)
    told.add(0, b"", 10.0)
    endings = [ending(0, 1, False, 10.02), ending(1, 1, False, 10.03)]
    assert culprit(endings, told).rank == 1


@pytest.mark.parametrize(
    "of_user, of_job, seconds",
    [(None, {}, 2), ("10", {}, 10), ("10", {limits.EXIT: "20"}, 20), ("x", {}, 5)],
)
def test_the_launcher_knows_how_long_a_failed_rank_waits(monkeypatch, of_user, of_job, seconds):
    if of_user:
        monkeypatch.setenv(limits.EXIT, of_user)
    assert environment.exit_timeout(Job([], 2, env=of_job)) == seconds


@pytest.mark.parametrize("code, ended", [(14, False), (75, False), (143, True), (-15, True)])
def test_a_rank_that_ended_because_of_others_is_blamed_last(code, ended):
    killed, failed = ending(0, -9, False, 2.0), ending(1, 3, False, 1.0)
    follower = ending(2, code, ended, 3.0)
    assert last([failed, killed, follower]) == failed
    assert last([killed, follower]) == killed
    assert last([follower]) == follower
    assert last([ending(0, 0, False, 1.0)]) is None


def test_the_report_has_rank_host_exit_code_and_last_lines():
    lines = report(ending(2, -11, False, 1.5), 139, ["a", "b"], 3)
    assert lines[0].startswith("hvdliterun: rank 2 on h2 was killed by SIGSEGV (exit code 139)")
    assert lines[1:] == ["    a", "    b", "hvdliterun: the other 3 were ended"]


@pytest.mark.parametrize(
    ("sign", "ended", "still"),
    [
        (b"1 1 2", (2,), [2]),
        (b"1 3 1 2 3", (1, 2, 3), [1, 2, 3]),
        (b"1 2 2 3", (1, 2, 3), [2, 3]),
        (b"1 2 1 3", (2, 3), [3]),  # rank 1 raised a separate error
        (b"1 1 1", (2, 3), []),
        (b"1 30 1 2", (1, 2, 3), [1, 2]),
        (b"0 1 1", (1, 2, 3), []),  # rank 1 did not stand still but left
        (b"2 1 1", (1, 2, 3), [1]),  # rank 1 was silent
        (b"2 1 1", (2, 3), []),  # rank 1 was dead
    ],
)
def test_the_report_blames_ranks_that_stood_still_and_not_the_waiting_ranks(sign, ended, still):
    told = signs({0: 6.9}, stalled={0: sign})
    endings = [ending(0, 1, False, 7.0)]
    endings += [ending(rank, -15, rank in ended, 8.0) for rank in (1, 2, 3)]
    late, more = who_stood_still(endings[0], endings, told)
    assert [e.rank for e in late] == still
    for after, found in ((0.9, []), (6.0, still)):  # when the ranks other than rank 0 ended
        earlier = [endings[0], *(end._replace(after=after) for end in endings[1:])]
        assert [e.rank for e in who_stood_still(endings[0], earlier, told)[0]] == found
    by_the_backend = [end._replace(ended=False, silent=end.ended) for end in endings]
    found = [e.rank for e in who_stood_still(endings[0], by_the_backend, told)[0]]
    assert found == (still if sign[:1] == b"1" else [])
    if not late:
        return
    head, *lines = report_standstill(late, more, endings[0], ["x"])
    others = len(still) - 1 + more
    who = f" and {others} more" if others else ""
    whose = f"rank {still[0]}'s" if others else "its"
    assert head == (
        f"hvdliterun: rank {still[0]} on h{still[0]}{who} stood still, and rank 0 failed after "
        f"7.0 s; {whose} last lines:"
    )
    assert lines == ["    x"]


@pytest.mark.parametrize("sign, still", [(b"1 1 1", 1), (b"2 1 1", 0)])
def test_a_late_rank_that_jax_aborted_counts_as_late_and_not_as_dead(sign, still):
    """After rank 0's end, JAX aborts the other processes before the launcher can end them."""
    endings = [ending(0, 1, False, 7.2), ending(1, -6, False, 7.3)]
    told = signs({0: 6.9}, stalled={0: sign})
    assert len(who_stood_still(endings[0], endings, told)[0]) == still


@pytest.mark.parametrize("raised, still", [(6.9, 1), (7.1, 0)])
def test_an_error_about_a_silent_rank_is_not_the_cause_of_a_much_later_failure(raised, still):
    endings = [ending(0, 1, False, 7.2), ending(1, -9, True, 7.3)]
    told = signs({0: raised}, stalled={0: b"2 1 1"})
    assert len(who_stood_still(endings[0], endings, told)[0]) == still


def test_a_malformed_failure_report_is_refused():
    for sign in (b"x", b"1", b"0 1 a", b"\xff"):
        with pytest.raises(BadFrame):
            Signs().add(0, sign, 1.0)
