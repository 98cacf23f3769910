"""Checks of tensors on a GPU or the CPU: results equal one process's. Measures times, too."""

import statistics
import time
from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist
from torch import nn

STEPS = 4
SIZES = {4: "4 B", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB", 64 << 20: "64 MiB"}
CHECKS: Dict[str, List[Callable]] = {}


def check(program: str) -> Callable:
    """Return a decorator that appends a function of device, rank and size to a program's checks."""

    def add(function: Callable) -> Callable:
        CHECKS.setdefault(program, []).append(function)
        return function

    return add


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Linear(256, 8))


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, 32, generator=torch.Generator().manual_seed(100 * step + rank))


def joined(size: int, step: int) -> torch.Tensor:
    return torch.cat([batch(rank, step) for rank in range(size)])


def train(model, optimizer, batches, scaler: Any = None, passes: int = 1) -> List[torch.Tensor]:
    for number, rows in enumerate(batches):
        loss = model(rows).square().mean() / passes
        (scaler.scale(loss) if scaler else loss).backward()
        if (number + 1) % passes == 0:
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
    return [param.detach().float().cpu() for param in model.parameters()]


def alone(device, size: int, dtype=torch.float32, steps: int = STEPS) -> List[torch.Tensor]:
    """Return the weights that one process trains on the batches of all ranks."""
    model = network().to(device, dtype)
    rows = [joined(size, step).to(device, dtype) for step in range(steps)]
    return train(model, torch.optim.SGD(model.parameters(), 0.1, 0.9), rows)


def own(device, rank: int, dtype=torch.float32, steps: int = STEPS) -> List[torch.Tensor]:
    return [batch(rank, step).to(device, dtype) for step in range(steps)]


def expect_close(found, expected, most: float) -> str:
    worst = max(float((a - b).abs().max()) for a, b in zip(found, expected))
    assert worst <= most, f"differs by {worst:.3g}: expected at most {most:.3g}"
    return f"differs by {worst:.2g}"


def expect_equal(found, expected) -> None:
    found = found.cpu()
    expected = torch.as_tensor(expected).to(found.dtype).expand(found.shape)
    assert torch.equal(found, expected), f"{found.flatten()[:8]}: expected {expected.flatten()[:8]}"


def delayed(device, function: Callable) -> Any:
    """Call the function on a new stream, behind a kernel that runs for milliseconds."""
    if device.type == "cpu":
        return function()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        result = function()
    torch.cuda.current_stream().wait_stream(stream)
    return result


def milliseconds(device, call: Callable, barrier: Callable) -> float:
    """Return the median time of a call until its result is complete."""
    taken = []
    for number in range(13):
        barrier()
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number >= 3:
            taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken)


def horovod_like():
    import hvdlite.torch as hvd

    hvd.init()
    return hvd


@check("hvdlite.torch")
def every_verb(device, rank, size):
    hvd, total = horovod_like(), size * (size + 1) // 2
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64):
        x = torch.full((2 * size, 3), rank + 1, dtype=dtype, device=device)
        y = hvd.allreduce(x, op=hvd.Sum)
        assert (y.device, y.dtype) == (x.device, dtype)
        expect_equal(y, total)
        expect_equal(
            hvd.allgather(x[: rank + 1])[:, 0], [r + 1 for r in range(size) for _ in range(r + 1)]
        )
        expect_equal(hvd.broadcast(x, size - 1), size)
        expect_equal(hvd.alltoall(x)[:, 0], [r + 1 for r in range(size) for _ in range(2)])
        expect_equal(hvd.reducescatter(x, op=hvd.Sum), torch.full((2, 3), total))
        for each in hvd.grouped_allreduce([x, x[0].clone()], op=hvd.Sum):
            expect_equal(each, total)
        expect_equal(x, rank + 1)
        hvd.allreduce_(x.t(), op=hvd.Sum)  # a transposed tensor, in place
        expect_equal(x, total)


@check("hvdlite.torch")
def an_allreduce_waits_for_a_running_kernel(device, rank, size):
    hvd = horovod_like()

    def call():
        x = torch.zeros(1 << 20, device=device)
        x += rank + 1
        return hvd.allreduce(x, op=hvd.Sum), hvd.allreduce_async(x, op=hvd.Sum)

    for _ in range(5):
        result, handle = delayed(device, call)
        expect_equal(result, size * (size + 1) // 2)
        expect_equal(hvd.synchronize(handle), size * (size + 1) // 2)


@check("hvdlite.torch")
def the_optimizer_trains_as_one_process(device, rank, size):
    hvd = horovod_like()
    model = network().to(device)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    found = train(model, optimizer, own(device, rank))
    # only the last rank has states
    fresh = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    if rank == size - 1:
        fresh.load_state_dict(optimizer.state_dict())
    hvd.broadcast_optimizer_state(fresh, size - 1)
    for param in model.parameters():
        buffer = fresh.state[param]["momentum_buffer"]
        assert buffer.device.type == device.type
        expect_equal(buffer, optimizer.state[param]["momentum_buffer"].cpu())
    return expect_close(found, alone(device, size), 5e-6)


@check("hvdlite.torch")
def the_optimizer_with_passes_and_compression_trains_as_one_process(device, rank, size):
    hvd = horovod_like()
    for compression, most in ((hvd.Compression.none, 5e-6), (hvd.Compression.fp16, 2e-3)):
        model = network().to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
        optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), backward_passes_per_step=2, compression=compression
        )
        rows = own(device, rank, steps=2 * STEPS)
        found = train(model, optimizer, rows, passes=2)
        single = network().to(device)
        rows = [joined(size, step).to(device) for step in range(2 * STEPS)]
        expected = train(single, torch.optim.SGD(single.parameters(), 0.1, 0.9), rows, passes=2)
        expect_close(found, expected, most)


