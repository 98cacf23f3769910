"""Run the Python code of pages on every rank, each block separately. argv: folder, pages.

Names that a block uses without defining them, such as a net, come from PREPARED or, if PREPARED
does not have the page, from the page's first block.
"""

import os
import re
import sys
from pathlib import Path

import hvdlite as hvd

# isort: split
from jobs import report

GLUON = """
import mxnet as mx
from mxnet import gluon
import hvdlite as hvd

hvd.init()
net = gluon.nn.Dense(1)
net.initialize()
images = gluon.data.ArrayDataset(mx.nd.ones((64, 3)), mx.nd.ones((64, 1)))
l2 = gluon.loss.L2Loss()
with mx.autograd.record():
    loss = l2(net(images[:32][0]), images[:32][1])
params, opt, epochs = net.collect_params(), mx.optimizer.SGD(0.01), 2
"""
PREPARED = {
    "backend.md": """
import os, torch
import hvdlite.torch as hvd
hvd.init()
port = str(hvd.broadcast_object(29000 + os.getpid() % 3000))
os.environ.update(RANK=str(hvd.rank()), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
model = torch.nn.Linear(10, 1)
""",
    "compression.md": GLUON,
    "elastic.md": GLUON,
    "jax.md": "import hvdlite.jax",
    "kvstore.md": GLUON
    + """
batches = mx.io.NDArrayIter(mx.nd.ones((8, 3)), mx.nd.ones((8,)), 4, label_name="softmax_label")
layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2)
symbol = mx.sym.SoftmaxOutput(layer, name="softmax")
module = mx.mod.Module(symbol)
""",
    "migrate.md": GLUON
    + """
params, batch_size = list(net.collect_params().values()), 32
trainer = hvd.DistributedTrainer(net.collect_params(), opt)
with mx.autograd.record():
    loss = l2(net(images[:32][0]), images[:32][1])
loss.backward()
""",
    "pytorch.md": """
import os, torch
import hvdlite.torch as hvd
hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(10, 1)
port = hvd.broadcast_object(29000 + os.getpid() % 3000)
where = {"init_method": f"tcp://127.0.0.1:{port}", "rank": hvd.rank(), "world_size": hvd.size()}
if not torch.distributed.is_initialized():
    torch.distributed.init_process_group("gloo", **where)
""",
    "tensorflow.md": """
import keras, numpy
x, y = numpy.ones((64, 10)), numpy.ones((64, 1))
model = keras.Sequential([keras.Input((10,)), keras.layers.Dense(1)])
""",
    "trees.md": """
open("train.svm", "w").write("1 0:1.5 1:2\\n0 0:0.5\\n" * 20)
parameters = {"objective": "binary:logistic"}
""",
}

folder = sys.argv[1]
has_bfloat16 = re.search(r"\b(avx512_bf16|amx_bf16)\b", Path("/proc/cpuinfo").read_text())
hvd.init()
os.makedirs(os.path.join(folder, str(hvd.rank())), exist_ok=True)


def run_page(page: Path) -> int:
    """Run a page; return the number of its blocks."""
    text, before = page.read_text(), PREPARED.get(page.name)
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    os.chdir(folder if before is None else os.path.join(folder, str(hvd.rank())))

    def run(block, scope: dict) -> None:
        """Run a block so that a traceback has the line numbers of the page."""
        lines = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(lines + block[1], str(page), "exec"), scope)

    own = blocks if before else blocks[1:]
    for block in own:
        if has_bfloat16 or '"bfloat16"' not in block[1]:
            scope = {"__name__": "snippet"}
            if before:
                exec(before, scope)
            else:
                run(blocks[0], scope)
            run(block, scope)
    return len(own)


ran = 0
for page in [Path(name).resolve() for name in sys.argv[2:]]:
    ran += run_page(page)
    if "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized():
        sys.modules["torch"].distributed.destroy_process_group()  # the next page makes its own
report(hvd.rank(), ran=ran)
