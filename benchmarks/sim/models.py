"""The gradients of known networks, from the shapes of their layers, and of a user's own network.

A network is a list of tensors in the order of the layers, each with its number of elements and its
layer's share of a step's additions and multiplications.
"""

import math
import re
from pathlib import Path
from typing import Callable, Dict, List, Tuple

from hvdlite.bench.models import bert_shapes

Layers = List[Tuple[int, float]]  # (elements, multiplications) of each layer


def _conv(size: int, inputs: int, outputs: int, side: int) -> Tuple[int, float]:
    elements = size * size * inputs * outputs
    return elements, float(elements * side * side)


def _norm(channels: int) -> Layers:
    return [(channels, 0.0), (channels, 0.0)]


def resnet50() -> Layers:
    """Return the layers of ResNet-50 (He et al., arXiv:1512.03385)."""
    layers = [_conv(7, 3, 64, 112), *_norm(64)]
    inputs = 64
    for width, blocks, side in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for block in range(blocks):
            layers += [_conv(1, inputs, width, side), *_norm(width)]
            layers += [_conv(3, width, width, side), *_norm(width)]
            layers += [_conv(1, width, 4 * width, side), *_norm(4 * width)]
            if block == 0:
                layers += [_conv(1, inputs, 4 * width, side), *_norm(4 * width)]
            inputs = 4 * width
    return [*layers, (2048 * 1000, 2048e3), (1000, 0.0)]


def vgg16() -> Layers:
    """Return the layers of VGG-16 (Simonyan and Zisserman, arXiv:1409.1556, configuration D)."""
    layers: Layers = []
    inputs = 3
    for width, convolutions, side in ((64, 2, 224), (128, 2, 112), (256, 3, 56), (512, 3, 28), (512, 3, 14)):  # fmt: skip # noqa: E501
        for _ in range(convolutions):
            layers += [_conv(3, inputs, width, side), (width, 0.0)]
            inputs = width
    for inputs, outputs in ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)):
        layers += [(inputs * outputs, float(inputs * outputs)), (outputs, 0.0)]
    return layers


def bert() -> Layers:
    """BERT-base, 128 tokens; the matrices of the embeddings cost no multiplications."""
    elements = [math.prod(shape) for shape in bert_shapes()]
    is_matrix = [len(shape) == 2 for shape in bert_shapes()]
    return [
        (n, 128.0 * n if multiplies and i > 2 else 0.0)
        for i, (n, multiplies) in enumerate(zip(elements, is_matrix))
    ]


MODELS: Dict[str, Callable[[], Layers]] = {"resnet50": resnet50, "vgg16": vgg16, "bert": bert}


def tensors(name: str) -> List[Tuple[int, float]]:
    """Return each tensor's number of elements, and its layer's share of the compute time."""
    layers = MODELS[name]()
    work = sum(multiplications for _, multiplications in layers)
    return [(elements, multiplications / work) for elements, multiplications in layers]


def own(text: str) -> List[Tuple[int, float]]:
    """Return a user's gradients; all layers take the same compute time.

    :param text: number of elements and of tensors, as 25.6M/161; or the path of a file with the
        number of elements of each tensor, first layers first.
    """
    found = re.fullmatch(r"([\d.]+)([KMG]?)/(\d+)", text)
    if found:
        many = int(found[3])
        sizes = [round(float(found[1]) * 1000 ** "_KMG".index(found[2] or "_") / many)] * many
    else:
        sizes = [int(line) for line in Path(text).read_text().split()]
    return [(size, 1 / len(sizes)) for size in sizes]
