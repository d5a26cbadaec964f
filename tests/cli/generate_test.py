"""generate and score: text from a checkpoint, and what it thinks of text."""
import json
import math
import re
import unittest

from harness import BAD_CONFIG, BAD_DATA, OK, CliTest, millrace


class Generate(CliTest):

    def test_generate_is_the_same_text_by_its_seed_on_any_number_of_ranks(self):
        config, run = self.trained_afresh(train={'steps': 20})
        words = ['generate', config, '--prompt', 'Sentence', '--tokens', '60']
        texts = {}
        for ranks in (1, 2, 3):
            for seed in ('1', '2'):
                outcome = self.expect(millrace(*words, '--seed', seed, ranks=ranks), OK)
                self.expect_line(outcome.err, '^millrace: weights of step 20 from %s$' % run.checkpoint(20))
                self.expect_line(outcome.err, 'without caches, .*: a prompt and its answer have 68 positions, inference.max_length is 32$')
                self.assertTrue(outcome.out.startswith('Sentence'), outcome)
                self.assertEqual(len(outcome.out), len('Sentence') + 60 + 1, outcome)
                texts[ranks, seed] = outcome.out
        for ranks in (2, 3):
            for seed in ('1', '2'):
                self.assertEqual(texts[ranks, seed], texts[1, seed])
        self.assertNotEqual(texts[1, '1'], texts[1, '2'])
        greedy = [self.expect(millrace(*words, '--temperature', '0', '--seed', seed), OK).out for seed in ('1', '2')]
        self.assertEqual(greedy[0], greedy[1])
        # As far as the window goes, caches give the same.
        cached = ['generate', config, '--prompt', 'Sentence', '--tokens', '24']
        for ranks in (1, 2):
            outcome = self.expect(millrace(*cached, '--seed', '1', ranks=ranks), OK)
            self.assertNotIn('without caches', outcome.err)
            self.assertEqual(outcome.out[:-1], texts[1, '1'][:len('Sentence') + 24])
        self.expect(millrace(*cached, '--set', 'inference.page_tokens=4', '--set', 'inference.prefill=[3]'), OK)
        self.check_lengths(config, texts[1, '1'])
        self.check_samples([*cached, '--seed', '1', '--samples', '3'])
        likeliest = self.expect(millrace(*words, '--top-k', '1', '--seed', '3'), OK).out
        self.assertEqual(likeliest, greedy[0])
        self.check_prompts(config, [text[len('Sentence'):-1] for text in (greedy[0], texts[1, '1'])])

    def check_samples(self, words):
        """Samples that share pages of their prompt, 8 tokens, are those that each cache it."""
        whole = self.expect(millrace(*words), OK)  # pages of 32
        self.assertNotIn('shared by samples', whole.err)
        self.assertEqual(len(set(whole.out.splitlines())), 3)
        for page, line in (('4', '16 tokens were computed and 8'), ('1', '10 tokens were computed and 14')):
            shared = self.expect(millrace(*words, '--set', 'inference.page_tokens=' + page), OK)
            self.assertEqual(shared.out, whole.out)
            self.expect_line(shared.err, r'^millrace: of prompts, %s shared by samples$' % line)

    def check_lengths(self, config, text):
        """What fits into seq_len, 32, has caches whatever else is asked for; `text`: of seed 1, by the window beyond that."""
        whole = self.expect(millrace('generate', config, '--prompt', 'Sentence', '--seed', '1'), OK)  # as long as there is room
        self.assertNotIn('without caches', whole.err)
        self.assertEqual(whole.out[:-1], text[:32])
        prompts = self.path('lengths.jsonl')
        with open(prompts, 'w') as f:
            for tokens in (60, 20):
                f.write(json.dumps({'prompt': 'Sentence', 'seed': 1, 'max_tokens': tokens}) + '\n')
        both = self.expect(millrace('generate', config, '--file', prompts), OK)
        self.expect_line(both.err, 'without caches, .*: a prompt and its answer have 68 positions')
        answers = [json.loads(line) for line in both.out.splitlines()]
        self.assertEqual([(a['index'], len(a['tokens'])) for a in answers], [(0, 60), (1, 20)])
        self.assertEqual(answers[1]['tokens'], answers[0]['tokens'][:20])
        short = self.expect(millrace('generate', config, '--prompt', 'Sentence', '--tokens', '9', '--set', 'inference.max_length=16'), BAD_CONFIG)
        self.expect_line(short.err, '8 tokens of the prompt and up to 9 of the answer are more than the 16')
        self.assertEqual(short.out, '')

    def check_prompts(self, config, alone):
        """Answers from a file are those that prompts have alone; `alone`: greedy, and of seed 1, to 'Sentence'."""
        def shown(tokens):  # as on a terminal
            return ''.join(chr(t) if 32 <= t < 127 or t in (9, 10) else '?' for t in tokens)

        stop = next(text for text in (alone[1][i:i + 3] for i in range(9, 60)) if '?' not in text)
        prompts = self.path('prompts.jsonl')
        with open(prompts, 'w') as f:
            for prompt in ({'prompt': 'Sentence', 'temperature': 0, 'logprobs': 2}, {'prompt': [300]},
                           {'prompt': list(b'Sentence'), 'seed': 1, 'samples': 2}, {'prompt': 'Sentence', 'seed': 1, 'stop': [stop, 'xyz']}):
                f.write(json.dumps(prompt) + '\n\n')
        outcome = self.expect(millrace('generate', config, '--file', prompts, '--tokens', '60'), BAD_CONFIG)
        self.expect_line(outcome.err, r'^millrace: \d+ tokens in [0-9.]+ s, [0-9.]+ tokens/s with prompts$')
        greedy, refused, sample, other, stopped = [json.loads(line) for line in outcome.out.splitlines()]
        self.assertEqual((greedy['index'], greedy['sample'], greedy['prompt'], greedy['finish']), (0, 0, 'Sentence', 'length'))
        self.assertEqual(greedy['text'], bytes(greedy['tokens']).decode(errors='replace'))
        self.assertEqual(shown(greedy['tokens']), alone[0])
        for token, logprob, top in zip(greedy['tokens'], greedy['logprobs'], greedy['top_logprobs']):
            self.assertEqual(top[0], [token, logprob])
            self.assertGreaterEqual(logprob, top[1][1])
            self.assertLess(math.exp(logprob) + math.exp(top[1][1]), 1)
        self.assertEqual((refused['index'], refused['error']['reason']), (1, 'vocabulary'))
        self.assertEqual((sample['index'], shown(sample['tokens'])), (2, alone[1]))
        self.assertEqual((other['index'], other['sample']), (2, 1))
        self.assertNotEqual(other['text'], sample['text'])
        self.assertEqual((stopped['finish'], shown(stopped['tokens'])), ('stop', alone[1][:alone[1].index(stop) + 3]))
        self.assertEqual(stopped['text'], bytes(stopped['tokens'][:-3]).decode(errors='replace'))
        with open(prompts, 'a') as f:
            f.write('{"prompt": "a", "temprature": 1}\n')
        outcome = self.expect(millrace('generate', config, '--file', prompts), BAD_DATA)
        self.expect_line(outcome.err, r'prompts\.jsonl:9: "temprature" is not known; there are prompt, max_tokens, ')

    def test_data_ranks_share_the_samples_and_rank_0_says_them_in_order(self):
        config, run = self.trained_afresh(train={'steps': 20})
        prompts = self.path('many.jsonl')
        with open(prompts, 'w') as f:
            for i in range(23):  # of other lengths: they do not end in order
                f.write(json.dumps({'prompt': 'Sentence'[:1 + i % 7], 'max_tokens': 1 + i * 5 % 23, 'seed': i, 'samples': 1 + i % 5, 'logprobs': 2,
                                    'stop': ['e'] if i % 4 == 0 else []}) + '\n')
            f.write(json.dumps({'prompt': [300]}) + '\n')
        words = ['generate', config, '--file', prompts, '--set', 'inference.slots=2', '--set', 'inference.decode=[1,2]']
        alone = self.expect(millrace(*words), BAD_CONFIG)
        lines = [json.loads(line) for line in alone.out.splitlines()]
        self.assertEqual([(a['index'], a.get('sample')) for a in lines], [(i, s) for i in range(23) for s in range(1 + i % 5)] + [(23, None)])
        drawn = sum(len(a['tokens']) for a in lines[:-1])
        self.expect_line(alone.err, r'^millrace: %d tokens in ' % drawn)
        cached = sum((1 + i % 7) * (1 + i % 5) for i in range(23))  # tokens of prompts, by each sample
        for ranks, sets in ((3, []), (4, ['parallel.tensor=2', 'inference.exact=true'])):
            sets.append('inference.page_tokens=2')  # samples of one rank share
            shared = self.expect(millrace(*words, *(word for key in sets for word in ('--set', key)), ranks=ranks), BAD_CONFIG)
            self.expect_line(shared.err, r'^millrace: %d tokens in ' % drawn)
            self.expect_line(shared.err, 'of prompts, .* shared by samples')
            computed, found = map(int, re.search(r'of prompts, (\d+) tokens were computed and (\d+) shared', shared.err).groups())
            self.assertEqual(computed + found, cached)
            if ranks == 3:
                self.assertEqual(shared.out, alone.out)  # to the last bit
                continue
            # Sums of two halves: other bits of the same numbers, and here no other token.
            for a, b in zip(lines[:-1], [json.loads(line) for line in shared.out.splitlines()]):
                self.assertEqual((a['index'], a['sample'], a['text'], a['tokens']), (b['index'], b['sample'], b['text'], b['tokens']))
                for one, other in zip(a['logprobs'], b['logprobs']):
                    self.assertAlmostEqual(one, other, delta=1e-4)
        tensor = ['--set', 'parallel.tensor=2']
        whole = self.expect(millrace('generate', config, '--prompt', 'Sentence', '--tokens', '60', '--temperature', '0', *tensor, ranks=2), OK)
        self.expect_line(whole.err, 'without caches, .*: a prompt and its answer have 68 positions')
        cached = self.expect(millrace('generate', config, '--prompt', 'Sentence', '--tokens', '24', '--temperature', '0', *tensor, ranks=2), OK)
        self.assertNotIn('without caches', cached.err)
        self.assertEqual(cached.out[:-1], whole.out[:len('Sentence') + 24])

    def test_score_is_the_log_probability_of_each_token(self):
        config, run = self.trained_afresh()
        with open(self.path('data.txt')) as f:
            text = f.read(33)  # seq_len 32
        path = self.path('texts.jsonl')
        with open(path, 'w') as f:
            for line in ({'text': text}, {'tokens': list(text[:9].encode())}, {'text': text + '!'}, {'text': ''}, {'tokens': [7, 256]}, {'text': 'S'}):
                f.write(json.dumps(line) + '\n')
        alone = self.expect(millrace('score', config, '--input', path), BAD_CONFIG)
        whole, part, long, empty, outside, one = [json.loads(line) for line in alone.out.splitlines()]
        self.assertEqual(self.expect(millrace('score', config, '--input', path, ranks=2), BAD_CONFIG).out.splitlines()[0], alone.out.splitlines()[0])
        self.assertEqual((whole['index'], bytes(whole['tokens']).decode(), len(whole['logprobs'])), (0, text, 33))
        self.assertIsNone(whole['logprobs'][0])
        self.assertLess(max(whole['logprobs'][1:]), 0)
        self.assertAlmostEqual(whole['sum'], sum(whole['logprobs'][1:]), delta=1e-4)
        for a, b in zip(part['logprobs'][1:], whole['logprobs'][1:9]):  # what follows does not matter
            self.assertAlmostEqual(a, b, delta=1e-5)
        self.assertEqual([line['error']['reason'] for line in (long, empty, outside)], ['too_long', 'invalid', 'vocabulary'])
        self.assertIn('model.seq_len + 1', long['error']['message'])
        self.assertEqual((one['logprobs'], one['sum']), ([None], 0))

        # The tokens of a greedy answer have the scores that it came with.
        answer = json.loads(self.expect(millrace('generate', config, '--prompt', text[:9], '--tokens', '20', '--temperature', '0', '--json'), OK).out)
        with open(path, 'w') as f:
            f.write(json.dumps({'tokens': list(text[:9].encode()) + answer['tokens']}) + '\n')
        scored = json.loads(self.expect(millrace('score', config, '--input', path), OK).out)
        for a, b in zip(answer['logprobs'], scored['logprobs'][9:]):
            self.assertAlmostEqual(a, b, delta=1e-4)

        # A window at a time: those of a stride of seq_len follow one another.
        long_text = self.path('long.txt')
        with open(long_text, 'w') as f:
            f.write(text + text[1:])
        windows = json.loads(self.expect(millrace('score', config, '--input', long_text, '--stride', '32'), OK).out)
        self.assertEqual(len(windows['logprobs']), 65)
        for a, b in zip(windows['logprobs'][1:33], whole['logprobs'][1:]):
            self.assertAlmostEqual(a, b, delta=1e-5)
        dense = json.loads(self.expect(millrace('score', config, '--input', long_text, '--stride', '1'), OK).out)
        self.assertEqual(len(dense['logprobs']), 65)
        self.assertEqual(dense['logprobs'][:33], windows['logprobs'][:33])
        self.assertNotEqual(dense['logprobs'][33:64], windows['logprobs'][33:64])
        outcome = self.expect(millrace('score', config, '--input', long_text, '--stride', '33'), BAD_CONFIG)
        self.expect_line(outcome.err, '--stride is 33; allowed is 0 to model.seq_len = 32')


if __name__ == '__main__':
    unittest.main(verbosity=2)
