"""Trains boosted trees to read handwritten digits, from files in LibSVM's format.

    python examples/xgboost_libsvm.py                   one process
    mpirun -n 2 python examples/xgboost_libsvm.py       two ranks, each with its part of the lines
    python examples/xgboost_libsvm.py --help            files of your own, rounds, depth, ...

Only the lines that end in "# hvdlite" are needed for many ranks. Without them, the script runs in
one process:

    grep -v '# hvdlite$' examples/xgboost_libsvm.py > one_process.py
"""

import argparse
import tempfile
import time
from pathlib import Path

import hvdlite as hvd  # hvdlite

# isort: split
import xgboost as xgb
from sklearn.datasets import dump_svmlight_file, load_digits, load_svmlight_file
from sklearn.model_selection import train_test_split


@hvd.xgboost.communicator()  # hvdlite
def main(args, load, rank, ranks):
    with tempfile.TemporaryDirectory() as folder:
        train, test = args.data or write_digits(Path(folder))
        train, test = xgb.DMatrix(*load(train)), xgb.DMatrix(*load(test))

    parameters = {
        "objective": "multi:softmax",
        "num_class": args.classes,
        "max_depth": args.depth,
        "eta": args.eta,
        "eval_metric": "merror",  # the error over the samples of all ranks
    }
    start, errors = time.perf_counter(), {}
    booster = xgb.train(
        parameters, train, args.rounds, evals=[(test, "test")], evals_result=errors,
        verbose_eval=False,
    )  # fmt: skip
    seconds = time.perf_counter() - start

    if rank == 0:
        if args.model:
            booster.save_model(args.model)
        accuracy = 1 - errors["test"]["merror"][-1]
        print(f"{args.rounds} rounds, accuracy {accuracy:.4f}, {seconds:.1f} s, ranks: {ranks}")


def parse_args():
    parser = argparse.ArgumentParser(description="Train boosted trees on LibSVM files.")
    add = parser.add_argument
    add("--data", nargs=2, metavar=("TRAIN", "TEST"), help="files (scikit-learn's digits)")
    add("--classes", type=int, default=10, help="number of different labels (%(default)s)")
    add("--rounds", type=int, default=30, help="trees of each class (%(default)s)")
    add("--depth", type=int, default=4, help="largest depth of a tree (%(default)s)")
    add("--eta", type=float, default=0.3, help="learning rate (%(default)s)")
    add("--model", help="file to which rank 0 writes the model")
    return parser.parse_args()


def write_digits(folder):
    """Write scikit-learn's 8 x 8 scans into two files; return their paths."""
    digits = load_digits()
    x, x_held, y, y_held = train_test_split(
        digits.data, digits.target, test_size=0.2, stratify=digits.target, random_state=0
    )
    train, test = folder / "train.svm", folder / "test.svm"
    dump_svmlight_file(x, y, str(train))
    dump_svmlight_file(x_held, y_held, str(test))
    return str(train), str(test)


if __name__ == "__main__":
    given, job = parse_args(), (load_svmlight_file, 0, 1)
    hvd.init()  # hvdlite
    job = hvd.xgboost.load_libsvm, hvd.rank(), hvd.size()  # hvdlite
    main(given, *job)
