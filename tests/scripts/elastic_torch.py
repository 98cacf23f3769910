"""Elastic training of a PyTorch model. argv: the rank that is killed, in which of 12 steps, where.

At the end those that are left train once more, alone, from the commit they went on from: the same
bits. Killed "in backward", the rank has submitted some of the step's gradients.
"""

import os
import signal
import sys

import torch
from jobs import report

import hvdlite.torch as hvd

dead, when, where = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
STEPS, BATCH = 12, 4
hvd.init()
first = hvd.rank()
rows = torch.rand(STEPS * BATCH * hvd.size(), 6, generator=torch.Generator().manual_seed(0))


def make():
    torch.manual_seed(hvd.rank())  # sync() makes them equal
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 300), torch.nn.BatchNorm1d(300), torch.nn.Tanh(), torch.nn.Linear(300, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), groups=4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    sampler = hvd.elastic.ElasticSampler(rows)
    return hvd.elastic.TorchState(
        model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, epoch=0, step=0
    )


def die(*_) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(state, until):
    while state.step < until:
        batches = torch.utils.data.DataLoader(rows, BATCH, sampler=state.sampler, drop_last=True)
        for i, batch in enumerate(batches):
            dies = first == dead and state.step == when
            if dies and where == "in backward":
                state.model[0].weight.register_hook(die)
            loss = (state.model(batch) - batch[:, :4]).square().mean()
            loss.backward()
            if dies:
                die()
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.sampler.record_batch(i, BATCH)
            state.step += 1
            if state.step % 2 == 0:
                state.scheduler.step()
                state.commit()
            if state.step >= until:
                break
        else:
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)


def bits(state):
    state.save()
    saved = state._saved
    momentum = [each["momentum_buffer"] for each in saved["optimizer"]["state"].values()]
    return [*saved["model"].values(), *momentum], saved["sampler"], saved["scheduler"]["_last_lr"]


went_on = []
state = make()
elastic = hvd.elastic.run(lambda state: (went_on.append(state._saved), train(state, STEPS)))
elastic(state)
again = make()
again._saved = went_on[-1]
again.restore()
train(again, STEPS)
(got, *others), (expected, *other_expected) = bits(state), bits(again)
assert others == other_expected
for mine, theirs in zip(got, expected):
    assert torch.equal(mine, theirs)
report(first, went_on=[saved["step"] for saved in went_on], size=hvd.size())
