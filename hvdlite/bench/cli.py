"""The command ``hvdlite-bench``: measures hvdlite alone, on the ranks that mpirun started."""

import argparse
import contextlib
import importlib.util
import itertools
import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

from hvdlite import cli
from hvdlite.bench import cases, machine, measure, models, report
from hvdlite.bench.cases import Case, parse_size
from hvdlite.machine import files

MEMORIES = ("private", "trainer", "zero-copy", "sharded")
KINDS = (*cases.KINDS, "update")
APIS = ("mxnet", "numpy")
LISTS: Dict[str, Tuple[Callable, Sequence[str], str, str]] = {
    # for each option: the function that converts a word, the known words, the default, the help
    "kinds": (str, KINDS, "allreduce", f"some of {', '.join(KINDS)}; or all. update: average the "
              "gradients of the models and update the weights"),
    "sizes": (parse_size, (), "4K,64K,1M,4M,16M,64M", "sizes of the arrays in bytes"),
    "dtypes": (str, (), "float32", "dtypes of the arrays"),
    "apis": (str, APIS, "mxnet,numpy", "libraries of the arrays"),
    "memory": (str, MEMORIES, "private,zero-copy,sharded", "private: arrays; trainer: gradients, "
               "by allreduce_grads(); zero-copy: the same after share_gradients; sharded: the same "
               "by a ShardedTrainer, updates and steps only"),
    "models": (str, models.NAMES, "lenet,resnet50", f"gradients of {', '.join(models.NAMES)}; or "
               "all"),
    "optimizers": (str, tuple(cases.OPTIMIZERS), "momentum", "optimizers of updates, some of "
                   f"{', '.join(cases.OPTIMIZERS)}; or all"),
}  # fmt: skip


def parse_args(arguments=None) -> argparse.Namespace:
    parser = cli.Parser(
        prog="hvdlite-bench",
        allow_abbrev=False,
        description="Measure hvdlite's collectives: mpirun -n 2 hvdlite-bench",
        epilog="An empty list or 0 leaves a part out: --models '' --idle 0. Bandwidths are defined "
        "as in NCCL's tests; the floor is the least time that the memory of one host allows.",
    )
    add = parser.add_argument
    for name, (convert, known, default, text) in LISTS.items():
        kind, text = _list_of(convert, known), f"{text} ({default})"
        add(f"--{name}", type=kind, default=default, metavar="LIST", help=text)
    measuring = "seconds to measure each line of the table (%(default)s)"
    add("--seconds", type=cli.seconds, default=0.5, help=measuring)
    add("--idle", type=cli.seconds, default=2, help="seconds to measure idle ranks (%(default)s)")
    add("--no-tiny", action="store_true", help="leave out the many small arrays")
    add("--no-step", action="store_true", help="leave out the training step of LeNet")
    add("--csv", type=Path, metavar="FILE", help="write the rows: seconds, bytes, bytes/s")
    add("--json", type=Path, metavar="FILE", help="write the rows and facts about the machine")
    return parser.parse_args(arguments)


def _list_of(convert, known=()):
    """Return a parser of "a,b,c"; "all" means all known words."""

    def parse(text: str) -> list:
        if text == "all" and known:
            return list(known)
        try:
            values = [convert(word.strip()) for word in text.split(",") if word.strip()]
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        unknown = [value for value in values if known and value not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]}: expected some of {', '.join(known)}")
        return values

    parse.__name__ = "list"  # argparse uses this name in its error
    return parse


def plan(args: argparse.Namespace) -> List[Tuple[str, Case]]:
    chosen: List[Tuple[str, Case]] = []
    for memory in args.memory:
        swept = cases.sweep(args.kinds, args.sizes, args.dtypes, memory)
        apis = [api for api in args.apis if api == "mxnet" or memory == "private"]
        chosen += [(api, case) for api in apis for case in swept]
    return chosen + ([("mxnet", case) for case in training(args)] if "mxnet" in args.apis else [])


