"""SyncBatchNorm: batch normalization over the batches of all ranks."""

import mxnet as mx
import numpy as np

from hvdlite.core.agreement import meet
from hvdlite.core.names import owner_name, owner_number
from hvdlite.core.reduce_ops import Sum, merged, summands
from hvdlite.mxnet.ops import allreduce_
from hvdlite.mxnet.push import IS_MXNET_1

_OP = "hvdlite_sync_batch_norm"
_MOST_NUMBERS = 2**20  # limit on numbers that a float32 array carries exactly


class SyncBatchNorm(mx.gluon.nn.BatchNorm):
    """A ``gluon.nn.BatchNorm`` that normalizes over the joined batch of all ranks.

    In training, mean and variance are computed over the batches of all ranks, which may differ in
    size, and gradients are those of the sum of all ranks' losses. Running statistics are bitwise
    equal on all ranks. Forward updates them, whereas MXNet's BatchNorm updates its statistics in
    backward. Outside training, and with ``use_global_stats``, the block does not communicate. The
    block can be hybridized, and called several times in one forward. If the mean is 1000 times the
    standard deviation, output and gradient differ from float64's by at most 1e-3.

    All ranks must build these blocks in the same order. In training every rank must run each block
    the same number of times forward and backward. A process must use only one context.

    :param kwargs: BatchNorm's arguments: axis, momentum, epsilon, center, scale, in_channels, ...
    :raises ValueError: at the first forward: the block is on several contexts.

    Input and output have the same shape: any shape with the channels along ``axis``.

    Source: Ioffe and Szegedy, "Batch Normalization", 2015; the gradient is that of its section 3.
    """

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self._owner, self._met = owner_name("sync_batch_norm"), -1

    if IS_MXNET_1:

        def hybrid_forward(self, F, x, gamma, beta, running_mean, running_var):
            """Normalize ``x``, an array, or a symbol if the net is hybridized. MXNet calls this."""
            if self._kwargs["use_global_stats"]:
                return super().hybrid_forward(F, x, gamma, beta, running_mean, running_var)
            return self._normalize(x, gamma, beta, running_mean, running_var)

    else:

        def forward(self, x):
            """Normalize the array ``x``. MXNet calls this."""
            if self._kwargs["use_global_stats"]:
                return super().forward(x)
            params = self.gamma, self.beta, self.running_mean, self.running_var
            return self._normalize(x, *(param.data(x.context) for param in params))

    def _normalize(self, *arrays):
        contexts = self.gamma.list_ctx()
        if len(contexts) > 1:
            raise ValueError(
                f"{self._owner} is on {len(contexts)} contexts: expected one context: start one "
                "process for each context"
            )
        is_symbol = isinstance(arrays[0], mx.sym.Symbol)
        if not is_symbol and mx.autograd.is_training():  # not collective for symbols
            self._met = meet(self._owner, self._met)
        is_numpy = mx.util.is_np_array() if is_symbol else isinstance(arrays[0], mx.np.ndarray)
        if is_numpy:
            arrays = [array.as_nd_ndarray() for array in arrays]
        module = mx.sym if is_symbol else mx.nd
        options = {name: self._kwargs[name] for name in ("axis", "eps", "momentum", "fix_gamma")}
        out = module.Custom(*arrays, op_type=_OP, owner=self._owner, name="fwd", **options)[0]
        return out.as_np_ndarray() if is_numpy else out


class _Properties(mx.operator.CustomOpProp):
    """Describes the operator to MXNet. MXNet passes the options as strings."""

    def __init__(self, owner: str, axis: str, eps: str, momentum: str, fix_gamma: str) -> None:
        super().__init__(need_top_grad=True)
        self.owner, self.axis = owner, int(axis)
        self.eps, self.momentum = float(eps), float(momentum)
        self.fix_gamma = fix_gamma == "True"

    def list_arguments(self):
        return ["data", "gamma", "beta"]

    def list_outputs(self):
        return ["output", "statistics"]  # backward reads "statistics"

    def list_auxiliary_states(self):
        return ["running_mean", "running_var"]

    def infer_shape(self, in_shape):
        channels = [in_shape[0][self.axis]]
        return [in_shape[0], channels, channels], [in_shape[0], [4, *channels]], [channels] * 2

    def infer_type(self, in_type):
        return [in_type[0], np.float32, np.float32], [in_type[0], np.float32], [np.float32] * 2

    def create_operator(self, ctx, in_shapes, in_dtypes):
        return _Operator(self)


