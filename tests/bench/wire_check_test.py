"""wire_check.py's arithmetic: what agrees, what does not, and what was never compared."""
import os, sys, unittest

sys.path.insert(0, os.path.abspath("tools/bench"))
import wire_check

GIB = 1 << 30


class Verdict(unittest.TestCase):
    def check(self, long_run, short_run, ranks=2):
        return wire_check.verdict(100 * GIB, long_run, short_run, ranks)

    def test_what_both_runs_share_falls_out_and_idle_gpus_do_not_count(self):
        got = self.check([(107 * GIB, 107 * GIB), (107 * GIB, 107 * GIB), (0, 0)], [(5 * GIB, 5 * GIB), (5 * GIB, 5 * GIB), (0, 0)])
        self.assertEqual((got["equal"], got["rows"]), (True, [(102 * GIB, 102 * GIB)] * 2))

    def test_each_direction_of_each_gpu_must_agree_within_five_percent(self):
        agree, more, less = (104 * GIB, 96 * GIB), (106 * GIB, 100 * GIB), (100 * GIB, 94 * GIB)
        none = [(0, 0)] * 2
        self.assertTrue(self.check([agree, agree], none)["equal"])
        for other in (more, less):
            self.assertFalse(self.check([agree, other], none)["equal"])
            self.assertFalse(self.check([other, agree], none)["equal"])

    def test_fewer_or_more_busy_gpus_than_ranks_are_a_difference(self):
        agree = (100 * GIB, 100 * GIB)
        self.assertFalse(self.check([agree], [(0, 0)])["equal"])
        self.assertFalse(self.check([agree] * 3, [(0, 0)] * 3)["equal"])

    def test_counters_that_stand_still_compare_nothing(self):
        self.assertIsNone(self.check([(7, 7), (7, 7)], [(7, 7), (7, 7)])["equal"])

    def test_a_machine_without_nvml_says_why(self):
        links = wire_check.Links()
        if links.trouble is None:
            self.skipTest("this machine's links can be read")
        self.assertEqual(links.read(), [])


if __name__ == "__main__":
    unittest.main()
