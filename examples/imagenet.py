"""Trains ResNet-50, or any image classifier of gluon's model zoo, on any number of processes.

    python examples/make_records.py digits              makes small images for a trial
    mpirun -n 2 python examples/imagenet.py --train digits/train.rec --val digits/val.rec \\
        --classes 10 --size 32 --model mobilenet0.25 --augment none --epochs 10 --warmup-epochs 1
    mpirun -n 8 python examples/imagenet.py --train train.rec --val val.rec --checkpoint run1
    mpirun -n 2 python examples/imagenet.py --benchmark             only speed, on random images

The recipe is from Goyal et al. 2017, "Accurate, Large Minibatch SGD". The learning rate is 0.1 for
each 256 images of a step. In a warm-up of 5 epochs the rate rises to this value from the rate for
one rank; after 30, 60 and 80 of 90 epochs it is divided by 10. Nesterov momentum is 0.9; weight
decay is 1e-4, except for biases and BatchNorm; the last gamma of each residual block starts at 0;
there is no label smoothing. Images are cropped, mirrored and colored at random for training, and
cropped in the middle for validation.

    --checkpoint run1    saves each epoch. The same command continues after an interruption, and
                         ends with exactly the weights of an uninterrupted run
    --dtype bfloat16     computes in bfloat16, with weights in float32, on CPUs with AVX512_BF16 or
                         AMX (MXNet 1.9.1 can't train in float16 on CPUs)
    --kvstore dist_sync_mpi    averages gradients by a KVStore instead of hvd.DistributedTrainer
    --kvstore dist_sync        averages by MXNet's own servers: `hvdliterun -n 2 -s 2 python ...`

At the end rank 0 prints images/s, and their ratio to N times the speed of one process. Rank 0
measures the speed of one process first, while the other ranks wait, unless --one-process gives it.
"""

import argparse
import itertools
import re
import sys
import time
from pathlib import Path

import hvdlite as hvd

# isort: split
import mxnet as mx
import numpy as np
from mnist import progress_bar
from mxnet import autograd, gluon
from mxnet.contrib import amp

# parts of the epochs after which the learning rate is divided by 10
DROPS = (30 / 90, 60 / 90, 80 / 90)
PIXELS = {"mean_r": 123.68, "mean_g": 116.779, "mean_b": 103.939,
          "std_r": 58.393, "std_g": 57.12, "std_b": 57.375}  # fmt: skip
AUGMENT = {
    "none": {},
    "imagenet": {
        "random_resized_crop": True, "min_random_area": 0.08, "max_random_area": 1.0,
        "min_aspect_ratio": 3 / 4, "max_aspect_ratio": 4 / 3, "rand_mirror": True,
        "brightness": 0.4, "saturation": 0.4, "contrast": 0.4, "pca_noise": 0.1,
    },
}  # fmt: skip


def main():
    args = parse_args()
    if args.dtype == "bfloat16":
        use_bfloat16()
    hvd.init()
    store = mx.kv.create(args.kvstore) if args.kvstore else None
    rank, ranks = (store.rank, store.num_workers) if store else (hvd.rank(), hvd.size())
    if ranks != hvd.size() and args.checkpoint:
        sys.exit("--checkpoint can't save the optimizer's states, which MXNet's servers keep")
    if args.benchmark:
        speed, alone = benchmark(args, store, ranks)
    else:
        speed, alone = train(args, store, rank, ranks)
    if rank == 0:
        print(summary(args, ranks, speed, alone))


def parse_args():
    parser = argparse.ArgumentParser(description="Train a net of the model zoo on ImageNet.")
    add = parser.add_argument
    add("--train", type=Path, help="the training images, a .rec file with its .idx beside it")
    add("--val", type=Path, help="the images for validation")
    add("--benchmark", action="store_true", help="measure the speed only, on random images")
    add("--steps", type=int, default=20, help="steps that --benchmark measures (%(default)s)")
    add("--model", default="resnet50_v1", help="a name of gluon's model zoo (%(default)s)")
    add("--classes", type=int, default=1000, help="how many labels there are (%(default)s)")
    add("--size", type=int, default=224, help="height and width of the crops (%(default)s)")
    add("--augment", choices=AUGMENT, default="imagenet", help="random changes (%(default)s)")
    add("--batch-size", type=int, default=32, help="images of a rank in a step (%(default)s)")
    add("--epochs", type=int, default=90, help="passes over the images (%(default)s)")
    add("--lr", type=float, default=0.1, help="learning rate for each 256 images (%(default)s)")
    add("--warmup-epochs", type=int, default=5, help="epochs of rising rate (%(default)s)")
    add("--wd", type=float, default=1e-4, help="weight decay (%(default)s)")
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="dtype (%(default)s)")
    add("--kvstore", help="average by this KVStore: dist_sync_mpi or dist_sync")
    add("--checkpoint", type=Path, help="folder of checkpoints: continue from it, and save to it")
    add("--threads", type=int, default=2, help="threads of a rank that read images (%(default)s)")
    add("--seed", type=int, default=0, help="seed of all random numbers (%(default)s)")
    add("--one-process", type=float, metavar="SPEED", help="images/s of one process, if known")
    args = parser.parse_args()
    if args.benchmark == bool(args.train and args.val):
        parser.error("expected --train and --val, or --benchmark")
    if min(args.steps, args.classes - 1, args.size, args.batch_size, args.epochs) < 1:
        parser.error("--steps, --size, --batch-size, --epochs: at least 1; --classes: at least 2")
    return args