@check("hvdlite.torch")
def mixed_precision_with_a_scaler_trains_as_one_process(device, rank, size):
    hvd = horovod_like()
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    with torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16):
        found = train(model, optimizer, own(device, rank), scaler)
    return expect_close(found, alone(device, size), 5e-2)


@check("hvdlite.torch")
def sync_batch_norm_sees_the_joined_batch(device, rank, size):
    whole, layer = nn.BatchNorm1d(32).to(device), horovod_like().SyncBatchNorm(32).to(device)
    rows = joined(size, 0).to(device).requires_grad_()
    expected = whole(rows)
    expected.square().sum().backward()
    part = batch(rank, 0).to(device).requires_grad_()
    found, mine = layer(part), slice(8 * rank, 8 * rank + 8)
    found.square().sum().backward()
    pairs = (
        [found, part.grad, layer.running_var],
        [expected[mine], rows.grad[mine], whole.running_var],
    )
    return expect_close(*([each.detach().cpu() for each in side] for side in pairs), most=1e-5)


@check("hvdlite.torch")
def a_disagreement_is_an_error(device, rank, size):
    hvd = horovod_like()
    try:
        hvd.allreduce(torch.ones(2 + rank, device=device), name="uneven")
    except hvd.HvdliteError as error:
        assert "uneven" in str(error)
    else:
        raise AssertionError("an allreduce of different shapes succeeded: expected HvdliteError")
    expect_equal(hvd.allreduce(torch.ones(3, device=device), op=hvd.Sum), size)


@check("hvdlite.torch")
def times(device, rank, size):
    hvd = horovod_like()

    def call(nbytes: int) -> Callable:
        tensor, name = torch.zeros(nbytes // 4, device=device), f"time.{nbytes}"
        return lambda: hvd.allreduce_(tensor, name=name, op=hvd.Sum)

    return {title: milliseconds(device, call(n), hvd.barrier) for n, title in SIZES.items()}


def nccl_moves_the_data(device, rank, size):
    from hvdlite.torch import delegate

    hvd = horovod_like()
    movers = [agreement.made for agreement in delegate._agreements.made.values()]
    assert [type(mover._group).__name__ for mover in movers] == ["ProcessGroupNCCL"], movers
    assert hvd.nccl_built() and hvd.cuda_built()
    # Averages of integers are computed on the host, because NCCL would round them differently.
    whole, before = torch.full((3,), 7, device=device), movers[0]._turn
    expect_equal(hvd.allreduce(whole, op=hvd.Sum), 7 * size)
    expect_equal(hvd.allreduce(whole, op=hvd.Average), 7)
    assert movers[0]._turn - before == 1


# ---- torch.distributed ----


def group(backend: str) -> None:
    """Join the process group of a backend, only once per process."""
    if not dist.is_initialized():
        dist.init_process_group(backend)


def verbs_of_a_group(device, rank, size):
    x, total = torch.full((2 * size,), rank + 1.0, device=device), size * (size + 1) / 2
    y = x.clone()
    dist.all_reduce(y)
    expect_equal(y, total)
    gathered = torch.empty(2 * size * size, device=device)
    dist.all_gather_into_tensor(gathered, x)
    expect_equal(gathered, [r + 1 for r in range(size) for _ in range(2 * size)])
    part = torch.empty(2, device=device)
    dist.reduce_scatter_tensor(part, x)
    expect_equal(part, total)
    dealt = torch.empty_like(x)
    dist.all_to_all_single(dealt, x)
    expect_equal(dealt, [r + 1 for r in range(size) for _ in range(2)])
    dist.broadcast(x, size - 1)
    expect_equal(x, size)
    if size > 1 and rank < 2:
        message = torch.full((5,), float(rank), device=device)
        if rank == 0:
            dist.send(message, 1)
        else:
            dist.recv(message, 0)
            expect_equal(message, 0)


def an_all_reduce_of_a_group_waits_for_a_running_kernel(device, rank, size):
    def call():
        x = torch.zeros(1 << 20, device=device)
        x += rank + 1
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        return x * 2

    for _ in range(5):
        expect_equal(delayed(device, call), size * (size + 1))


def ddp_trains_as_one_process(device, rank, size):
    for options in ({}, {"gradient_as_bucket_view": True, "static_graph": True}):
        model = nn.parallel.DistributedDataParallel(network().to(device), **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
        text = expect_close(train(model, optimizer, own(device, rank)), alone(device, size), 5e-6)
    return text


def fsdp2_trains_as_one_process(device, rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (size,))
    model = network().to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    for rows in own(device, rank):
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = [param.full_tensor().detach().cpu() for param in model.parameters()]
    return expect_close(found, alone(device, size), 5e-6)


def times_of_a_group(device, rank, size):
    def call(nbytes: int) -> Callable:
        tensor = torch.zeros(nbytes // 4, device=device)
        return lambda: dist.all_reduce(tensor)

    found = {title: milliseconds(device, call(n), dist.barrier) for n, title in SIZES.items()}
    wide = [nn.Linear(1024, 1024) for _ in range(8)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*wide).to(device))
    rows = torch.randn(16, 1024, device=device)
    step = lambda: model(rows).square().mean().backward()  # noqa: E731
    return {**found, "DDP step, 33 MB": milliseconds(device, step, dist.barrier)}


OF_GROUPS = [
    verbs_of_a_group, an_all_reduce_of_a_group_waits_for_a_running_kernel,
    ddp_trains_as_one_process, fsdp2_trains_as_one_process,
]  # fmt: skip
