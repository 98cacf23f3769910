"""Trainers for MXNet: each way to train with Gluon, and Module."""

import contextlib
import tempfile
from pathlib import Path

import gluon2
import mxnet as mx
from one_process import MOMENTUM, RATE
from trainers import Trainer, trainer

import hvdlite
from hvdlite.mxnet.elastic import GluonState


class Gluon(Trainer):
    waits = False
    errors = (hvdlite.HvdliteError, mx.MXNetError)

    def __init__(self, weights, **options) -> None:
        # Only rank 0's names begin at dense8, so that they sort differently: dense10 < dense9.
        built = 8 if hvdlite.rank() == 0 else 0
        self.params = [
            mx.gluon.Parameter(f"dense{built + i}_w", shape=w.shape) for i, w in enumerate(weights)
        ]
        self.named = {param.name: param for param in self.params}
        for param, w in zip(self.params, weights):
            param.initialize()
            param.set_data(mx.nd.array(w))
        sgd = mx.optimizer.SGD(learning_rate=RATE, momentum=MOMENTUM)
        self.trainer = self.make(sgd, **options)

    def train(self, *passes, layers=0, factor=1) -> None:
        for x in passes:
            with mx.autograd.record():
                loss = (self.forward(mx.nd.array(x), layers) ** 2).sum() * factor
                self.backward(loss)
            self.update(self.rows_of(len(x)), ignore_stale_grad=layers > 0)

    def update(self, rows, **options) -> None:
        self.trainer.step(rows, **options)

    def forward(self, x, layers):
        w0, b0, w1, b1 = (param.data() for param in self.params)
        hidden = mx.nd.tanh(mx.nd.broadcast_add(mx.nd.dot(x, w0), b0))
        return mx.nd.broadcast_add(mx.nd.dot(hidden, w1), b1) if layers != 1 else hidden

    def backward(self, loss) -> None:
        scaler = getattr(self.trainer, "_amp_loss_scaler", None)
        if scaler is None:
            return loss.backward()
        with gluon2.amp.scale_loss(loss, self.trainer) as scaled:
            mx.autograd.backward(scaled)

    def scale_loss(self) -> None:
        """Scale the loss without amp.init(), which needs float16 operators that CPUs lack."""
        amp = gluon2.amp.amp
        amp._amp_initialized = amp._amp_loss_scale_initialized = True
        try:
            amp.init_trainer(self.trainer)
        finally:
            amp._amp_initialized = amp._amp_loss_scale_initialized = False

    def freeze(self, numbers) -> None:
        for i, param in enumerate(self.params):
            param.grad_req = "null" if i in numbers else "write"

    def follow(self, root: int) -> None:
        hvdlite.broadcast_parameters(self.named, root_rank=root)
        hvdlite.broadcast_trainer_states(self.trainer, root_rank=root)

    def saved(self) -> bytes:
        with tempfile.NamedTemporaryFile() as file:
            self.trainer.save_states(file.name)
            return Path(file.name).read_bytes()

    def load(self, states: bytes) -> None:
        with tempfile.NamedTemporaryFile() as file:
            Path(file.name).write_bytes(states)
            self.trainer.load_states(file.name)

    def begin(self, x) -> None:
        self.train(x)

    def committed(self):
        return GluonState(trainer=self.trainer)

    def rows_of(self, rows: int) -> int:
        return rows

    @staticmethod
    def end_all() -> None:
        """Wait until no error is left for the next test: MXNet raises one error per wait."""
        for _ in range(20):
            with contextlib.suppress(mx.MXNetError):
                return mx.nd.waitall()

    def weights(self) -> list:
        return [param.data().asnumpy() for param in self.params]


@trainer
class OptimizerInGluon(Gluon):
    joins = saves = True
    skips_layers = False  # Gluon does not call the optimizer for a stale gradient
    scales_loss = False  # refused, because gradients are averaged after the scaler's check

    def make(self, sgd, **options):
        wrapped = hvdlite.DistributedOptimizer(sgd, **options)
        return mx.gluon.Trainer(self.named, wrapped, kvstore=None)


