"""The names that hvdlite gives to the calls of a program, in the order of the program."""

import contextlib
import re
import threading
import time

import hvdlite.jax as hvd

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hvdlite.jax import numbering

hvd.init()


def call(name, x):
    return hvd.allreduce(x, name)


inner = jax.jit(lambda x: call("a", x))
outer = jax.jit(lambda x: inner(call("b", x)))
composite = lax.composite(lambda x: call("a", x), "own.operation")


def chosen(x):
    x = lax.cond(x[0] > 0, lambda x: inner(call("a", x)), lambda x: call("a", x), x)
    return call("a", x)


PROGRAMS = {
    "inner": (lambda x: inner(x) + inner(x), "a#1 a#2"),
    "composite": (lambda x: composite(x) + call("a", composite(x)), "a#1 a#2 a#3"),
    "nested": (lambda x: outer(x) + outer(x) + inner(x), "b#1 a#1 b#2 a#2 a#3"),
    "loop": (lambda x: lax.map(lambda y: call("a", y), x), "a#1"),
    "unrolled": (
        lambda x: lax.scan(lambda _, y: (0, call("a", y)), 0, x, unroll=3)[1],
        "a#1 a#2 a#3",
    ),
    "branches": (chosen, "a#1 a#1 a#2 a#3"),
    "taken": (lambda x: call("a", call("a", call("a#1", x))), "a#1 a#1#1 a#2"),
}


@pytest.mark.parametrize("program, names", PROGRAMS.values(), ids=PROGRAMS)
def test_each_call_of_a_jax_program_has_its_own_name(program, names):
    module = jax.jit(program).lower(jnp.ones(3)).compiler_ir("stablehlo")
    with module.context, numbering.ir.Location.unknown():
        for _ in range(2):  # a second run changes nothing
            numbering._Numbering(module.operation).run()
            assert module.operation.verify()
            found = re.findall(r'name = "allreduce\.([^"]*)"', str(module))
            assert sorted(found) == sorted(names.split())


def seconds_of_numbering(calls: int) -> float:
    module = jax.jit(lambda x: call("a", x)).lower(jnp.ones(3)).compiler_ir("stablehlo")
    with module.context, numbering.ir.Location.unknown():
        (one,) = [op for op in numbering._operations(module.operation.regions) if "main" in str(op)]
        first = one.regions[0].blocks[0].operations[0]
        for _ in range(calls):
            first.clone(numbering.ir.InsertionPoint(first))
        begin = time.process_time()
        numbering._Numbering(module.operation).run()
        return time.process_time() - begin


def test_the_time_to_number_the_calls_of_a_jax_program_grows_linearly():
    seconds_of_numbering(10)
    assert seconds_of_numbering(8000) < 50 * seconds_of_numbering(500)


def total(x):
    return hvd.allreduce(x, "total", op=hvd.Sum)


inner_total = jax.jit(total)


def late(x, steps):
    y = lax.fori_loop(0, steps, lambda _, a: jnp.tanh(a @ a * 0.001), jnp.full((90, 90), 1.0))
    return inner_total(x + 0 * y[0, 0])


def test_calls_of_one_name_in_a_jax_program_are_not_mixed_up(rank, size):
    """XLA may run the calls in different orders on the ranks."""
    program = jax.jit(lambda x, steps: [late(k * x, steps[k]) for k in range(8)])
    random = np.random.default_rng(rank)
    for _ in range(8):
        got = program(jnp.ones(4000), jnp.asarray(random.integers(1, 100, 8)))
        np.testing.assert_array_equal([each[0] for each in got], size * np.arange(8))


@pytest.mark.parametrize("after", [total, inner_total], ids=["eager", "jit"])
def test_a_call_in_a_jax_program_is_not_mixed_up_with_a_later_call(after, rank, size):
    """Rank 0's program calls its allreduce late, when other ranks may already call `after`."""
    program = jax.jit(late)
    for _ in range(4):
        first, then = program(jnp.ones(8), 0 if rank else 300), after(jnp.full(8, 100.0))
        assert (first[0], then[0]) == (size, 100 * size)


def test_ranks_may_take_different_jax_branches_with_calls_of_one_name(rank, size):
    branches = [lambda x, k=k: hvd.allreduce(k * x, "branch", op=hvd.Sum) for k in (0, 1)]
    got = jax.jit(lambda i: lax.switch(i, branches, jnp.ones(3)))(min(rank, 1))
    np.testing.assert_array_equal(got, np.full(3, size - 1))


@pytest.mark.parametrize("how", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_jax_refuses_a_tensor_name_that_is_too_long(how):
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="longer than 255 bytes"):
        jax.block_until_ready(how(lambda a: hvd.allreduce(a, "x" * 250))(jnp.ones(2)))


@pytest.mark.skipif("hvd.size() == 1", reason="one rank")
def test_a_second_jax_thread_may_not_use_a_name_of_a_living_thread(rank, size):
    total, said = jax.jit(lambda a: hvd.allreduce(a, "of one thread", op=hvd.Sum)), []

    def work():
        try:
            said.append(float(total(1.0)))
        except RuntimeError as error:
            said.append("'allreduce.of one thread#1', and so did thread" in str(error))

    for begin in (work, lambda: said.append(total(2.0)), work):
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    assert total(1.0) == size
    work()
    assert said == [size, 2 * size, size, size]
    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert said[4:] == [True, True]


@pytest.mark.skipif("hvd.size() == 1", reason="one rank")
def test_a_refused_jax_program_takes_no_tensor_names(rank, size):
    """The other thread, whose program was refused, must not reserve the tensor name "free"."""
    own = jax.jit(lambda a: hvd.allreduce(a, "own", op=hvd.Sum))
    both = jax.jit(lambda a: hvd.allreduce(hvd.allreduce(a, "free"), "own", op=hvd.Sum))
    free = jax.jit(lambda a: hvd.allreduce(a, "free", op=hvd.Sum))
    refused, over = threading.Event(), threading.Event()

    def work():
        with contextlib.suppress(RuntimeError):
            both(1.0)
        refused.set()
        over.wait()

    assert own(1.0) == size
    other = threading.Thread(target=work)
    other.start()
    refused.wait()
    try:
        assert free(1.0) == size
    finally:
        over.set()
        other.join()
