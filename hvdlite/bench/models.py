"""The shapes of the gradients of models, in the order of the layers."""

from typing import List, Tuple

Shape = Tuple[int, ...]

_ZOO = {"resnet18": "resnet18_v1", "resnet50": "resnet50_v1", "vgg16": "vgg16"}
NAMES = ("lenet", *_ZOO, "bert-base")


def gradient_shapes(name: str) -> List[Shape]:
    """Return the shape of each gradient; ``name`` is one of NAMES."""
    if name == "bert-base":
        return bert_shapes()
    if name not in NAMES:
        raise ValueError(f"model {name!r}: expected one of {', '.join(NAMES)}")
    from mxnet.gluon.model_zoo import vision

    net = lenet() if name == "lenet" else getattr(vision, _ZOO[name])()
    image = (1, 1, 28, 28) if name == "lenet" else (1, 3, 224, 224)
    images = arrays_of_gluon().zeros(image)
    if hasattr(net, "hybrid_forward"):
        net.infer_shape(images)
    else:  # MXNet 2 infers shapes only in forward
        net.initialize()
        net(images)
    return [p.shape for p in net.collect_params().values() if p.grad_req != "null"]


def arrays_of_gluon():
    """Return the module whose arrays Gluon takes: mx.nd, in MXNet 2 mx.np."""
    import mxnet as mx

    if hasattr(mx, "mod"):
        return mx.nd
    mx.npx.set_np()  # optimizers need this for mx.np arrays
    return mx.np


def lenet():
    """LeNet as in MXNet's examples: 431,080 parameters."""
    from mxnet.gluon import nn

    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(20, kernel_size=5, activation="tanh"),
        nn.MaxPool2D(),
        nn.Conv2D(50, kernel_size=5, activation="tanh"),
        nn.MaxPool2D(),
        nn.Dense(500, activation="tanh"),
        nn.Dense(10),
    )
    return net


def bert_shapes() -> List[Shape]:
    """Return the shapes of bert-base-uncased's weights: BERT's encoder with pooler.

    https://arxiv.org/abs/1810.04805: 110 million parameters.
    """
    layers, units, inner, vocabulary, positions = 12, 768, 3072, 30522, 512
    norm = [(units,), (units,)]
    attention = 4 * [(units, units), (units,)]  # query, key, value, output
    feed_forward = [(inner, units), (inner,), (units, inner), (units,)]
    embeddings = [(vocabulary, units), (positions, units), (2, units), *norm]
    layer = [*attention, *norm, *feed_forward, *norm]
    return [*embeddings, *layers * layer, (units, units), (units,)]