@trainer
class DistributedTrainer(Gluon):
    joins = saves = True

    def make(self, sgd, **options):
        return hvdlite.DistributedTrainer(self.named, sgd, **options)


@trainer
class ShardedTrainer(Gluon):
    saves = True
    takes = ("op", "gradient_predivide_factor", "num_groups", "backward_passes_per_step")

    def make(self, sgd, **options):
        return hvdlite.ShardedTrainer(self.named, sgd, **options)


class InTwoCalls:
    """A step consists of two calls, as in scripts that clip gradients between the calls."""

    saves = False

    def update(self, rows, **options) -> None:
        self.trainer.allreduce_grads(**options)
        self.trainer.update(rows, **options)


@trainer
class DistributedTrainerInTwoCalls(InTwoCalls, DistributedTrainer):
    pass


@trainer
class ShardedTrainerInTwoCalls(InTwoCalls, ShardedTrainer):
    pass


class OnKVStore(Gluon):
    names_of_both = ("ranks disagree on the shape", "9", "8")
    one_error = False  # MXNet may raise any of several errors
    takes = ("compression",)
    skips_layers = False
    codecs = ("fp16", "2bit")
    on_store = False

    @classmethod
    def make_alone(cls, weights) -> None:
        mx.kv.create("dist_sync_mpi")

    compression = {"fp16": {"type": "fp16"}, "2bit": {"type": "2bit", "threshold": 0.01}}.get

    def make(self, sgd, **options):
        return mx.gluon.Trainer(
            self.named, sgd, kvstore="dist_sync_mpi", update_on_kvstore=self.on_store,
            compression_params=options.get("compression"),
        )  # fmt: skip

    def rows_of(self, rows: int) -> int:
        return rows * hvdlite.size()  # the store sums over ranks


@trainer
class KVStore(OnKVStore):
    loads = True


@trainer
class KVStoreInTwoCalls(OnKVStore):
    def update(self, rows, **options) -> None:
        self.trainer.allreduce_grads()
        self.trainer.update(rows, **options)


@trainer
class KVStoreThatUpdates(OnKVStore):
    on_store, loads, scales_loss = True, True, False


@trainer
class Module(Trainer):
    takes, codecs = ("compression",), ("fp16", "2bit")
    skips_layers = thaws = scales_loss = waits = False
    compression, make_alone = OnKVStore.compression, OnKVStore.make_alone
    errors = Gluon.errors
    end_all = Gluon.end_all
    rows = (4, 4, 4)

    def __init__(self, weights, compression=None, fixed=()) -> None:
        self.start, self.compression_params, self.module = weights, compression, None
        self.freeze(())

    def freeze(self, numbers) -> None:
        """Note the names of frozen parameters: Module takes these names in its constructor."""
        self.fixed = [f"w{i}" for i in numbers]

    def bound(self, x):
        w0, b0, w1, b1 = (mx.sym.var(f"w{i}", shape=w.shape) for i, w in enumerate(self.start))
        hidden = mx.sym.broadcast_add(mx.sym.dot(mx.sym.var("data"), w0), b0)
        out = mx.sym.broadcast_add(mx.sym.dot(mx.sym.tanh(hidden), w1), b1)
        module = mx.mod.Module(
            mx.sym.MakeLoss(out**2), label_names=None, fixed_param_names=self.fixed,
            compression_params=self.compression_params,
        )  # fmt: skip
        module.bind([("data", x.shape)])
        module.init_params(arg_params=self.named(self.start))
        rates = {"learning_rate": RATE, "momentum": MOMENTUM}
        module.init_optimizer(kvstore="dist_sync_mpi", optimizer_params=rates)
        return module

    @staticmethod
    def named(weights) -> dict:
        return {f"w{i}": mx.nd.array(w) for i, w in enumerate(weights)}

    def train(self, x, factor=1) -> None:
        self.module = self.module or self.bound(x)
        self.module.forward_backward(mx.io.DataBatch([mx.nd.array(x)]))
        self.module.update()

    def weights(self) -> list:
        if self.module is None:
            return self.start
        return [w.asnumpy() for _, w in sorted(self.module.get_params()[0].items())]
