"""Attributes of hvdlite's custom calls: the C code refuses a program with unknown attributes."""

import hvdlite.jax as hvd

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
import pytest

hvd.init()
OTHERS = {  # attributes of another version of hvdlite
    "added": lambda a: {**a, "aim": np.zeros(1, "int32")},
    "missing": lambda a: {k: v for k, v in a.items() if k != "scales"},
    "renamed": lambda a: {"roots" if k == "root" else k: v for k, v in a.items()},
    "dtype": lambda a: {**a, "op": a["op"].astype("int64")},
    "size": lambda a: {**a, "carriers": np.ones(2, "int32")},
    "array": lambda a: {**a, "kind": 1},
    "string": lambda a: {**a, "name": np.ones(1, "int32")},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_a_jax_program_with_attributes_of_another_hvdlite_is_refused(change, monkeypatch):
    made = jax.ffi.ffi_call

    def changed(*args, **options):
        call = made(*args, **options)
        return lambda *arrays, **attributes: call(*arrays, **change(attributes))

    monkeypatch.setattr(jax.ffi, "ffi_call", changed)
    text = "export it again, with the attributes int32_t carriers; int32_t group;"
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=text):
        jax.jit(lambda a: hvd.allreduce(a, "other") + 1)(jnp.ones(2)).block_until_ready()


@pytest.mark.parametrize("verb", ["allreduce", "reducescatter"])
def test_a_wrong_op_is_refused_inside_jit(verb):
    with pytest.raises(ValueError, match="op is 1.0: expected one of"):
        jax.jit(lambda a: getattr(hvd, verb)(a, name="op", op=1.0))(jnp.ones(2))
