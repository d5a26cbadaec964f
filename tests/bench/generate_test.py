"""What generate_gpu.py finds in answers and scores: as many as there must be, and as far apart as rounding puts them."""
import json, os, random, sys, unittest

sys.path.insert(0, os.path.abspath("tools/bench"))
import generate_gpu

ASKED = [{"prompt": [1] * (i % 7 + 1)} for i in range(20)]
TOKENS = 40
ROUNDING = 0.01  # root mean square


def rows(of):
    return [[of(row, place) for place in range(TOKENS)] for row in range(len(ASKED))]


class Compare(unittest.TestCase):
    def setUp(self):
        random.seed(1)
        self.exact = rows(lambda row, place: -random.uniform(0.1, 5))
        self.scores, self.answers = self.rounded(), self.rounded()
        self.scores[3][5] = self.exact[3][5] + 0.1  # one token that rounds badly, behind which a fault could hide from a limit of the farthest alone
        self.lines = len(ASKED)
        self.real, generate_gpu.run = generate_gpu.run, self.run_program

    def tearDown(self):
        generate_gpu.run = self.real

    def rounded(self):
        return rows(lambda row, place: self.exact[row][place] + random.gauss(0, ROUNDING))

    def run_program(self, args, command, *words):
        self.assertEqual((command, words[-2:]), ("score", ("--input", "texts")))
        scored = self.exact if "in_f32" in words else self.scores
        lines = [json.dumps({"logprobs": [None] + [-1.0] * (len(asked["prompt"]) - 1) + row}) + "\n" for asked, row in zip(ASKED, scored)]
        return "".join(lines[:self.lines])

    def compare(self, configs=("config", "in_f32")):
        return generate_gpu.compare(None, list(configs), "texts", ASKED, self.answers)

    def fails(self, why, **options):
        with self.assertRaises(generate_gpu.Failed) as caught:
            self.compare(**options)
        self.assertIn(why, str(caught.exception))

    def test_equal_rounding_passes(self):
        near, rounded = r"0\.0\d\d \(rms 0\.0\d{3}\)", r"0\.100 \(rms 0\.01\d\d\)"
        self.assertRegex(self.compare(), r"^0\.\d{3} \(rms 0\.01\d\d\) from scores; from those in f32 %s, where scores are %s$" % (near, rounded))

    def test_a_fault_that_no_single_token_shows_fails(self):
        self.answers = rows(lambda row, place: self.answers[row][place] + 0.05)
        self.fails(": too far by rms from f32, rms from scores")

    def test_one_answer_that_is_far_off_fails(self):
        self.answers[7] = [x + 0.12 for x in self.answers[7]]
        self.fails(": too far by rms from f32, rms from scores")

    def test_one_token_that_is_far_off_fails(self):
        self.answers[7][2] = self.exact[7][2] - 0.21
        self.fails(": too far by the farthest")

    def test_rounding_against_the_scores_fails(self):
        """As far from f32 as the scores, to the other side: no rounding of its own is."""
        self.answers = rows(lambda row, place: 2.2 * self.exact[row][place] - 1.2 * self.scores[row][place])
        self.fails(": too far by rms from scores")

    def test_scores_that_are_no_number_fail(self):
        self.scores[8][9] = float("nan")
        self.fails(": too far by the farthest, rms from f32, rms from scores")
        self.exact = self.scores
        self.fails("differ by nan from scores", configs=("in_f32",))

    def test_a_missing_line_fails(self):
        self.lines -= 1
        self.fails("19 lines of score of 20 texts")
        self.fails("19 lines of score of 20 texts", configs=("in_f32",))

    def test_a_missing_answer_fails(self):
        self.answers.pop()
        self.fails("19 answers of 20 texts")

    def test_a_short_row_fails(self):
        whole = self.answers[4]
        self.answers[4] = whole[:-1]
        self.fails("39 log-probabilities of an answer of 40 scored tokens")
        self.answers[4] = whole
        self.scores[19].pop()
        self.fails("40 log-probabilities of an answer of 39 scored tokens")

    def test_in_f32_a_limit_of_its_own_holds(self):
        self.answers = [list(row) for row in self.exact]
        self.assertEqual(self.compare(configs=("in_f32",)), "within 0.0e+00 of scores")
        self.answers[19][39] += 3e-4
        self.fails("differ by 0.0003 from scores", configs=("in_f32",))


if __name__ == "__main__":
    unittest.main()
