"""A machine that computes wrong: what `doctor` says of one whose products have a wrong element."""
import json
import os
import unittest

from harness import CliTest, program

DEVICE_FAILED = 77


class Doctor(CliTest):

    def test_wrong_products_are_told_and_the_host_is_to_be_excluded(self):
        library = next(p for p in ('tests/cli/wrong_product.so', 'bazel-bin/tests/cli/wrong_product.so') if os.path.exists(p))
        env = {'LD_PRELOAD': os.path.abspath(library)}
        outcome = self.expect(program('doctor', env=env), DEVICE_FAILED)
        self.expect_line(outcome.out, r'^! arithmetic ')
        self.expect_line(outcome.out, r'of a f32 product of known result \d+ of 262144 elements are wrong: \[\d+, \d+\] is ')
        self.expect_line(outcome.out, '-> exclude the host: its processor or memory, or the BLAS above, is faulty$')
        self.expect_line(outcome.out, '^training on the best that this host has cannot work')
        found = json.loads(self.expect(program('doctor', '--json', env=env), DEVICE_FAILED).out)
        self.assertFalse(found['ok'])
        self.assertEqual([finding['name'] for finding in found['findings'] if finding['serious'] and 'known result' in finding['trouble']], ['arithmetic'])


if __name__ == '__main__':
    unittest.main(verbosity=2)
