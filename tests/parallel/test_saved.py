"""States of optimizers that are saved and loaded: on one rank alone, compressed, within a step."""

import warnings

import mxnet as mx
import pytest
from nets import backward, batch_of, dense_net, train, weights
from optimizers import make_trainer, sgd
from trained import assert_equal_on_all_ranks

import hvdlite as hvd

KINDS = {"trainer", "optimizer", "sharded"}


def make(kind: str, net, **options):
    if kind == "sharded":
        return hvd.ShardedTrainer(net.collect_params(), sgd(), **options)
    return make_trainer(kind, net.collect_params(), sgd(), **options)


def saved_of(trainer, path) -> str:
    trainer.save_states(str(path))
    return str(path)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("codec", [False, True])
def test_states_that_one_rank_alone_has_loaded(kind, codec, rank, several, tmp_path):
    """Before, that rank applied the same gradients in another way."""
    if codec and kind == "sharded":
        pytest.skip("takes no compression")
    options = {"compression": hvd.Compression.one_bit()} if codec else {}
    net, other = dense_net(), dense_net()
    trained, trainer = make(kind, other, **options), make(kind, net, **options)
    train(other, trained, steps=2)
    file = saved_of(trained, tmp_path / "states")
    train(net, trainer, steps=3)
    if rank == 1:
        trainer.load_states(file)
    with pytest.raises((mx.MXNetError, hvd.HvdliteError), match="loaded before.*rank 1: those w"):
        train(net, trainer, steps=1)
        mx.nd.waitall()
    for _ in range(20):
        try:
            mx.nd.waitall()
            break
        except mx.MXNetError:
            continue


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_states_that_every_rank_has_loaded_or_been_given(kind, rank, several, tmp_path):
    net = dense_net()
    trainer = make(kind, net)
    for root in (None, 1):
        train(net, trainer, steps=2)
        file = saved_of(trainer, tmp_path / f"states{root}")
        if root in (None, rank):
            trainer.load_states(file)
        if root is not None:
            hvd.broadcast_trainer_states(trainer, root_rank=root)
    train(net, trainer, steps=3)
    assert_equal_on_all_ranks(weights(net))


@pytest.mark.parametrize("kind", ["trainer", "optimizer"])
@pytest.mark.parametrize("codec", ["one_bit", "two_bit", "top_k"])
def test_what_compression_left_out_is_saved(kind, codec, tmp_path):
    """Training from saved states is that which goes on."""
    options = {"compression": getattr(hvd.Compression, codec)()}
    net, again = dense_net(), dense_net()
    trainer, resumed = make(kind, net, **options), make(kind, again, **options)
    train(net, trainer, steps=3)
    for mine, theirs in zip(again.collect_params().values(), net.collect_params().values()):
        mine.set_data(theirs.data())
    resumed.load_states(saved_of(trainer, tmp_path / "states"))
    expected, got = train(net, trainer), train(again, resumed)
    assert all((expected[name] == got[name]).all() for name in expected)


@pytest.mark.parametrize("kind", ["trainer", "optimizer"])
def test_what_another_rank_left_out_is_not_taken(kind, rank, several, tmp_path):
    net = dense_net()
    trainer = make(kind, net, compression=hvd.Compression.one_bit())
    train(net, trainer, steps=1)
    saved_of(trainer, tmp_path / "states")
    (tmp_path / "of0").write_bytes(hvd.broadcast_object((tmp_path / "states").read_bytes(), 0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.load_states(str(tmp_path / "of0"))
    texts = [str(each.message) for each in caught]
    assert any("save the optimizer's states on every rank" in t for t in texts) == (rank != 0)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_step_that_has_begun_is_not_saved(kind, rank, tmp_path):
    """The sum of its passes so far is in no states: training from those would lose it."""
    net = dense_net()
    trainer = make(kind, net, backward_passes_per_step=2)
    backward(net, batch_of(rank))
    trainer.step(4)
    with pytest.raises(RuntimeError, match="some of a step's 2 passes.*save after the step"):
        saved_of(trainer, tmp_path / "states")
    backward(net, batch_of(rank, 1))
    trainer.step(4)
    saved_of(trainer, tmp_path / "states")
