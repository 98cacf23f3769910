"""What scripts need around training: samplers, metrics, schedules, states, checkpoints."""

import contextlib
import shutil
import subprocess
import warnings
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from gluon2 import as_gluon_takes_it, metric
from mxnet import gluon
from nets import backward, batch_of, dense_net, weights
from optimizers import both_kinds, make_trainer
from trained import assert_close, assert_equal_on_all_ranks

import hvdlite as hvd


def dense(seed: int = 0):
    return dense_net((3,), seed, in_units=4)


def step(net, trainer, number: int) -> None:
    backward(net, batch_of(hvd.rank(), number, 2, 4))
    trainer.step(2)


def adam_trainer(kind: str, net):
    return make_trainer(kind, net.collect_params(), mx.optimizer.Adam(learning_rate=0.1))


# ---- data ----


@pytest.mark.parametrize("length", [4, 7, 100])
def test_each_sample_goes_to_exactly_one_rank(length, size):
    sampler = hvd.DistributedSampler(length, even=False)
    parts = hvd.allgather_object(list(sampler))
    assert sorted(sum(parts, [])) == list(range(length))
    assert len(sampler) == len(parts[hvd.rank()])


def test_ranks_get_equally_many_samples_in_a_new_order_each_epoch(size):
    sampler = hvd.DistributedSampler(101, seed=3)
    epochs = [hvd.allgather_object(list(sampler)) for _ in range(3)]
    for parts in epochs:
        assert {len(part) for part in parts} == {101 // size}
        assert len(set(sum(parts, []))) == 101 // size * size
    assert epochs[0] != epochs[1] != epochs[2]
    sampler.epoch = 1
    assert hvd.allgather_object(list(sampler)) == epochs[1]


def test_a_sampler_refuses_too_few_samples_and_arguments_that_differ_by_rank(several, rank, size):
    with pytest.raises(ValueError, match=f"{size - 1} samples for {size} ranks"):
        hvd.DistributedSampler(size - 1)
    with pytest.raises(hvd.HvdliteError, match="Make the sampler with the same arguments"):
        hvd.DistributedSampler(100 + rank)


def test_an_elastic_sampler_gives_only_samples_not_yet_trained_on(size):
    sampler = hvd.elastic.ElasticSampler(10 * size, seed=3)
    trained = hvd.allgather_object(list(sampler)[:4])
    sampler.record_batch(0, 4)
    sampler.load_state_dict(sampler.state_dict())  # as after the death of a rank
    left = hvd.allgather_object(list(sampler))
    assert sorted(sum(trained + left, [])) == list(range(10 * size))


def test_elastic_sync_restores_the_newest_commit_of_any_rank(rank, size):
    state = hvd.elastic.ObjectState(step=0)
    for _ in range(rank):
        state.step += 1
        state.save()
    state.step = -1  # changed after the commit, so not part of it
    state.sync()
    assert state.step == (size - 1 if size > 1 else -1)


@pytest.mark.parametrize("kind", ["names", "samplers"])
def test_elastic_sync_refuses_states_that_differ_in_names_or_samplers(kind, several, rank):
    sampler = hvd.elastic.ElasticSampler(10 + rank if kind == "samplers" else 10)
    more = {"epoch": 0} if kind == "names" and rank else {}
    state = hvd.elastic.ObjectState(step=rank, sampler=sampler, **more)
    expected = "epoch" if kind == "names" else r"sampler=ElasticSampler\(11, shuffle=True, seed=0"
    with pytest.raises(hvd.HvdliteError, match=rf"state: ranks disagree .* rank 1: {expected}"):
        state.sync()
    assert state.step == rank


# ---- metrics and statistics ----


@pytest.mark.parametrize(
    "kind, options, classes",
    [
        ("acc", {}, 3),
        ("top_k_accuracy", {"top_k": 2}, 3),
        ("ce", {}, 3),
        ("pcc", {}, 3),
        ("mcc", {}, 2),
        ("f1", {"average": "micro"}, 2),
        ("f1", {"average": "macro"}, 2),
        ("rmse", {}, None),
        ("pearsonr", {}, None),
        (["acc", "ce"], {}, 3),
    ],
)
def test_allreduce_metric_counts_the_samples_of_all_ranks(kind, options, classes, rank, size):
    """Rank r has counted 5 * r samples."""
    whole, own = metric.create(kind, **options), metric.create(kind, **options)
    for r in range(1, size):
        labels, guesses = samples(r, classes)
        whole.update([labels], [guesses])
        if r == rank:
            own.update([labels], [guesses])
    total = hvd.allreduce_metric(own)
    assert total.get()[0] == whole.get()[0]
    np.testing.assert_allclose(total.get()[1], whole.get()[1], rtol=1e-6)
    labels, guesses = samples(size, classes)  # the returned metric can count more samples
    for each in (total, whole):
        each.update([labels], [guesses])
    np.testing.assert_allclose(total.get()[1], whole.get()[1], rtol=1e-6)


def samples(seed: int, classes) -> tuple:
    """Return 5 * seed labels and guesses. They are numbers if `classes` is None."""
    random, n = np.random.RandomState(seed), 5 * seed
    numbers = classes is None
    labels = random.uniform(size=n) if numbers else random.randint(0, classes, n)
    guesses = random.uniform(size=n if numbers else (n, classes))
    return as_gluon_takes_it(mx.nd.array(labels)), as_gluon_takes_it(mx.nd.array(guesses))


def test_average_statistics_averages_the_running_mean(rank, size):
    norm = gluon.nn.BatchNorm(in_channels=2)
    norm.initialize()
    norm.running_mean.set_data(mx.nd.array([rank, 2 * rank]))
    hvd.average_statistics(norm.collect_params())
    mean = sum(range(size)) / size
    np.testing.assert_allclose(norm.running_mean.data().asnumpy(), [mean, 2 * mean])


# ---- learning rates ----


def test_linear_scaling_raises_the_rate_to_size_times_the_given_rate(size):
    inside = mx.lr_scheduler.MultiFactorScheduler([40 * size], 0.1, base_lr=0.1)
    schedule = hvd.LinearScaling(inside, warmup_steps=10)
    assert schedule(0) == pytest.approx(0.1)
    assert schedule(5) == pytest.approx(0.1 * (1 + (size - 1) / 2))
    assert schedule(20) == pytest.approx(0.1 * size)
    assert schedule(41) == pytest.approx(0.01 * size)


# ---- states and checkpoints ----


@both_kinds
def test_after_broadcast_trainer_states_all_ranks_train_alike(kind, rank, size):
    net = dense()
    trainer = adam_trainer(kind, net)
    step(net, trainer, 0)
    if rank == 0:
        trainer.optimizer._update_count(0)
        for state in trainer._updaters[0].states[0]:
            state[:] = 7
    hvd.broadcast_trainer_states(trainer)
    step(net, trainer, 1)
    counts = hvd.allgather_object(trainer.optimizer._index_update_count)
    assert counts == [counts[0]] * size
    assert_equal_on_all_ranks(weights(net))


@both_kinds
def test_a_run_resumed_from_a_checkpoint_trains_the_same_weights(kind, tmp_path, rank):
    folder = hvd.broadcast_object(str(tmp_path / "run"))
    net = dense(rank)
    hvd.broadcast_parameters(net.collect_params())
    trainer = adam_trainer(kind, net)
    checkpoint = hvd.Checkpoint(folder, net=net, trainer=trainer)
    assert checkpoint.load() == (0, {})
    for number in range(2):
        step(net, trainer, number)
    checkpoint.save(2, best=0.5)
    hvd.barrier()
    step(net, trainer, 2)
    again = dense(rank + 50)
    other = adam_trainer(kind, again)
    assert hvd.Checkpoint(folder, net=again, trainer=other).load() == (2, {"best": 0.5})
    step(again, other, 2)
    assert_close(weights(again), weights(net), 0)


@both_kinds
def test_a_checkpoint_restores_the_residuals_of_each_rank(kind, rank, shared_folder):
    net, again = dense(), dense()
    one_bit = {"compression": hvd.Compression.one_bit(), "backward_passes_per_step": 2}
    trainer = make_trainer(kind, net.collect_params(), mx.optimizer.SGD(), **one_bit)
    fresh = make_trainer(kind, again.collect_params(), mx.optimizer.SGD(), **one_bit)
    checkpoint = hvd.Checkpoint(shared_folder, net=net, trainer=trainer)
    for number in range(4):
        step(net, trainer, number)
    checkpoint.save(1)
    step(net, trainer, 4)
    with pytest.raises(
        RuntimeError, match="some of this step's 2 backward passes.*save after the step"
    ):
        checkpoint.save(2)
    for number in range(5, 10):
        step(net, trainer, number)
    hvd.Checkpoint(shared_folder, net=again, trainer=fresh).load()
    for number in range(4, 10):
        step(again, fresh, number)
    assert_close(weights(again), weights(net), 0)
    meta = shared_folder / "00000001" / "checkpoint.json"
    if rank == 0:
        meta.write_text(meta.read_text().replace('"left_out_of": ', '"left_out_of": 1'))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint.load()
    assert ["a job of 1" in str(each.message) for each in caught] == [True] * (rank == 0)


def test_a_checkpoint_that_cannot_be_read_is_an_error_on_every_rank(tmp_path):
    folder = tmp_path / "run"
    (folder / "00000001").mkdir(parents=True)
    with pytest.raises(hvd.HvdliteError, match="rank 0 raised FileNotFoundError"):
        hvd.Checkpoint(folder, net=dense()).load()


def test_saving_an_earlier_epoch_is_refused(shared_folder):
    checkpoint = hvd.Checkpoint(shared_folder, net=dense())
    checkpoint.save(3)
    with pytest.raises(hvd.HvdliteError, match="has a checkpoint of epoch 3 already"):
        checkpoint.save(3)


@pytest.fixture
def shared_folder(tmp_path):
    return Path(hvd.broadcast_object(str(tmp_path / "run")))


def in_the_way(folder):
    (folder / ".unfinished").touch()


def gone(folder):
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize("trouble", [in_the_way, gone])
def test_a_checkpoint_that_cannot_be_written_is_an_error_on_every_rank(
    shared_folder, rank, trouble
):
    checkpoint = hvd.Checkpoint(shared_folder, net=dense())
    checkpoint.save(1)
    if rank == 0:
        trouble(shared_folder)
    with pytest.raises(hvd.HvdliteError, match="run/00000002 can't be written.*exists"):
        checkpoint.save(2)


@contextlib.contextmanager
def mounted(folder, rank, *options):
    """Mount the folder on rank 0; if that is not permitted, skip the test on every rank."""
    mount = ["mount", *options, folder]
    done = rank == 0 and not subprocess.run(mount, capture_output=True).returncode
    if not hvd.broadcast_object(done):
        pytest.skip("only root may mount")
    try:
        yield
    finally:
        hvd.barrier()
        if done:
            subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_folder_keeps_the_last_checkpoint(shared_folder, rank):
    checkpoint = hvd.Checkpoint(shared_folder, net=dense())
    checkpoint.save(1)
    with mounted(shared_folder, rank, "--bind", "-o", "ro", shared_folder):
        with pytest.raises(hvd.HvdliteError, match=f"{shared_folder}/00000002 .*Read-only file"):
            checkpoint.save(2)
        assert checkpoint.load()[0] == 1
        assert [path.name for path in shared_folder.iterdir()] == ["00000001"]


@pytest.mark.parametrize("kilobytes", [12, 16, 20, 24, 28])
def test_a_full_disk_keeps_the_last_checkpoint(shared_folder, rank, kilobytes):
    shared_folder.mkdir(exist_ok=True)
    with mounted(shared_folder, rank, "-t", "tmpfs", "-o", f"size={kilobytes}k", "full"):
        fill(shared_folder)


def fill(folder) -> None:
    """Save until the disk is full, and check the error on every rank."""
    net = dense()
    checkpoint = hvd.Checkpoint(folder, net=net, keep=99)
    with pytest.raises(hvd.HvdliteError, match=f"{folder}/0000.* can't be written.*No space"):
        for epoch in range(1, 9):
            checkpoint.save(epoch)
    assert not (folder / ".unfinished").exists()
    again = dense(1)
    saved = hvd.Checkpoint(folder, net=again).load()[0]
    assert saved == epoch - 1
    if saved:
        assert_close(weights(again), weights(net), 0)


@pytest.mark.parametrize(
    "name, keep", [("net.params", -1), ("net.params", 0), ("checkpoint.json", 9)]
)
def test_the_error_of_a_damaged_checkpoint_names_the_file(shared_folder, rank, name, keep):
    checkpoint = hvd.Checkpoint(shared_folder, net=dense())
    checkpoint.save(1)
    checkpoint.save(2)
    if rank == 0:
        path = shared_folder / "00000002" / name
        path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(hvd.HvdliteError, match=f"00000002/{name} is damaged: delete .*00000002"):
        checkpoint.load()
    if rank == 0:
        shutil.rmtree(shared_folder / "00000002")
    assert checkpoint.load()[0] == 1
