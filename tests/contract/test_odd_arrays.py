"""Unusual arrays (masked, sparse, nested, subclasses) are reduced correctly or refused."""

import numpy as np
import pytest
from libraries import LIBRARIES, mx, tf, torch
from test_wrong_arguments import FORMS, is_form

import hvdlite as hvd
import hvdlite.numpy

MASKED = np.ma.array([[1.0, 2.0]] * 12, mask=[[False, True]] * 12)
OF_NUMPY = [form for form in FORMS if hasattr(hvdlite.numpy, form)]


def called(module, verb: str, given):
    options = {"root_rank": 0} if verb.startswith("broadcast") else {}
    result = getattr(module, verb)([given] if "grouped" in verb else given, name="x", **options)
    return module.synchronize(result) if "async" in verb else result


@pytest.mark.parametrize("given", [MASKED, [MASKED], [[1.0, np.ma.masked]] * 12], ids=type)
@pytest.mark.parametrize("verb", OF_NUMPY)
def test_a_masked_array_is_refused(verb, given):
    for _repeat in range(3):  # the third call of one name does not check its arguments in Python
        called(hvdlite.numpy, verb, np.ones((12, 2)))
        with pytest.raises(ValueError, match=r"masked, .* pass array\.filled\(0\)"):
            called(hvdlite.numpy, verb, given)


def test_masked_arrays_are_refused_as_out_and_as_splits(size):
    out = np.ma.array(np.zeros(3), mask=[True, False, False])
    with pytest.raises(ValueError, match="out is a MaskedArray"):
        hvdlite.numpy.allreduce(np.ones(3), name="x", out=out)
    with pytest.raises(ValueError, match="masked"):
        hvdlite.numpy.alltoall(np.ones((size, 2)), np.ma.array([1] * size), name="x")


@pytest.mark.skipif(not tf, reason="needs TensorFlow and Keras")
def test_tensorflow_and_keras_refuse_masked_values():
    import hvdlite.keras

    for module in (hvdlite.tensorflow, hvdlite.keras):
        for verb in (form for form in FORMS if is_form(module, form)):
            with pytest.raises(ValueError, match="masked"):
                called(module, verb, MASKED)
    with pytest.raises(ValueError, match=r"ragged one: pass tensor\.to_tensor\(\)"):
        called(hvdlite.keras, "allreduce", tf.ragged.constant([[1.0], [1.0, 2.0]]))


NO_DTYPES = {
    "structured": np.zeros(2, [("a", "f4")]),
    "record": np.rec.array([(1.0,)], dtype=[("a", "f4")]),
    "objects": np.array([1.0, 2.0], object),
    "text": np.array(["1"]),
    "dates": np.array(["2020"], "M8[D]"),
    "bytes": np.zeros(2, "V4"),
    "of the other byte order": np.ones(2, np.dtype("f4").newbyteorder()),
    "long doubles": np.zeros(2, np.longdouble),
    "complex": np.zeros(2, complex),
}


@pytest.mark.parametrize("kind", NO_DTYPES)
def test_a_dtype_that_the_core_lacks_is_refused(kind):
    with pytest.raises(ValueError, match="dtype .* is not supported: expected one of"):
        called(hvdlite.numpy, "allreduce", NO_DTYPES[kind])


class Subclass(np.ndarray):
    pass


@pytest.mark.parametrize(
    "given",
    [np.matrix([[1.0, 2.0]]), np.array([1.0, 2.0]).view(Subclass), [1.0, 2.0], np.float32(2), 3],
    ids=type,
)
def test_lists_and_other_array_types_are_reduced(given, size):
    result = hvdlite.numpy.allreduce(given, name="x", op=hvd.Sum)
    assert type(result) is np.ndarray and (result == np.asarray(given) * size).all()


@pytest.mark.skipif(not mx, reason="needs MXNet")
def test_mxnet_sparse_arrays_and_non_arrays_are_refused(size):
    whole = np.array([[0.0, 2.0], [0.0, 0.0]], "float32")
    refused = {"ndarray": whole, "float": 1.0}
    for kind in ("csr", "row_sparse", "default"):
        given = mx.nd.array(whole).tostype(kind)
        assert (hvdlite.numpy.allreduce(given, name="x", op=hvd.Sum) == whole * size).all()
        if kind != "default":
            refused[f"has storage type {kind}: expected dense; convert it with tostype"] = given
    for verb in ("allreduce", "allreduce_", "allgather", "broadcast_"):
        for text, given in refused.items():
            text = text if " " in text else f"expected an MXNet NDArray, got {text}"
            with pytest.raises(ValueError, match=text):
                called(hvd, verb, given)


def odd_tensors() -> dict:
    """Return name -> (tensor, part of the error's text, or None if hvdlite accepts the tensor)."""
    from torch._subclasses import FakeTensorMode
    from torch.masked import masked_tensor

    ones = torch.ones(2)
    with FakeTensorMode():
        fake = torch.ones(2)
    nested = [torch.ones(2), torch.ones(3)]
    odd = {
        "nested": (torch.nested.nested_tensor(nested), "is nested"),
        "jagged": (torch.nested.nested_tensor(nested, layout=torch.jagged), "is nested"),
        "masked": (masked_tensor(ones, torch.tensor([True, False])), "is a MaskedTensor"),
        "fake": (fake, "is a FakeTensor"),
        "meta": (torch.ones(2, device="meta"), "is on meta"),
        "sparse": (torch.eye(2).to_sparse(), "sparse_coo"),
        "sparse rows": (torch.eye(2).to_sparse_csr(), "sparse_csr"),
        "quantized": (torch.quantize_per_tensor(ones, 0.1, 0, torch.quint8), "quint8"),
        "conjugated": (torch.tensor([1 + 2j]).conj(), "complex64"),
        "negated": (torch.tensor([1 + 2j, 3 - 4j]).conj().imag, None),
        "pairs": (torch.view_as_real(torch.tensor([1 + 2j])), None),
        "transposed": (torch.arange(6.0).view(2, 3).t(), None),
        "trained": (torch.ones(2, requires_grad=True), None),
        "float8": (torch.ones(2, dtype=torch.float8_e5m2), "float8_e5m2"),
        "a list": ([1.0, 2.0], "expected a torch.Tensor, got list"),
    }
    with torch.inference_mode():
        return {**odd, "inferred": (torch.ones(2), None), "expanded": (ones[:1].expand(3), None)}


@pytest.mark.skipif(not torch, reason="needs PyTorch")
@pytest.mark.parametrize("name", odd_tensors() if torch else ())
def test_unusual_tensors_of_pytorch_are_reduced_or_refused(name, size):
    given, error = odd_tensors()[name]
    verbs = ("allreduce", "allreduce_", "allgather", "broadcast")
    for verb in verbs if name != "expanded" else verbs[:1]:
        before = None if error else given.detach().clone()
        if error:
            with pytest.raises(ValueError, match=error):
                called(hvdlite.torch, verb, given)
            continue
        result = called(hvdlite.torch, verb, given).detach()
        expected = torch.cat([before] * size) if verb == "allgather" else before
        assert torch.equal(result, expected)


def test_the_job_goes_on_after_refused_arrays(size):
    """No part of a refused array has been sent, so the next collective works."""
    for lib in LIBRARIES:
        assert lib.call("allreduce", np.ones(1), name="x", op=hvd.Sum) == size
