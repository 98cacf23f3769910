"""A network of two layers, and its training in one process, written in NumPy."""

import numpy as np

RATE, MOMENTUM = 0.1, 0.9


def start_weights(seed: int = 1, hidden: int = 8) -> list:
    """Return weight and bias of the first layer, then weight and bias of the second layer."""
    random, shapes = np.random.RandomState(seed), ((6, hidden), (hidden,), (hidden, 4), (4,))
    return [random.uniform(-0.5, 0.5, shape).astype("float32") for shape in shapes]


def batch_of(rank: int, step: int, rows: int = 4) -> np.ndarray:
    return np.random.RandomState(100 * step + rank).randn(rows, 6).astype("float32")


def gradients(weights: list, x: np.ndarray, layers: int = 2) -> list:
    """Return the gradients of the loss: the last layer's sum of squares, averaged over rows."""
    w0, b0, w1, b1 = weights
    hidden = np.tanh(x @ w0 + b0)
    zero = [np.zeros_like(w1), np.zeros_like(b1)]
    if layers == 1:
        d_hidden, of_second = 2 * hidden / len(x), zero
    else:
        d_out = 2 * (hidden @ w1 + b1) / len(x)
        d_hidden, of_second = d_out @ w1.T, [hidden.T @ d_out, d_out.sum(0)]
    d_sum = d_hidden * (1 - hidden**2)
    return [x.T @ d_sum, d_sum.sum(0), *of_second]


class OneProcess:
    """Stochastic gradient descent with momentum, on the batches of many ranks."""

    def __init__(self, weights: list) -> None:
        self.weights = [w.astype("float64") for w in weights]
        self.velocities = [np.zeros_like(w) for w in self.weights]
        self.frozen: tuple = ()

    def train(self, batches: list, layers=None, factor: float = 1) -> None:
        """Do one step.

        :param batches: all batches count equally, whatever their numbers of rows.
        :param layers: the number of layers that each batch passes through; default: all layers.
        """
        each = [
            gradients(self.weights, x, n) for x, n in zip(batches, layers or [2] * len(batches))
        ]
        for i, of_all in enumerate(zip(*each)):
            if i not in self.frozen:
                self.velocities[i] = MOMENTUM * self.velocities[i] + factor * np.mean(of_all, 0)
                self.weights[i] -= RATE * self.velocities[i]
