"""Check hvdlite.torch and hvdlite's backend of torch.distributed on a GPU; measure them and Gloo.

    make test-gpu                         write build/gpu.json and print a table
    python tests/gpu.py --device cpu      the same on the CPU, without copies from and to a GPU

Two ranks share one GPU, which NCCL refuses, so their tensors pass through pinned host memory. Jobs
of one rank use NCCL with hvdlite; so does a job of two ranks if NCCL can share the GPU. Results are
compared with those of one process on the joined batch. This needs Python with PyTorch, NumPy and
cffi, but no network. The script ends soon after ``--until`` and reports which checks have not run.

Exit status: 1: a check failed; 2: no check failed, but some have not run.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Optional

import gpu_checks
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 195  # for all programs, without --until
MOST = 90  # seconds that one program may take
ENDING = 5  # seconds that a program has to end after SIGTERM

SHARED = "hvdlite.torch by NCCL, which shares the GPU"
RANKS = {  # program (hvdlite.torch, or a backend of torch.distributed) -> number of ranks
    "hvdlite.torch": 2,
    "hvdlite.torch by NCCL": 1,
    "cpu:hvdlite,cuda:hvdlite": 2,
    "cpu:gloo,cuda:gloo": 2,
    "cpu:hvdlite,cuda:nccl": 1,
    SHARED: 2,
}
_OF_ALL = gpu_checks.CHECKS["hvdlite.torch"]
_OF_ONE = [each for each in _OF_ALL if each is not gpu_checks.a_disagreement_is_an_error]
_OF_GROUPS = [*gpu_checks.OF_GROUPS, gpu_checks.times_of_a_group]
CHECKS = {
    "hvdlite.torch": _OF_ALL,
    "hvdlite.torch by NCCL": [*_OF_ONE, gpu_checks.nccl_moves_the_data],
    "cpu:hvdlite,cuda:hvdlite": _OF_GROUPS,
    "cpu:gloo,cuda:gloo": [gpu_checks.times_of_a_group],
    "cpu:hvdlite,cuda:nccl": _OF_GROUPS,
    SHARED: [*_OF_ALL, gpu_checks.nccl_moves_the_data],
}


def on_rank(program: str, file: Path, device: torch.device) -> None:
    """Run a program's checks as a rank; write the result of each check to a file."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    of_group = program.startswith("cpu:")
    if of_group:
        import hvdlite.torch.backend  # noqa: F401  registers the backend if hvdlite is not installed

        gpu_checks.group(program)
    found = {}
    for each in CHECKS[program]:
        try:
            found[each.__name__] = {"ok": True, "value": each(device, rank, size)}
        except Exception:
            found[each.__name__] = {"ok": False, "value": traceback.format_exc()}
        file.with_suffix(f".{rank}").write_text(json.dumps(found))
    if of_group:
        dist.destroy_process_group()


