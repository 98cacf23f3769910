"""The names that hvdlite gives to the calls of a program, in the order of the program."""

import re

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
    "inner": (lambda x: inner(x) + inner(x), "a a#1"),
    "composite": (lambda x: composite(x) + call("a", composite(x)), "a a#1 a#2"),
    "nested": (lambda x: outer(x) + outer(x) + inner(x), "b a b#1 a#1 a#2"),
    "loop": (lambda x: lax.map(lambda y: call("a", y), x), "a"),
    "unrolled": (
        lambda x: lax.scan(lambda _, y: (0, call("a", y)), 0, x, unroll=3)[1],
        "a a#1 a#2",
    ),
    "branches": (chosen, "a a a#1 a#2"),
    "taken": (lambda x: call("a", call("a", call("a#1", x))), "a#1 a a#2"),
}


@pytest.mark.parametrize("program, names", PROGRAMS.values(), ids=PROGRAMS)
def test_each_call_of_a_program_has_its_own_name(program, names):
    module = jax.jit(program).lower(jnp.ones(3)).compiler_ir("stablehlo")
    with module.context, numbering.ir.Location.unknown():
        for _ in range(2):  # the second time changes nothing
            numbering._Numbering(module.operation).run()
            assert module.operation.verify()
            found = re.findall(r'name = "allreduce\.([^"]*)"', str(module))
            assert sorted(found) == sorted(names.split())


@jax.jit
def total(x):
    return hvd.allreduce(x, "total", op=hvd.Sum)


def test_calls_of_one_name_in_a_program_are_not_mixed_up(rank, size):
    """XLA may run the calls in different orders on the ranks."""

    def late(x, steps):
        y = lax.fori_loop(0, steps, lambda _, a: jnp.tanh(a @ a * 0.001), jnp.full((90, 90), 1.0))
        return total(x + 0 * y[0, 0])

    program = jax.jit(lambda x, steps: [late(k * x, steps[k]) for k in range(8)])
    random = np.random.default_rng(rank)
    for _ in range(8):
        got = program(jnp.ones(4000), jnp.asarray(random.integers(1, 100, 8)))
        np.testing.assert_array_equal([each[0] for each in got], size * np.arange(8))


def test_ranks_may_take_different_branches_with_calls_of_one_name(rank, size):
    branches = [lambda x, k=k: hvd.allreduce(k * x, "branch", op=hvd.Sum) for k in (0, 1)]
    got = jax.jit(lambda i: lax.switch(i, branches, jnp.ones(3)))(min(rank, 1))
    np.testing.assert_array_equal(got, np.full(3, size - 1))


@pytest.mark.parametrize("how", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_name_that_is_too_long_is_refused(how):
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="longer than 255 bytes"):
        jax.block_until_ready(how(lambda a: hvd.allreduce(a, "x" * 250))(jnp.ones(2)))