def training(args: argparse.Namespace) -> List[Case]:
    """Return the cases with models, whose arrays are MXNet's."""
    reducing = [memory for memory in args.memory if memory != "sharded"]
    trainers = [memory for memory in args.memory if memory != "private"] or ["trainer"]
    chosen = []
    if args.kinds != ["update"]:
        chosen += [cases.model(name, memory) for name in args.models for memory in reducing]
        chosen += [] if args.no_tiny else [cases.tiny()]
    if "update" in args.kinds:
        each = itertools.product(args.models, ("trainer", "sharded"), args.optimizers)
        chosen += [cases.update(*work) for work in each]
    return chosen + ([] if args.no_step else [cases.step(memory) for memory in trainers])


def libraries(apis) -> Dict:
    """Join the job; return for each API an object that calls hvdlite with the API's arrays."""
    import hvdlite as hvd
    from hvdlite.bench.library import HvdliteArrays, NumPyArrays, last_algorithm

    hvd.init()
    opened = {"numpy": NumPyArrays(hvd.numpy, "numpy", last_algorithm)}
    if "mxnet" in apis:
        opened["mxnet"] = HvdliteArrays(hvd, "mxnet", last_algorithm)
    return opened


def main(arguments=None) -> None:
    args = parse_args(arguments)
    missing = [api for api in args.apis if not importlib.util.find_spec(api)]
    args.apis = [api for api in args.apis if api not in missing]
    opened = libraries(args.apis)
    from hvdlite.core import topology  # imported here, after init()

    world = topology.world()
    if missing and world.rank == 0:
        print(f"hvdlite-bench: not installed, so not measured: {', '.join(missing)}\n")
    about: Dict[str, Any] = {
        **machine.describe(),
        "ranks": world.size,
        "bandwidth": machine.memory_bandwidth(world),
    }
    rows = []
    with progress(plan(args), hidden=world.rank > 0) as bar:
        for api, case in bar:
            row = measure.measure(opened[api], case, world, args.seconds, about["bandwidth"])
            rows += [row] if row else []
    if args.idle:
        about["idle"] = machine.idle_share(world, args.idle)
    about["peak_memory"] = world.allgather(machine.peak_memory())
    if world.rank == 0:
        show(rows, about)
        save(rows, about, args)


def progress(todo: list, hidden: bool):
    """Return a progress bar on /dev/tty, if there is one, because stderr is a pipe to mpirun."""
    try:
        from tqdm import tqdm

        terminal = None if hidden else open("/dev/tty", "w")  # noqa: SIM115 (tqdm needs it open)
    except (ImportError, OSError):
        return contextlib.nullcontext(todo)
    return tqdm(todo, unit="work", file=terminal, disable=hidden, leave=False)


def show(rows: List[Dict], about: Dict) -> None:
    print(
        f"{about['ranks']} ranks on {about['cores']} cores of {about['processor']}, "
        f"{about['memory']}; memory moves {about['bandwidth'] / 1e9:.1f} GB/s, all ranks at once\n"
    )
    print(report.table(rows) if rows else "nothing to measure")
    if "idle" in about:
        shares = ", ".join(f"{100 * share:.2f} %" for share in about["idle"])
        print(f"\nidle, share of a core by rank: {shares}")
    peaks = ", ".join(f"{peak / 1e6:.0f} MB" for peak in about["peak_memory"])
    print(f"peak memory by rank: {peaks}")


def save(rows: List[Dict], about: Dict, args: argparse.Namespace) -> None:
    """Write the CSV file and the JSON file, if chosen; if one fails, still write the other."""
    writers = (
        (args.csv, lambda path: report.write_csv(path, rows)),
        (
            args.json,
            lambda path: report.save_text(path, json.dumps({**about, "rows": rows}, indent=1)),
        ),
    )
    troubles = []
    for path, write in writers:
        try:
            with files.writing(path):
                if path:
                    write(path)
        except files.NotWritten as why:
            troubles.append(f"hvdlite-bench: {why}")
    if troubles:
        sys.exit("\n".join(troubles))


if __name__ == "__main__":
    main()
