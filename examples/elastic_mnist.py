"""Trains the net of mnist.py. When a rank dies, training goes on, and a new rank replaces it.

    hvdliterun --elastic -n 3 python examples/elastic_mnist.py
    hvdliterun --elastic -n 3 python examples/elastic_mnist.py --kill-each-epoch

With --kill-each-epoch a rank kills itself in the middle of each epoch, to show that training goes
on.
"""

import os
import signal
import sys
import time

import mxnet as mx
import numpy as np
from mnist import accuracy, lenet, options, read_images
from mxnet import autograd, gluon

import hvdlite as hvd

COMMIT_STEPS = 5


def main():
    parser = options("Train a small net to read handwritten digits while ranks come and go.", 10)
    kills = "a rank kills itself in each epoch"
    parser.add_argument("--kill-each-epoch", action="store_true", help=kills)
    args = parser.parse_args()
    hvd.init()
    mx.random.seed(args.seed + hvd.rank())
    np.random.seed(args.seed)
    train_set, held_back = read_images(args.data_dir)
    net = lenet()
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(train_set[0][0][None]))  # the first forward gives every parameter a value
    state = hvd.elastic.GluonState(
        net=net,
        trainer=hvd.DistributedTrainer(net.collect_params(), mx.optimizer.SGD(momentum=0.9)),
        sampler=hvd.elastic.ElasticSampler(train_set, seed=args.seed),
        epoch=0,
        killed=0,  # epochs in which a rank has killed itself
    )
    start = time.perf_counter()
    train(state, train_set, args)
    mx.nd.waitall()
    seconds = time.perf_counter() - start

    own = held_back.shard(hvd.size(), hvd.rank())
    part = accuracy(net, gluon.data.DataLoader(own, args.batch_size))
    if hvd.rank() == 0:
        print(f"accuracy {part:.4f}, {seconds:.1f} s, ranks: {hvd.size()}, died: {state.killed}")


@hvd.elastic.run
def train(state, train_set, args):
    """Train from the newest commit on. After a rank's death hvdlite calls this function again."""
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    while state.epoch < args.epochs:
        state.trainer.set_learning_rate(rate_of(args.lr * hvd.size(), state.epoch / args.epochs))
        batches = gluon.data.DataLoader(train_set, args.batch_size, sampler=state.sampler)
        for step, (images, labels) in enumerate(batches):
            with autograd.record():
                loss = loss_of(state.net(images), labels)
            loss.backward()
            state.trainer.step(len(labels))
            state.sampler.record_batch(step, args.batch_size)
            if step == len(batches) // 2 and args.kill_each_epoch:
                die_once(state)
            if step % COMMIT_STEPS == 0:
                state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()


def rate_of(highest, part):
    """Return the learning rate after this part of the training: it rises, then falls to 0."""
    return highest * min(10 * part + 0.1, 1.0) * (1 + np.cos(np.pi * part)) / 2


def die_once(state):
    """Once per epoch, let one rank kill itself, a different rank in each epoch."""
    if state.killed > state.epoch or hvd.size() == 1:
        return
    state.killed = state.epoch + 1
    state.commit()  # the other ranks restart from this commit, so no second rank dies in this epoch
    if hvd.rank() == state.epoch % hvd.size():
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
