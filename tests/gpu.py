"""Check hvdlite.torch and the backend of torch.distributed on a GPU, and measure times, Gloo's too.

    make test-gpu                         write build/gpu.json and print a table
    python tests/gpu.py --device cpu      the same on the CPU, without copies from and to a GPU

Two ranks share one GPU, which NCCL refuses, so their tensors pass through pinned host memory. Jobs
of one rank use NCCL with hvdlite. Results are compared with those of one process on the joined
batch. This needs Python with PyTorch, NumPy and cffi, but no network.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Dict, Optional

import torch
import torch.distributed as dist
from gpu_checks import CHECKS, RANKS, group

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 90  # seconds that one program may take


def on_rank(program: str, file: Path, device: torch.device) -> None:
    """Run a program's checks as a rank; write the result of each check to a file."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    of_group = program.startswith("cpu:")
    if of_group:
        import hvdlite.torch.backend  # noqa: F401  registers the backend if hvdlite is not installed

        group(program)
    found = {}
    for each in CHECKS[program]:
        try:
            found[each.__name__] = {"ok": True, "value": each(device, rank, size)}
        except Exception:
            found[each.__name__] = {"ok": False, "value": traceback.format_exc()}
        file.with_suffix(f".{rank}").write_text(json.dumps(found))
    if of_group:
        dist.destroy_process_group()


def run(program: str, folder: Path, device: str) -> Dict[str, Any]:
    """Start the ranks of a program; return rank 0's results and the failures of other ranks."""
    ranks, file = RANKS[program], folder / "gpu-check.json"
    for old in folder.glob("gpu-check.*"):
        old.unlink()
    start = [sys.executable, "-m", "hvdlite.launch", "--transport", "tcp", "-n", str(ranks)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [*start, sys.executable, __file__, "--rank", program, str(file), "--device", device]
    try:
        done: Optional[subprocess.CompletedProcess] = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        done = None
    files = [file.with_suffix(f".{rank}") for rank in range(ranks)]
    each = [json.loads(f.read_text()) if f.exists() else {} for f in files]
    found = copy.deepcopy(each[0])
    for other in each:
        for name, result in other.items():
            if not result["ok"]:
                found[name] = result
    for function in CHECKS[program]:
        found.setdefault(function.__name__, {"ok": False, "value": "it was not reached"})
    if done is None or done.returncode:
        ended = f"no end in {LIMIT} s" if done is None else f"exit status {done.returncode}"
        found["the end of the job"] = {"ok": False, "value": ended}
    return found


def table(found: Dict[str, Dict[str, Any]]) -> str:
    times = {}
    for program, checks in found.items():
        for result in checks.values():
            if result["ok"] and isinstance(result["value"], dict):
                times[program] = result["value"]
    titles = list(dict.fromkeys(title for each in times.values() for title in each))
    lines = [f"| ms, allreduce | {' | '.join(titles)} |", "|---|" + "--:|" * len(titles)]
    for program, each in times.items():
        values = (f"{each[title]:.3g}" if title in each else "" for title in titles)
        lines.append(f"| {program}, {RANKS[program]} ranks | {' | '.join(values)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "gpu.json")
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS))
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
    programs = [p for p in args.only if is_gpu or "nccl" not in p.lower()]
    found = {program: run(program, args.json.parent, str(args.device)) for program in programs}
    args.json.write_text(json.dumps({"card": card, "torch": torch.__version__, **found}, indent=1))
    results = [(p, name, r) for p, checks in found.items() for name, r in checks.items()]
    for program, name, result in results:
        text = "" if isinstance(result["value"], dict) else result["value"] or ""
        print(f"{'ok' if result['ok'] else 'FAILED':7}{program}: {name.replace('_', ' ')}; {text}")
    failed = sum(not result["ok"] for *_, result in results)
    print(f"\n{card}, PyTorch {torch.__version__}\n\n{table(found)}\n")
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