def use_bfloat16():
    if not re.search(r"\b(avx512_bf16|amx_bf16)\b", Path("/proc/cpuinfo").read_text()):
        sys.exit("--dtype bfloat16: this CPU has no instructions for it (AVX512_BF16 or AMX)")
    amp.init("bfloat16")


def train(args, store, rank, ranks):
    """Train and validate; return the images/s of all ranks, and of one process (None: unknown)."""
    part = {"num_parts": ranks, "part_index": rank}
    images = records(args.train, args, **part, shuffle=True, **AUGMENT[args.augment])
    # With MXNet's parameter servers, which sum only gradients, each rank validates on all images.
    part = part if ranks == hvd.size() else {"num_parts": 1, "part_index": 0}
    held_back = records(args.val, args, **part, even=False, resize=args.size * 8 // 7)
    alone = speed_alone(args, forever(images), ranks)

    seed(args, 0, rank)
    net = make_net(args)
    trainer = make_trainer(args, net, make_optimizer(args, len(images), ranks), store)
    checkpoint, begin = None, 0
    if args.checkpoint:
        checkpoint = hvd.Checkpoint(args.checkpoint, net=net, trainer=trainer)
        begin, _ = checkpoint.load()
    hvd.broadcast_parameters(net.collect_params())

    seconds = 0.0
    for epoch in range(begin, args.epochs):
        seed(args, epoch, rank)
        images.epoch = epoch
        start = time.perf_counter()
        with progress_bar(len(images), hidden=rank > 0) as bar:
            loss = train_epoch(net, trainer, pairs(images), step_size(args, ranks), bar)
        seconds += time.perf_counter() - start
        hvd.average_statistics(net.collect_params())
        accuracies = validate(net, held_back, args.classes)
        # Inference leaves weights in oneDNN's layout. MXNet 1.9.1 may begin the next training step
        # before it has converted the weights back; then equal runs end with different weights. The
        # broadcast converts the weights.
        hvd.broadcast_parameters(net.collect_params())
        mx.nd.waitall()
        if rank == 0:
            texts = [f"{name} {value:.4f}" for name, value in accuracies.items()]
            print(f"epoch {epoch + 1}: loss {loss:.4f}, {', '.join(texts)}", flush=True)
        if checkpoint:
            checkpoint.save(epoch + 1, loss=loss, **accuracies)
    trained = (args.epochs - begin) * len(images) * args.batch_size * ranks
    return (trained / seconds if seconds else 0.0), alone


def benchmark(args, store, ranks):
    """Return the images/s of all ranks on random images, and of one process (None: unknown)."""
    batches = itertools.repeat(random_batch(args))
    alone = speed_alone(args, batches, ranks)
    net = make_net(args)
    hvd.broadcast_parameters(net.collect_params())
    trainer = make_trainer(args, net, make_optimizer(args, args.steps, ranks), store)
    seconds = time_step(net, trainer, batches, step_size(args, ranks), args.steps)
    return args.batch_size * ranks / seconds, alone


def speed_alone(args, batches, ranks):
    """Return the images/s of training without hvdlite, on rank 0 while the other ranks wait."""
    if args.one_process or ranks == 1 or ranks != hvd.size():
        return args.one_process
    seconds = None
    if hvd.rank() == 0:
        net = make_net(args)
        optimizer = make_optimizer(args, args.steps, ranks=1)
        trainer = gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
        seconds = time_step(net, trainer, batches, args.batch_size, args.steps)
    return args.batch_size / hvd.broadcast_object(seconds, name="alone")


def make_net(args):
    net = gluon.model_zoo.vision.get_model(args.model, classes=args.classes)
    net.apply(begin_as_identity)
    net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    # not with static_alloc=True, because MXNet 1.9.1 then trains wrongly after an inference
    net.hybridize()
    for param in net.collect_params(".*(beta|gamma|bias)").values():
        param.wd_mult = 0.0
    return net


def begin_as_identity(block):
    """Set a ResNet v1 block's last gamma to 0, so that the block begins as the identity."""
    if type(block).__name__ in ("BasicBlockV1", "BottleneckV1"):
        block.body[-1].gamma.init = "zeros"


def make_optimizer(args, steps, ranks):
    """Return SGD with the recipe's learning rates.

    :param steps: number of steps of an epoch.
    """
    rate = args.lr * args.batch_size / 256  # the rate for one rank
    drops = sorted({max(1, round(part * args.epochs * steps)) for part in DROPS})
    schedule = mx.lr_scheduler.MultiFactorScheduler(
        drops, 0.1, rate * ranks, warmup_steps=args.warmup_epochs * steps, warmup_begin_lr=rate
    )
    return mx.optimizer.NAG(momentum=0.9, wd=args.wd, lr_scheduler=schedule)


def make_trainer(args, net, optimizer, store):
    if store:
        return gluon.Trainer(net.collect_params(), optimizer, kvstore=store)
    return hvd.DistributedTrainer(net.collect_params(), optimizer)


def step_size(args, ranks):
    """Return the divisor for step(): a KVStore sums the ranks' gradients, hvdlite averages them."""
    return args.batch_size * (ranks if args.kvstore else 1)


def train_epoch(net, trainer, batches, size, bar):
    """Train for an epoch; return the mean loss over all ranks."""
    losses = mx.metric.Loss()
    for images, labels in batches:
        losses.update(None, [train_step(net, trainer, images, labels, size)])
        bar.set_postfix_str(f"loss {losses.get()[1]:.3f}", refresh=False)
        bar.update()
    mx.nd.waitall()
    return hvd.allreduce_metric(losses).get()[1]


def train_step(net, trainer, images, labels, size):
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(images), labels)
    loss.backward()
    trainer.step(size)
    return loss


