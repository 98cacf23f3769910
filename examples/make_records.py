"""Packs scikit-learn's 1,797 handwritten digits into files that examples/imagenet.py reads.

    python examples/make_records.py digits              digits/train.rec, val.rec and their indices
    python examples/make_records.py digits --size 224   images as large as ImageNet's crops

For ImageNet itself, use MXNet's `python -m mxnet.tools.im2rec`. The tool first lists the images in
ImageNet's folders, then packs them into files of the same format.
"""

import argparse
import struct
import sys
import zlib
from pathlib import Path

import hvdlite  # noqa: F401 (imported before mxnet, so that mxnet works with any NumPy)

# isort: split
import mxnet as mx
import numpy as np
from mxnet import recordio
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def main():
    parser = argparse.ArgumentParser(description="Pack handwritten digits for imagenet.py.")
    add = parser.add_argument
    add("folder", type=Path, help="folder for the files; made if it does not exist")
    add("--size", type=int, default=36, help="height and width of an image (%(default)s)")
    add("--images", type=int, default=1797, help="number of images (%(default)s)")
    args = parser.parse_args()
    if args.size < 8 or not 50 <= args.images <= 1797:
        sys.exit("make_records.py: expected --size of at least 8, --images of 50 to 1797")
    for name, count in write_digits(args.folder, args.size, args.images).items():
        print(f"{args.folder / name}.rec: {count} images")


def write_digits(folder: Path, size: int, images: int) -> dict:
    """Write train.rec, and val.rec with a fifth of the images; return their numbers of images."""
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    scans = mx.nd.array(digits.images[..., None].repeat(3, axis=3) * (255 / 16)).astype("uint8")
    pixels = mx.nd.image.resize(scans[:images], size=size, interp=2).asnumpy()  # 2: bicubic
    labels = digits.target[:images]
    x, x_val, y, y_val = train_test_split(
        pixels, labels, test_size=0.2, stratify=labels, random_state=0
    )
    for name, parts in {"train": (x, y), "val": (x_val, y_val)}.items():
        write_records(folder / name, *parts)
    return {"train": len(x), "val": len(x_val)}


def write_records(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Write path.rec and path.idx.

    :param images: uint8, (number, height, width, 3).
    """
    records = recordio.MXIndexedRecordIO(f"{path}.idx", f"{path}.rec", "w")
    for number, (image, label) in enumerate(zip(images, labels)):
        header = recordio.IRHeader(0, float(label), number, 0)
        records.write_idx(number, recordio.pack(header, png(image)))
    records.close()


def png(image: np.ndarray) -> bytes:
    """Return the image as the bytes of a PNG file; recordio.pack_img would need opencv-python.

    :param image: uint8, (height, width, 3).
    """
    height, width, _ = image.shape
    rows = b"".join(b"\0" + row.tobytes() for row in image)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )


if __name__ == "__main__":
    main()
