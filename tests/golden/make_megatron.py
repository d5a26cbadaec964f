#!/usr/bin/env python3
"""Datasets and blends of Megatron-LM's own code, which the readers and the rule of blends are tested against.

    pip install megatron-core==0.16.1 torch numpy
    python3 tests/golden/make_megatron.py

Writes tests/golden/megatron: NAME.idx and NAME.bin of IndexedDatasetBuilder, for ids of 16 and of 32 bits, and golden.json: which
ids they hold, and for weights the sources that build_blending_indices draws from (the first 200, and how many of 20,000).
"""
import json
import os
import pathlib
import warnings

import numpy
import torch

warnings.simplefilter('ignore')
from megatron.core.datasets import helpers_cpp  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder  # noqa: E402

FOLDER = pathlib.Path(__file__).parent / 'megatron'
WEIGHTS = [[5, 3, 2], [1, 1, 1], [0.7, 0.2, 0.1], [1, 3], [0.333, 0.333, 0.334], [1e-4, 1], [3.7, 0.11, 2.9, 8.3, 1.03, 0.002, 5.5],
           [0.62, 0.001, 0.379], [17, 4, 9, 9, 9, 1, 2, 30, 12, 5, 0.5]]


def dataset(name, dtype, documents):
    builder = IndexedDatasetBuilder(str(FOLDER / (name + '.bin')), dtype=dtype)
    for document in documents:
        for sequence in document:
            builder.add_item(torch.tensor(sequence, dtype=torch.int64))
        builder.end_document()
    builder.finalize(str(FOLDER / (name + '.idx')))
    read = IndexedDataset(str(FOLDER / name))
    assert [list(map(int, read[i])) for i in range(len(read))] == [s for d in documents for s in d]
    return {'ids': [i for d in documents for s in d for i in s], 'sequences': len(read), 'documents': len(documents)}


def draws(weights, count):
    shares = numpy.array(weights, dtype=numpy.float64)
    shares = shares / numpy.sum(shares)
    sources, samples = numpy.zeros(count, numpy.int16), numpy.zeros(count, numpy.int64)
    helpers_cpp.build_blending_indices(sources, samples, shares, len(weights), count, False)
    return sources


def main():
    os.makedirs(FOLDER, exist_ok=True)
    golden = {'datasets': {}, 'blends': []}
    golden['datasets']['u16'] = dataset('u16', numpy.uint16, [[[5, 60001, 7]], [[1, 2], [3]], [[65499, 0, 11, 12, 13]]])
    golden['datasets']['i32'] = dataset('i32', numpy.int32, [[[100000, 7], [128255]], [[9, 8, 7, 6, 5, 4, 3]]])
    for weights in WEIGHTS:
        sources = draws(weights, 20000)
        golden['blends'].append({'weights': weights, 'first': list(map(int, sources[:200])),
                                 'taken': [int((sources == i).sum()) for i in range(len(weights))]})
    (FOLDER / 'golden.json').write_text(json.dumps(golden) + '\n')


if __name__ == '__main__':
    main()