def run(program: str, folder: Path, device: str, seconds: float) -> Dict[str, Any]:
    """Start the ranks of a program; return rank 0's results and the failures of other ranks."""
    ranks, file = RANKS[program], folder / "gpu-check.json"
    for old in folder.glob("gpu-check.*"):
        old.unlink()
    limit = min(seconds - ENDING, MOST)
    start = [sys.executable, "-m", "hvdlite.launch", "--transport", "tcp", "-n", str(ranks)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    env["NCCL_MULTI_RANK_GPU_ENABLE"] = "1" if program == SHARED else "0"
    command = [*start, sys.executable, __file__, "--rank", program, str(file), "--device", device]
    status = ended_within(limit, subprocess.Popen(command, cwd=ROOT, env=env))
    files = [file.with_suffix(f".{rank}") for rank in range(ranks)]
    each = [json.loads(f.read_text()) if f.exists() else {} for f in files]
    found = copy.deepcopy(each[0])
    for other in each:
        for name, result in other.items():
            if not result["ok"]:
                found[name] = result
    if status is None and limit < MOST:
        return {**not_run(program, "the time was up"), **found}
    for function in CHECKS[program]:
        found.setdefault(function.__name__, {"ok": False, "value": "the job ended before it"})
    if status != 0:
        ended = f"the job did not end in {MOST} s" if status is None else f"exit status {status}"
        found["the end of the job"] = {"ok": False, "value": ended}
    return found


def ended_within(seconds: float, process: subprocess.Popen) -> Optional[int]:
    """Return the exit status of the process; None: it did not end in time, and was killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(ENDING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return None


def not_run(program: str, why: str) -> Dict[str, Any]:
    return {function.__name__: {"ok": None, "value": why} for function in CHECKS[program]}


def run_all(
    programs: Iterable[str], until: float, run: Callable, clock: Callable = time.time
) -> Dict[str, Dict[str, Any]]:
    """Return the results of all programs; programs for which no time is left do not run.

    :param run: a function of a program and its number of seconds.
    """
    found = {}
    for program in programs:
        left = until - clock()
        enough = left > 2 * ENDING
        found[program] = run(program, left) if enough else not_run(program, "the time was up")
    return found


def why_not(program: str, device: torch.device) -> str:
    """Return why the program can't run here; "" if it can."""
    if "nccl" not in program.lower():
        return ""
    if device.type != "cuda":
        return "NCCL needs a GPU"
    version = torch.cuda.nccl.version()[:2]
    refuses = program == SHARED and version < (2, 30)
    return f"NCCL {version[0]}.{version[1]} refuses two ranks on one GPU" if refuses else ""


def table(found: Dict[str, Dict[str, Any]]) -> str:
    times = {}
    for program, checks in found.items():
        for result in checks.values():
            if result["ok"] and isinstance(result["value"], dict):
                times[program] = result["value"]
    titles = list(dict.fromkeys(title for each in times.values() for title in each))
    lines = [f"| ms, allreduce | {' | '.join(titles)} |", "|---|" + "--:|" * len(titles)]
    for program, each in [(program, times.get(program, {})) for program in found]:
        values = [f"{each[title]:.3g}" if title in each else "" for title in titles]
        values = values if each else ["not run"] * len(titles)
        lines.append(f"| {program}, {RANKS[program]} ranks | {' | '.join(values)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "gpu.json")
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS))
    parser.add_argument("--until", type=float, default=time.time() + SECONDS, help="Unix time")
    parser.add_argument("--rank", nargs=2, metavar=("PROGRAM", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        on_rank(args.rank[0], Path(args.rank[1]), args.device)
        return 0
    is_gpu = args.device.type == "cuda"
    if is_gpu and not torch.cuda.is_available():
        parser.error(
            f"PyTorch {torch.__version__} finds no GPU. Use --device cpu to try the checks"
        )
    card = torch.cuda.get_device_name() if is_gpu else "no GPU: on the CPU"
    args.json.parent.mkdir(exist_ok=True)
    reasons = {program: why_not(program, args.device) for program in args.only}
    found = run_all(
        [program for program in args.only if not reasons[program]],
        args.until,
        lambda program, left: run(program, args.json.parent, str(args.device), left),
    )
    skipped = {program: not_run(program, why) for program, why in reasons.items() if why}
    args.json.write_text(
        json.dumps({"card": card, "torch": torch.__version__, **found, **skipped}, indent=1)
    )
    print(f"\n{card}, PyTorch {torch.__version__}\n\n{table(found)}\n")
    for program, why in reasons.items():
        if why:
            print(f"{program} does not apply: {why}")
    return report(found)


def report(found: Dict[str, Dict[str, Any]]) -> int:
    """Print all results; return the exit status."""
    results = [(p, name, r) for p, checks in found.items() for name, r in checks.items()]
    for program, name, result in results:
        text = "" if isinstance(result["value"], dict) else result["value"] or ""
        state = {True: "ok", False: "FAILED", None: "NOT RUN"}[result["ok"]]
        print(f"{state:8}{program}: {name.replace('_', ' ')}; {text}")
    passed, failed, missing = (
        sum(result["ok"] is state for *_, result in results) for state in (True, False, None)
    )
    print(f"{passed} passed, {failed} failed, {missing} not run")
    return 1 if failed else 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
