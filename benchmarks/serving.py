"""Measures tokens per second of tensor-parallel decoding on CPUs, batch 1, with hvdlite and Gloo.

    .venv-frameworks/bin/python -m benchmarks.serving --page docs/backend.md

The models are a small Llama with random weights, which Transformers shards (``tp_plan="auto"``),
and blocks like Megatron's, compiled by ``torch.compile`` with both allreduces in the graph. Both
programs ask for Gloo; HVDLITE_AS_GLOO decides whether hvdlite moves the data instead. In each round
both systems run, with new processes, so that other programs disturb both equally. A figure is the
median over rounds.
"""

import statistics
import sys
import tempfile
import time
from typing import Any, Dict, List

from benchmarks import harness

SYSTEMS = {"Gloo": "0", "hvdlite": "1"}
LAYERS, WIDTH, HEADS, PROMPT = 4, 256, 8, 8
TURNS = 3  # measured turns; one more turn before them is for warm-up


# ---- on each rank ----


def llama(tokens: int, folder: str) -> Dict[str, Any]:
    """Return the tokens that the sharded model generates, and the tokens per second."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.distributed import DistributedConfig

    how = DistributedConfig(tp_plan="auto")
    model = LlamaForCausalLM.from_pretrained(folder, distributed_config=how, dtype=torch.float32)
    prompt = torch.arange(1, PROMPT + 1)[None]
    said: List[int] = []

    def decode() -> None:
        out = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
            max_new_tokens=tokens, min_new_tokens=tokens,
        )  # fmt: skip
        said[:] = out[0].tolist()

    return {"rate": _rate(decode, tokens), "said": said}


def blocks(tokens: int, folder: str) -> Dict[str, Any]:
    """Decode with compiled blocks; each output is the next input. Return the first numbers of the
    final output, the number of collectives in the graph, and the tokens per second."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    def part(rows: int, columns: int, dim: int):
        return nn.Parameter(
            (torch.randn(rows, columns) / rows**0.5).chunk(ranks, dim)[rank].clone()
        )

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.ParameterList([part(WIDTH, WIDTH, 1) for _ in range(3)])
            self.out, self.up = part(WIDTH, WIDTH, 0), part(WIDTH, 4 * WIDTH, 1)
            self.down = part(4 * WIDTH, WIDTH, 0)

        def forward(self, x):
            heads = [(x @ w).unflatten(-1, (HEADS // ranks, -1)).transpose(1, 2) for w in self.qkv]
            seen = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2) @ self.out
            dist.all_reduce(seen)
            x = F.layer_norm(x + seen, (WIDTH,))
            wide = F.gelu(x @ self.up) @ self.down
            dist.all_reduce(wide)
            return F.layer_norm(x + wide, (WIDTH,))

    collectives: List[str] = []

    def compiler(graph, inputs):
        from torch._inductor.compile_fx import compile_fx

        names = [str(node.target) for node in graph.graph.nodes]
        collectives[:] = [name for name in names if name.startswith("_c10d_functional.all_reduce")]
        return compile_fx(graph, inputs)

    model = nn.Sequential(*(Block() for _ in range(LAYERS)))
    step = torch.compile(model, fullgraph=True, backend=compiler)
    said: List[float] = []

    def decode() -> None:
        x = torch.linspace(-1, 1, WIDTH).view(1, 1, WIDTH)
        for _ in range(tokens):
            x = step(x)
        said[:] = x.flatten()[:4].tolist()

    with torch.no_grad():
        rate = _rate(decode, tokens)
    return {"rate": rate, "said": said, "collectives": len(collectives)}


def _rate(decode, tokens: int) -> float:
    seconds = []
    for _ in range(1 + TURNS):
        start = time.perf_counter()
        decode()
        seconds.append(time.perf_counter() - start)
    return tokens / statistics.median(seconds[1:])


MODELS = {"Llama, Transformers": llama, "compiled blocks": blocks}


def measure(folder: str, name: str, tokens: str, model: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    found = MODELS[name](int(tokens), model)
    found["by"] = dist.group.WORLD._get_backend(torch.device("cpu")).name()
    harness.write(folder, dist.get_rank(), found)
    dist.barrier()
    dist.destroy_process_group()


# ---- comparison ----


def make_llama(folder: str) -> None:
    """Write a Llama with random weights into the folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": 4}
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
            max_position_embeddings=512, **shape,
        )
    ).save_pretrained(folder)  # fmt: skip


def run(name: str, system: str, ranks: int, tokens: int, model: str) -> List[Dict[str, Any]]:
    """Return each rank's results, with data moved by hvdlite or by Gloo."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    arguments = [name, str(tokens), model]
    here = {"HVDLITE_AS_GLOO": SYSTEMS[system], "GLOO_SOCKET_IFNAME": "lo"}
    here.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    found = harness.results(
        [*start, "--nproc-per-node", str(ranks)], "serving", arguments, 300, **here
    )
    return list(found)


def main() -> None:
    parser = harness.parser_of(__doc__, rounds=3)
    add = parser.add_argument
    add("--ranks", type=int, nargs="+", default=[2, 4], help="(%(default)s)")
    add("--only", choices=MODELS, help="measure only this model")
    add("--tokens", type=int, default=64, help="number of generated tokens (%(default)s)")
    add("--rank", nargs=4, metavar=("FOLDER", "MODEL", "TOKENS", "WEIGHTS"))
    args = parser.parse_args()
    if args.rank:
        return measure(*args.rank)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        make_llama(folder)
        for name in [args.only] if args.only else MODELS:
            for ranks in args.ranks:
                rates: Dict[str, List[float]] = {system: [] for system in SYSTEMS}
                for number in range(args.rounds):
                    for system in harness.in_turn(list(SYSTEMS), number):
                        found = run(name, system, ranks, args.tokens, folder)
                        rates[system].append(min(each["rate"] for each in found))
                gloo, ours = (statistics.median(rates[system]) for system in SYSTEMS)
                faster = harness.of_rounds([b / a for a, b in zip(*rates.values())])
                lines.append([name, str(ranks), f"{gloo:.0f}", f"{ours:.0f}", faster])
                print(*lines[-1], rates, flush=True)
    head = ["tokens a second", "ranks", *SYSTEMS, "hvdlite / Gloo"]
    harness.show(harness.markdown(head, lines), args.page)


if __name__ == "__main__":
    main()