def time_step(net, trainer, batches, size, steps):
    """Return the mean seconds of a step, after three warm-up steps."""
    start = 0.0
    for number, (images, labels) in enumerate(itertools.islice(batches, 3 + steps)):
        if number == 3:
            mx.nd.waitall()
            start = time.perf_counter()
        train_step(net, trainer, images, labels, size).wait_to_read()
    mx.nd.waitall()
    return (time.perf_counter() - start) / steps


def validate(net, batches, classes):
    """Return the top-1 and the top-5 accuracy over the images of all ranks."""
    most = min(5, classes)
    metric = mx.metric.CompositeEvalMetric([mx.metric.Accuracy(), mx.metric.TopKAccuracy(most)])
    batches.epoch = 0
    for batch in batches:
        whole = len(batch.label[0]) - batch.pad
        metric.update([batch.label[0][:whole]], [net(batch.data[0])[:whole]])
    _, (first, among) = hvd.allreduce_metric(metric).get()
    return {"top-1": first, f"top-{most}": among}


def records(path, args, **options):
    return hvd.DistributedRecordIter(
        path, args.batch_size, data_shape=(3, args.size, args.size), seed=args.seed,
        preprocess_threads=args.threads, **PIXELS, **options,
    )  # fmt: skip


def pairs(batches):
    return ((batch.data[0], batch.label[0]) for batch in batches)


def forever(batches):
    while True:
        batches.reset()
        yield from pairs(batches)


def random_batch(args):
    images = mx.nd.random.normal(shape=(args.batch_size, 3, args.size, args.size))
    labels = mx.nd.random.randint(0, args.classes, shape=(args.batch_size,)).astype("float32")
    return images, labels


def seed(args, epoch, rank):
    """Seed by epoch and rank, so that an epoch's random numbers do not depend on earlier epochs."""
    number = np.random.RandomState([args.seed, epoch, rank]).randint(2**31 - 1)
    mx.random.seed(int(number))


def summary(args, ranks, speed, alone):
    text = f"{args.model}, {args.size} x {args.size}, {args.dtype}: {speed:,.1f} images/s"
    if ranks > 1:
        text += f" on {ranks} ranks"
    if alone and speed:
        text += f"; {alone:,.1f} in one process; scaling efficiency {speed / alone / ranks:.0%}"
    return text


if __name__ == "__main__":
    main()
