"""What the cases of the Python package have in common: a tiny run, and rows for it."""
import array
import unittest

import millrace

CONFIG = {
    'model': {'family': 'gpt2', 'layers': 1, 'd_model': 12, 'heads': 2, 'seq_len': 4, 'vocab': 11},
    'train': {'steps': 9, 'micro_batch': 3, 'accumulate': 1},
}


def rows(step=0, rank=0):
    return [[(2 * step + 5 * rank + 3 * row + i * (row + 1)) % 11 for i in range(5)] for row in range(3)]


def flat(dtype):
    """The same as a 2-D buffer of another element type."""
    return memoryview(array.array(dtype, sum(rows(), []))).cast('B').cast(dtype, [3, 5])


class WheelCase(unittest.TestCase):

    def setUp(self):
        self.run_ = millrace.Run(CONFIG)
        self.addCleanup(self.run_.close)
        self.run_.init()

    def inference_run(self, **more):
        run = millrace.Run(dict(CONFIG, **more), use_inference=True)
        self.addCleanup(run.close)
        run.init()
        return run
