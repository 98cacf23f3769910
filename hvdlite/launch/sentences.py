"""Writes what hvdliterun prints about ranks and backends that have ended."""

import os
import signal
from typing import List

from hvdlite.core.agent_protocol import TOO_LATE
from hvdlite.launch.failure import Ending


def report_standstill(
    late: List[Ending], more: int, first: Ending, last_lines: List[str]
) -> List[str]:
    """Return the report about ranks that the others waited for.

    :param last_lines: the last lines that the first late rank printed.
    """
    ends = "; its last lines:" if last_lines else ", and had printed nothing"
    who = f"rank {late[0].label} on {late[0].host}"
    more += len(late) - 1
    if more:
        ends = ends.replace("its", f"rank {late[0].label}'s")
        who += f" and {more} more"
    head = f"hvdliterun: {who} stood still, and rank {first.label} failed after {first.after:.1f} s"
    return [head + ends, *(f"    {x}" for x in last_lines)]


def report(first: Ending, code: int, last_lines: List[str], others: int) -> List[str]:
    """Return the report about the rank that failed first."""
    ends = "; its last lines:" if last_lines else ", and had printed nothing"
    lines = [_sentence(first, code) + ends]
    lines += [f"    {line}" for line in last_lines]
    if others:
        whom = "one was" if others == 1 else f"{others} were"
        lines.append(f"hvdliterun: the other {whom} ended")
    return lines


def report_backend(path: str, code: int, started: bool) -> str:
    """Return the report about a backend that ended too soon. Codes above 159 name no signal."""
    ended = f"was killed by {signal_name(code - 128)}" if 128 < code < 160 else "ended"
    when = "its ranks had finished" if started else "all ranks had started"
    return f"hvdliterun: {os.path.basename(path)} {ended} (exit code {code}) before {when}"


def report_death(end: Ending) -> List[str]:
    """Return the report about a rank that has failed in a job that goes on."""
    return [] if end.code == TOO_LATE else [_sentence(end, end.status) + "; the others go on"]


def _sentence(end: Ending, code: int) -> str:
    label = f"rank {end.label}" if end.label.isdigit() else end.label
    ended = f"failed with exit code {code}"
    if not (end.code or end.goodbye):
        ended = "ended with exit code 0 before it had left the job"
    if end.code < 0 and not end.ended:
        ended = f"was killed by {signal_name(-end.code)} (exit code {code})"
    if end.signal:
        ended = f"was ended by {signal_name(end.signal)}, which another process sent to its agent,"
    if end.silent and not end.ended:
        ended = f"ended without a report (it was killed, or {end.host} went down)"
    if end.silence:
        ended = (
            f"was lost (its host has not answered for {end.silence:.0f} s: its power or network)"
        )
    return f"hvdliterun: {label} on {end.host} {ended} after {end.after:.1f} s"


def signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return name + (", perhaps for lack of memory" if name == "SIGKILL" else "")
