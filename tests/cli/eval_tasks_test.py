"""eval --task and eval.tasks: the same scores from a checkpoint as within the run, on any number of ranks."""
import json
import unittest

from harness import BAD_CONFIG, BAD_DATA, OK, CliTest, millrace

QUESTIONS = [{'activity_label': 'Baking', 'ctx_a': 'One.', 'ctx_b': ['', 'he'][i % 2], 'ctx': 'One.', 'endings': ['goes %d' % i, 'comes.', 'is', 'has it'],
              'label': i % 4} for i in range(5)]


class EvalTasks(CliTest):

    def write(self, name, text):
        path = self.path(name)
        with open(path, 'w') as f:
            f.write(text)
        return path

    def setUp(self):
        super().setUp()
        self.questions = self.write('q.jsonl', ''.join(json.dumps(question) + '\n' for question in QUESTIONS))
        self.text = self.write('text.txt', 'Sentence 7 says that 7 and 14 are it, and caf\u00e9. ' * 3)

    def tasks(self):
        return ['--task', 'hellaswag:' + self.questions, '--task', 'ppl:' + self.text]

    def test_a_checkpoint_scores_as_its_run_did(self):
        config, run = self.config(eval={'tasks': ['hellaswag:' + self.questions, 'ppl:' + self.text], 'every': 4})
        outcome = self.expect(millrace('train', config, ranks=2), OK)
        self.expect_line(outcome.out, r'^step 4: ppl:text\.txt: word_perplexity [\d.]+, byte_perplexity [\d.]+, bits_per_byte', 1)
        recorded = {line['step']: line['scores'] for line in run.metrics() if 'scores' in line}
        self.assertEqual(sorted(recorded), [4, 6])
        for ranks in (1, 2):
            for step in (4, 6):
                outcome = self.expect(millrace('eval', config, '--checkpoint', run.checkpoint(step), *self.tasks(), ranks=ranks), OK)
                for line in map(json.loads, outcome.out.splitlines()):
                    self.assertEqual(line['step'], step)
                    self.assertEqual({key: line[key] for key in recorded[step][line['task']]}, recorded[step][line['task']])
        report = self.expect(millrace('report', run.path), OK)
        self.assertIn('report.html', report.out)

    def test_each_example_is_a_line(self):
        config, _ = self.config()
        self.expect(millrace('train', config), OK)
        path = self.path('examples.jsonl')
        outcome = self.expect(millrace('eval', config, *self.tasks()[:2], '--limit', '3', '--examples', path), OK)
        self.assertEqual(json.loads(outcome.out)['examples'], 3)
        with open(path) as f:
            lines = [json.loads(line) for line in f]
        self.assertEqual([(line['example'], line['label']) for line in lines], [(0, 0), (1, 1), (2, 2)])
        for line in lines:
            self.assertEqual(line['choice'], line['log_probs'].index(max(line['log_probs'])))

    def test_what_cannot_be_scored_is_said_first(self):
        config, _ = self.config()
        for words, code, said in ((['--task', 'mmlu:x'], BAD_CONFIG, 'mmlu:x is not known; hellaswag:FILE.bin'),
                                  (['--task', 'ppl:' + self.path('absent')], BAD_DATA, 'absent does not exist'),
                                  (['--task', 'hellaswag:' + self.write('bad.jsonl', '{"ctx_a": 1}\n')], BAD_DATA, r'bad.jsonl:1: "activity_label" is missing'),
                                  (self.tasks() + ['--examples', 'x'], BAD_CONFIG, '--examples is one file'),
                                  (['--examples', 'x'], BAD_CONFIG, 'requires --task')):
            outcome = self.expect(millrace('eval', config, *words), code)
            self.assertIn(said, outcome.err + outcome.out)
        other, _ = self.config('other.json', eval={'tasks': ['mmlu:x']})
        self.expect_line(self.expect(millrace('train', other), BAD_CONFIG).err, r'eval\.tasks = .*mmlu:x is not known')


if __name__ == '__main__':
    unittest.main()
