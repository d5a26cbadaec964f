"""Twenty kills of kill_matrix.py, which says what they are and what must be left: each pair of a victim and a moment once, and four more."""
import unittest

from harness import SLOWER, CliTest, RunDir
from kill_matrix import Matrix, tiny_config

KILLS = 20


class KillMatrix(CliTest):

    def test_twenty_kills_leave_what_a_run_without_them_leaves(self):
        config, run = tiny_config(self.folder)
        matrix = Matrix(config, run, self.path('launch.log'), seed=20)
        try:
            matrix.go(KILLS)
        finally:
            matrix.end()
        print(matrix.summary())
        twin = RunDir(self.path('twin'))
        steps, _ = matrix.finish(twin)
        self.assertEqual(matrix.compare(twin, steps), [])
        self.assertGreaterEqual(len(set(matrix.kills)), 12)  # of 16; who is not there yet at a start is replaced
        self.assertGreater(len(matrix.scratch - {''}), 1)
        for moment in ('save', 'eval'):
            self.assertGreater(matrix.caught[moment], 0, 'no kill fell into its moment: the test proves nothing')
        self.assertLess(max(matrix.restart_s), 30 * SLOWER)


if __name__ == '__main__':
    unittest.main(verbosity=2)
