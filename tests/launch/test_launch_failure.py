"""Which rank failed first, by the ends of ranks and by what they have told; and its report."""

import pytest

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


def ending(rank, code, ended, after, **more):
    return Ending(rank, str(rank), f"h{rank}", code, ended, after, **more)


def signs(raised=(), blamed=(), stalled=(), whom=(7,)) -> Signs:
    """What the launcher makes of these frames: (rank, seconds), (rank, seconds), (rank, sign).

    An exception comes after what has caused it.

    :param whom: whom those that blame others blame.
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
    "the first traceback counts though its rank ends last": (
        [ending(0, 1, False, 5.0), ending(1, -15, True, 6.0)], signs({1: 4.8, 0: 4.9}, {0: 4.9}), 1
    ),
    "who says that another has left though we heard of it first": (
        FIRST, signs({0: 4.8, 1: 4.9}, {0: 4.81}), 1
    ),
    "who says that another has left, whose script had ended": (
        [ending(1, 0, False, 4.0), FIRST[0], FIRST[2]], signs({0: 4.8}, {0: 4.81}), 0
    ),
    "who said so long ago, and caught it": (
        [ending(0, 3, False, 100.0), ending(1, -15, True, 101.0)], signs({1: 100.5}, {0: 4.81}), 0
    ),
    "a killed rank comes before the tracebacks that follow": (
        [ending(2, -9, False, 5.0), ending(0, 1, False, 5.3)], signs({0: 5.2}), 2
    ),
    "a traceback that was caught long ago": (
        [ending(0, -15, True, 101.0), ending(1, 3, False, 100.0)], signs({0: 2.0}), 1
    ),
    "who ended for a lost peer": ([*LOST, ending(1, 7, False, 5.003)], signs(), 1),
    "who ended for a lost peer, of which a busy host tells later": (
        [*LOST, ending(1, 7, False, 6.1)], signs(), 1
    ),
    "nobody but those who ended for a lost peer": (LOST, signs(), 0),
    "agents that were killed all at once": (
        [SILENT, ending(1, -9, True, 2.2, silent=True)], signs(), None
    ),
    "agents on a host that no longer answered": (
        [SILENT, ending(1, -9, True, 5.2, silent=True)], signs(), 0
    ),
    "one agent": ([SILENT], signs(), 0),
    "one agent of two": ([SILENT, ending(1, -15, True, 2.2)], signs(), 0),
    "who blames another one than the rank that the backend had ended": (
        [ENDED, FOLLOWER], signs({1: 2.05}, {1: 2.05}), 1
    ),
    "who blames a rank that the backend had ended": (
        [ENDED, FOLLOWER], signs({1: 2.05}, {1: 2.05}, whom=[0]), None
    ),
    "who blames a rank that the backend ended later": (
        [ending(0, -15, True, 3.0), FOLLOWER], signs({1: 2.05}, {1: 2.05}, whom=[0]), 1
    ),
    "who was only ended": ([ending(0, -15, True, 3.0), ending(1, 0, False, 1.0)], signs(), None),
    "who notices a silent rank comes before those that notice its own end": (
        STOPPED, signs({1: 6.9, 2: 5.0}, stalled=SILENCES), 2
    ),
    "though they are heard of first": (STOPPED, signs({1: 4.9, 2: 5}, stalled=SILENCES), 2),
}  # fmt: skip


@pytest.mark.parametrize("case", CULPRITS)
def test_the_rank_that_failed_first_is_blamed(case):
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
    """On a busy host the other was blamed: it had ended by itself, and this one was ended."""
    endings = [ending(1, 1, True, 15.4), ending(2, 9, False, 13.5)]
    told = signs({1: 13.31}, {2: 13.32}, whom=[1])
    told.add(1, b"0 1 2", 15.4)
    assert culprit(endings, told).rank == 1


@pytest.mark.parametrize("code, ended", [(14, False), (75, False), (143, True), (-15, True)])
def test_a_rank_that_ends_because_others_ended_is_not_the_reason(code, ended):
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


@pytest.mark.parametrize(
    ("sign", "ended", "still"),
    [
        (b"1 1 2", (2,), [2]),
        (b"1 3 1 2 3", (1, 2, 3), [1, 2, 3]),
        (b"1 2 2 3", (1, 2, 3), [2, 3]),
        (b"1 2 1 3", (2, 3), [3]),  # rank 1 raised an error of its own
        (b"1 1 1", (2, 3), []),
        (b"1 30 1 2", (1, 2, 3), [1, 2]),
        (b"0 1 1", (1, 2, 3), []),  # the rank did not stand still but left
        (b"2 1 1", (1, 2, 3), [1]),  # the rank gave no sign of life
        (b"2 1 1", (2, 3), []),  # the rank was dead
    ],
)
def test_ranks_that_stood_still_are_blamed_not_the_waiting_ranks(sign, ended, still):
    told = signs({0: 6.9}, stalled={0: sign})
    endings = [ending(0, 1, False, 7.0)]
    endings += [ending(rank, -15, rank in ended, 8.0) for rank in (1, 2, 3)]
    late, more = who_stood_still(endings[0], endings, told)
    assert [e.rank for e in late] == still
    for after, found in ((0.9, []), (6.0, still)):  # before and after rank 0 has told of them
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


def test_a_malformed_failure_report_is_refused():
    for sign in (b"x", b"1", b"0 1 a", b"\xff"):
        with pytest.raises(BadFrame):
            Signs().add(0, sign, 1.0)
