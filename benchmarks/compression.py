"""Compression on a slow link: bytes on the wire, time of a step, accuracy after equal epochs.

    python -m benchmarks.compression                                two hosts, links of 200 Mbit/s
    python -m benchmarks.compression --rate 1gbit --hosts 4
    python -m benchmarks.compression --page docs/compression.md     puts the table there
    python -m benchmarks.compression --only fp16                    measures one case again

Trains a net of 1.1 million parameters (64-1024-1024-10) on scikit-learn's digits, one rank on each
of some hosts that tests/cluster.py makes of namespaces: as root, with iproute2 and OpenSSH. Results
are kept in build/compression.json; those of other hosts, links and epochs take their place.
"""

import argparse
import math
import time
from typing import Dict, List

from benchmarks import harness
from benchmarks.harness import Kept, markdown, parser_of, show

ROWS = 24  # of one rank in one step
TRAINED = 1440  # images; the others tell the accuracy
RATE = 0.05  # of learning, the same for all

CASES = {
    "none": {"type": "none"},
    "fp16": {"type": "fp16"},
    "bf16": {"type": "bf16"},
    "2bit, threshold 1": {"type": "2bit", "threshold": 1},  # chosen as docs/compression.md says
    "1bit": {"type": "1bit"},
    "topk, ratio 0.01": {"type": "topk", "ratio": 0.01},
}


# ---- on each rank ----


def digits():
    """Return the digits in an order that is the same everywhere, from 0 to 1, and their labels."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(labels))
    return (images[order] / 16).astype("float32"), labels[order].astype("float32")


def new_net():
    """Return the net with weights that are the same on every rank and in every case."""
    import mxnet as mx

    mx.random.seed(1)
    net = mx.gluon.nn.HybridSequential()
    for units in (1024, 1024):
        net.add(mx.gluon.nn.Dense(units, activation="relu"))
    net.add(mx.gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def step(net, trainer, images, labels) -> None:
    import mxnet as mx

    with mx.autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(images), labels)
    loss.backward()
    trainer.step(ROWS)
    mx.nd.waitall()


def train(params: dict, epochs: int) -> Dict[str, float]:
    """Train on this rank's part; return what there is to show of it."""
    import mxnet as mx
    import numpy as np

    import hvdlite as hvd
    from hvdlite.mxnet.compression import from_params

    images, labels = digits()
    own = [mx.nd.array(a[hvd.rank() : TRAINED : hvd.size()]) for a in (images, labels)]
    net = new_net()
    optimizer = mx.optimizer.SGD(learning_rate=RATE, momentum=0.9)
    trainer = hvd.DistributedTrainer(
        net.collect_params(), optimizer, compression=from_params(params)
    )
    seconds: List[float] = []
    for _ in range(epochs):
        for first in range(0, TRAINED // hvd.size() - ROWS + 1, ROWS):
            if len(seconds) == 1:  # the first has compared the nets, which is sent, too
                before = hvd.stats()["bytes_sent_mpi"]
            start = time.perf_counter()
            step(net, trainer, *(a[first : first + ROWS] for a in own))
            seconds.append(time.perf_counter() - start)
    sent = (hvd.stats()["bytes_sent_mpi"] - before) / (len(seconds) - 1)
    guesses = net(mx.nd.array(images[TRAINED:])).asnumpy().argmax(1)
    return {
        "bytes": sent,
        "seconds": float(np.median(seconds)),
        "accuracy": float((guesses == labels[TRAINED:]).mean()),
    }


def be_a_rank(folder: str, cases: List[str], epochs: int) -> None:
    import hvdlite as hvd

    hvd.init()
    harness.write(folder, hvd.rank(), {name: train(CASES[name], epochs) for name in cases})


# ---- on the machine ----


def measure(hosts: int, rate: str, epochs: int, only: List[str]) -> Dict[str, dict]:
    """Make the hosts, run the ranks on them, and return rank 0's results of the cases."""
    arguments = [*(f"--only={name}" for name in only), f"--epochs={epochs}"]
    return next(harness.results(harness.on_hosts(hosts, rate), "compression", arguments))


def add_to_kept(settings: list, results: Dict[str, dict]) -> Dict[str, dict]:
    """Return all results with these settings, in the order of the cases."""
    kept = Kept("compression")
    if kept.found.get("settings") == settings:
        results = {**kept.found["results"], **results}
    kept.found = {"settings": settings, "results": results}
    kept.save()
    return {name: results[name] for name in CASES if name in results}


def table(results: Dict[str, dict], hosts: int, rate: str, epochs: int) -> str:
    plain = results.get("none", {"bytes": math.nan, "seconds": math.nan})
    lines = [
        [
            name, f"{row['bytes']:,.0f}", f"{row['bytes'] / plain['bytes']:.3f}",
            f"{1e3 * row['seconds']:.1f}", f"{plain['seconds'] / row['seconds']:.1f}",
            f"{row['accuracy']:.3f}",
        ]
        for name, row in results.items()
    ]  # fmt: skip
    header = ["compression", "bytes a step, each rank", "of none", "ms a step", "speed-up",
              "accuracy"]  # fmt: skip
    title = f"{hosts} hosts, one rank each, links of {rate}, {epochs} epochs:"
    return f"{title}\n\n{markdown(header, lines)}\n"


def main() -> None:
    parser = parser_of(__doc__, rate="200mbit")
    add = parser.add_argument
    add("--hosts", type=int, default=2)
    add("--epochs", type=int, default=10)
    add("--only", action="append", choices=CASES, help="a case; more than once")
    add("--rank", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    cases = args.only or list(CASES)
    if args.rank:
        be_a_rank(args.rank, cases, args.epochs)
        return
    settings = [args.hosts, args.rate, args.epochs]
    text = table(add_to_kept(settings, measure(*settings, cases)), *settings)
    show(text, args.page)


if __name__ == "__main__":
    main()
