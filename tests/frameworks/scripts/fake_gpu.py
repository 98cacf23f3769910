"""Runs a script for GPUs on CPUs: ``python fake_gpu.py script.py ...``

These things are replaced; all else, such as hvdlite and the script, is as on a GPU:

* A tensor on the GPU is a CPU tensor of the class ``OnGpu``, which says that it is on "cuda:0". As
  in PyTorch, an operator refuses tensors on different devices, and NumPy and hvdlite's C library
  can't read a tensor on the GPU.
* Streams and events do nothing: PyTorch has computed a result when an operator returns.
* NCCL is Gloo, which says that it is NCCL 2.28.9.
* Each rank has its own GPU; with ``FAKE_GPUS=1`` all ranks share one GPU.
"""

import contextlib
import os
import runpy
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist

DEVICE = torch.device("cuda", 0)
CALLS = []  # names of the collectives that Gloo has moved in place of NCCL


class OnGpu(torch.Tensor):
    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @property
    def grad(self):
        """Return the gradient, which autograd has made on the CPU, as a tensor of the fake GPU."""
        return on_gpu(_GRAD.__get__(self))

    @grad.setter
    def grad(self, value):
        _GRAD.__set__(self, value)

    def backward(self):
        """Call the engine itself: Tensor.backward() would give hooks tensors without this class."""
        with torch._C.DisableTorchFunctionSubclass():
            ones = torch.ones_like(self)
        torch.autograd.graph._engine_run_backward(
            (self,), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True
        )

    def record_stream(self, stream):
        pass

    def numpy(self, *args, **kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = torch.device(kwargs.pop("device", None) or DEVICE)
        kwargs.pop("pin_memory", None)
        with torch._C.DisableTorchFunctionSubclass():
            refuse_two_devices(function, (args, kwargs))
            result = function(*args, **kwargs)
        in_place = any(result is each for each in args)
        return result if in_place or device.type == "cpu" else on_gpu(result)


_GRAD = torch.Tensor.grad
_MAY_MIX = {"copy_", "_foreach_copy_", "__set__", "__getitem__", "__setitem__"}


def on_gpu(value):
    """Move all tensors of the value to the GPU."""
    if isinstance(value, (list, tuple)):
        for each in value:
            on_gpu(each)
    elif type(value) is torch.Tensor:
        value.__class__ = OnGpu
    return value


def refuse_two_devices(function, arguments) -> None:
    found = {each.is_cuda for each in tensors_of(arguments) if each.dim()}
    if len(found) > 1 and function.__name__ not in _MAY_MIX:
        raise RuntimeError(f"{function.__name__}: expected all tensors on the same device")


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(each)


def copied(tensor: torch.Tensor, device) -> torch.Tensor:
    """Return the tensor on the device: itself, or a copy."""
    to_gpu = torch.device(device).type == "cuda"
    if tensor.is_cuda == to_gpu:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        copy = tensor.clone()
    return on_gpu(copy) if to_gpu else copy


def to(tensor: torch.Tensor, *args, copy=False, _to=torch.Tensor.to, **kwargs) -> torch.Tensor:
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    moved = tensor if device is None else copied(tensor, device)
    if dtype is not None:
        return _to(moved, dtype)
    return moved.clone() if copy and moved is tensor else moved


def makes_on_gpu(make):
    """Return the function with an argument ``device`` that may be the GPU."""

    def made(*args, device=None, **kwargs):
        kwargs.pop("pin_memory", None)
        with torch._C.DisableTorchFunctionSubclass():
            result = make(*args, **kwargs)
        return copied(result, device or "cpu")

    return made


class Stream:
    def __init__(self, device=None) -> None:
        self.query = lambda: True

    def wait_event(self, event) -> None:
        assert isinstance(event, Stream)

    def record_event(self) -> "Stream":
        return Stream()


def gloo(store, rank: int, size: int):
    group = dist.ProcessGroupGloo(store, rank, size)

    class Counted:
        def __getattr__(self, name):
            if name not in ("size", "rank", "abort"):
                CALLS.append(name)
            return getattr(group, name)

    return Counted()


def install() -> None:
    version = 2, 28, 9
    uuid = "shared" if os.environ["FAKE_GPUS"] == "1" else str(os.getpid())
    torch.Tensor.to, torch.Tensor.cpu = to, lambda tensor: copied(tensor, "cpu")
    torch.Tensor.cuda = lambda tensor, *args, **kwargs: copied(tensor, "cuda")
    for make in (torch.empty, torch.full, torch.ones, torch.randn, torch.tensor, torch.zeros):
        setattr(torch, make.__name__, makes_on_gpu(make))
    torch._has_compatible_shallow_copy_type = lambda one, other: one.is_cuda == other.is_cuda
    torch.version.cuda, torch.cuda.nccl.version = "13.0", lambda: version
    # one function each, because PyTorch refuses one object with several names
    for name in ("set_device", "manual_seed", "synchronize"):
        setattr(torch.cuda, name, lambda *args: None)
    for name in ("stream", "device"):
        setattr(torch.cuda, name, lambda *args: contextlib.nullcontext())
    torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 0
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid=uuid)
    torch.cuda.Stream, torch.cuda.current_stream = Stream, lambda device=None: Stream()
    dist.is_nccl_available = lambda: True
    dist.ProcessGroupNCCL = SimpleNamespace(get_runtime_nccl_version=lambda: version)
    from hvdlite.torch import device_groups, tensors

    device_groups.GROUPS["cuda"] = gloo
    described = tensors.memory_of

    def memory_of(tensor):
        assert not tensor.is_cuda, "the C library can't read the memory of a GPU"
        return described(tensor)

    tensors.memory_of = memory_of


if __name__ == "__main__":
    sys.modules["fake_gpu"] = sys.modules["__main__"]
    OnGpu.__module__ = "fake_gpu"  # for pickle
    install()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    print(f"CALLS OF NCCL {len(CALLS)}", flush=True)