class _Operator(mx.operator.CustomOp):
    """The operator. MXNet calls the methods on its own threads. The methods only push operations.

    Forward calls of a block never overlap and have the same order on every rank, because each call
    writes the running statistics and so MXNet's engine orders the calls. Backward calls may
    overlap, so the tensor name of a backward call contains the number of its forward call.
    """

    def __init__(self, properties: _Properties) -> None:
        super().__init__()
        self._p = properties

    def forward(self, is_train, req, in_data, out_data, aux):
        x, gamma, beta = in_data
        mean, var = aux
        # per_count 0 tells backward that mean and variance do not depend on the input
        per_count = number = mx.nd.zeros_like(mean)
        if is_train:
            mean, var, per_count = self._of_all_ranks(_as_float(x))
            number = mx.nd.full(mean.shape, owner_number(f"{self._p.owner}.") % _MOST_NUMBERS)
            for running, of_batch in zip(aux, (mean, var)):
                running[:] = running * self._p.momentum + of_batch * (1 - self._p.momentum)
        self.assign(out_data[1], req[1], mx.nd.stack(mean, var, per_count, number))
        normalized = mx.nd.BatchNorm(
            x, gamma, beta, mean, var, eps=self._p.eps, axis=self._p.axis,
            fix_gamma=self._p.fix_gamma, use_global_stats=True,
        )  # fmt: skip
        self.assign(out_data[0], req[0], normalized)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        x, dy = _as_float(in_data[0]), _as_float(out_grad[0])
        mean, var, per_count, number = out_data[1]
        inverse = 1 / mx.nd.sqrt(var + self._p.eps)
        centered = mx.nd.broadcast_sub(x, self._along(mean, x))
        sums = mx.nd.stack(self._sum(dy), self._sum(dy * centered))
        self.assign(in_grad[1], req[1], sums[1] * inverse * (not self._p.fix_gamma))
        self.assign(in_grad[2], req[2], sums[0])
        if req[0] == "null":
            return
        # per_count is not 0 in training. Forward has computed it, so asscalar() does not wait.
        if per_count[0].asscalar():
            sums = self._sum_over_ranks(sums, f"backward{int(number[0].asscalar())}")
            dy = mx.nd.broadcast_sub(dy, self._along(sums[0] * per_count, x))
            slope = sums[1] * per_count * inverse * inverse
            dy = dy - mx.nd.broadcast_mul(centered, self._along(slope, x))
        factor = inverse if self._p.fix_gamma else inverse * in_data[1]
        dx = mx.nd.broadcast_mul(dy, self._along(factor, x))
        self.assign(in_grad[0], req[0], dx.astype(in_data[0].dtype))

    def _of_all_ranks(self, x) -> tuple:
        """Return each channel's mean, variance and 1 / count over the batches of all ranks."""
        count = x.size // x.shape[self._p.axis]
        near = self._sum(x) / count  # this rank's mean with a rounding error; ``rest`` corrects it
        apart = mx.nd.broadcast_sub(x, self._along(near, x))
        rest = self._sum(apart).astype("float64")
        squares = self._sum(mx.nd.square(apart)).astype("float64") - rest * rest / count
        mean = near.astype("float64") + rest / count
        sums = mx.nd.stack(*summands(mx.nd.full(mean.shape, count, dtype="float64"), mean, squares))
        sums = self._sum_over_ranks(sums, "forward")
        mean, var = merged(*sums)
        var = mx.nd.maximum(var, 0)
        return mean.astype("float32"), var.astype("float32"), (1 / sums[0]).astype("float32")

    def _sum(self, x):
        """Sum over all axes except channels, by dot with ones: 8 times as fast as mx.nd.sum."""
        axis = self._p.axis % x.ndim
        outer, inner = (int(np.prod(n)) for n in (x.shape[:axis], x.shape[axis + 1 :]))
        if inner > 1:
            x = mx.nd.dot(x.reshape((-1, inner)), mx.nd.ones((inner, 1)))
        return mx.nd.dot(mx.nd.ones((1, outer)), x.reshape((outer, -1))).reshape((-1,))

    def _along(self, per_channel, x):
        """Reshape an array with a value per channel so that it broadcasts over x's other axes."""
        shape = [1] * x.ndim
        shape[self._p.axis] = -1
        return per_channel.reshape(shape)

    def _sum_over_ranks(self, sums, when: str):
        return allreduce_(sums, name=f"{self._p.owner}.{when}", op=Sum)


with mx.util.np_array(False):  # the operator gets mx.nd arrays even if the script uses mx.np
    mx.operator.register(_OP)(_Properties)


def _as_float(x):
    return x.astype("float32", copy=False)
