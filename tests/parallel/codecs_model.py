"""The codecs as NumPy models, with the residuals of all ranks: what a compressed sum must be."""

import numpy as np

import hvdlite as hvd

SIZES = (0, 1, 15, 16, 17, 33, 1000, 20_011)


def two_bit(r: np.ndarray, threshold: float) -> np.ndarray:
    """What MXNet's 2bit sends of the values."""
    t = np.float32(threshold)
    return np.where(r >= t, t, np.where(r <= -t, -t, np.float32(0))).astype("float32")


def one_bit(r: np.ndarray, threshold: float) -> np.ndarray:
    return np.where(r > np.float32(threshold), np.float32(1), np.float32(-1))


def top_k(r: np.ndarray, ratio: float) -> np.ndarray:
    k = min(int(np.ceil(ratio * r.size)), r.size)
    largest = np.argsort(-np.abs(r), kind="stable")[:k]
    sent = np.zeros_like(r)
    sent[largest] = r[largest]
    return sent


class Model:
    """One tensor on all ranks: ``step(gradients of all ranks)`` returns their compressed sum."""

    def __init__(self, rule, parameter: float):
        self.rule, self.parameter = rule, parameter
        self.residuals = None

    def step(self, gradients, average: bool = True) -> np.ndarray:
        gradients = [g.astype("float32").ravel() for g in gradients]
        if self.residuals is None:
            self.residuals = [np.zeros_like(g) for g in gradients]
        accumulated = [r + g for r, g in zip(self.residuals, gradients)]
        sent = [self.rule(a, self.parameter) for a in accumulated]
        self.residuals = [a - s for a, s in zip(accumulated, sent)]
        return self.sum(sent, 1 / len(gradients) if average else 1)

    def sum(self, sent, factor: float) -> np.ndarray:
        if self.rule is top_k:  # in the order of ranks
            total = np.zeros_like(sent[0])
            for s in sent:
                total += s * np.float32(factor)
            return total
        quantum = np.float32(self.parameter) if self.rule is two_bit else np.float32(1)
        counts = np.round(sum(s.astype("float64") for s in sent) / quantum).astype("float32")
        return counts * np.float32(quantum * np.float64(factor))


# Pairs of a compression and a maker of its model.
CASES = {
    "2bit": (hvd.Compression.two_bit(0.5), lambda: Model(two_bit, 0.5)),
    "2bit-0.1": (hvd.Compression.two_bit(0.1), lambda: Model(two_bit, 0.1)),
    "1bit": (hvd.Compression.one_bit(), lambda: Model(one_bit, 0.0)),
    "1bit-0.25": (hvd.Compression.one_bit(0.25), lambda: Model(one_bit, 0.25)),
    "topk": (hvd.Compression.top_k(0.1), lambda: Model(top_k, 0.1)),
}


def gradient_of(rank: int, step: int, size: int) -> np.ndarray:
    random = np.random.RandomState(1000 * step + 10 * rank + size % 7)
    return random.randn(size).astype("float32")


def gradients_of_all(step: int, size: int) -> list:
    return [gradient_of(r, step, size) for r in range(hvd.size())]
