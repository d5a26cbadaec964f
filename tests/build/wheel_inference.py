"""Answers, streams and scores, and learning from them."""
import importlib
import json
import math
import os
import subprocess
import sys

import millrace
from wheel_case import CONFIG, WheelCase, rows


class Inference(WheelCase):

    def test_a_program_learns_from_its_own_samples(self):
        config = dict(CONFIG, train=dict(CONFIG['train'], loss='policy_gradient', loss_weights=True))
        with millrace.Run(config, use_inference=True) as run:
            run.init()
            requests = [millrace.Request(prompt=[1], max_tokens=3, samples=2, seed=5), millrace.Request(prompt=[2, 3], max_tokens=2, stop_tokens=[7])]
            answers = run.generate(requests)
            self.assertEqual([(answer.request, answer.sample) for answer in answers], [(0, 0), (0, 1), (1, 0)])
            self.assertEqual(answers[0].weight_version, run.info.weight_version)
            tokens, old, weights = [], [], []
            for answer in answers:  # a prompt of n tokens: its answer's first target is the one at n - 1
                prompt = list(requests[answer.request].prompt)
                before, pad = len(prompt) - 1, 5 - len(prompt) - len(answer.tokens)
                tokens.append(prompt + answer.tokens + [0] * pad)
                old.append([-9.0] * before + answer.logprobs + [-9.0] * pad)
                weights.append([0.0] * before + [1.0] * len(answer.tokens) + [0.0] * pad)
            result = run.step(tokens, weights=weights, old_logprobs=old, advantages=[[0.5] * 4] * 3)
            self.assertAlmostEqual(result.loss, -0.5, places=6)  # every ratio is 1
            self.assertNotEqual(run.generate(requests)[0].logprobs, answers[0].logprobs)
            with self.assertRaisesRegex(millrace.InvalidArgument, 'old_logprobs'):
                run.step(tokens, weights=weights, advantages=[[0.5] * 4] * 3)
            with self.assertRaisesRegex(millrace.InvalidArgument, 'shape'):
                run.step(tokens, weights=[[1.0]])
            with self.assertRaisesRegex(millrace.InvalidArgument, r'requests\[0\]'):
                run.generate([millrace.Request(prompt=[11], max_tokens=1)])
        with self.assertRaisesRegex(millrace.InvalidArgument, 'use_inference'):
            self.run_.generate([])

    def test_scores_are_of_each_target(self):
        run = self.inference_run()
        scores = run.score(rows())
        self.assertEqual((scores.logprobs.shape, scores.likeliest.shape), ((3, 4), (3, 4)))
        alone = run.score(rows(), likeliest=False)
        self.assertEqual((alone.logprobs.tolist(), alone.likeliest), (scores.logprobs.tolist(), None))
        mean = -sum(map(sum, scores.logprobs.tolist())) / 12
        self.assertAlmostEqual(mean, run.evaluate(rows()).loss, places=12)
        greedy = run.generate([millrace.Request(prompt=[row[0]], max_tokens=3, temperature=0) for row in rows()])
        told = [[row[0]] + answer.tokens + [0] for row, answer in zip(rows(), greedy)]
        scores = run.score(told)
        for row, answer in enumerate(greedy):
            self.assertEqual(scores.likeliest.tolist()[row][:3], answer.tokens)
            for t in range(3):
                self.assertAlmostEqual(scores.logprobs[row, t], answer.logprobs[t], places=6)
        for wrong in (rows()[:2], [[0, 0, 0, 0, 11]] * 3, [[1]]):
            with self.assertRaises(millrace.InvalidArgument):
                run.score(wrong)
        with self.assertRaisesRegex(millrace.InvalidArgument, 'use_inference'):
            self.run_.score(rows())

    REQUESTS = [millrace.Request(prompt=[1], max_tokens=3, samples=2, seed=5), millrace.Request(prompt=[2, 3], max_tokens=2)]

    def test_a_stream_has_the_answers_tokens(self):
        run = self.inference_run()
        answers, events = run.generate(self.REQUESTS), list(run.stream(self.REQUESTS))
        for answer in answers:
            of = [event for event in events if (event.request, event.sample) == (answer.request, answer.sample)]
            self.assertEqual([event.token for event in of], answer.tokens)
            self.assertEqual([event.logprob for event in of], answer.logprobs)
            self.assertEqual([event.finish for event in of], [None] * (len(of) - 1) + ['length'])
            self.assertEqual({(event.weight_version, event.text) for event in of}, {(run.info.weight_version, None)})
        self.assertEqual(len(events), sum(len(answer.tokens) for answer in answers))
        self.assertEqual(list(run.stream([])), [])

    def test_the_likeliest_tokens_stand_in_each_tokens_place(self):
        run = self.inference_run()
        requests = [one._replace(temperature=0, top_logprobs=top) for one, top in zip(self.REQUESTS, (11, 2))]
        answers, events = run.generate(requests), list(run.stream(requests))
        plain = run.generate([one._replace(top_logprobs=0) for one in requests])
        self.assertEqual([(one.tokens, one.logprobs) for one in answers], [(one.tokens, one.logprobs) for one in plain])
        self.assertEqual({(one.top_tokens, one.top_logprobs) for one in plain}, {(None, None)})
        for answer in answers:
            top = requests[answer.request].top_logprobs
            tokens, logprobs = answer.top_tokens, answer.top_logprobs
            self.assertEqual((tokens.shape, tokens.format, logprobs.shape, logprobs.format), ((len(answer.tokens), top), 'i', tokens.shape, 'f'))
            tokens, logprobs = tokens.tolist(), logprobs.tolist()
            self.assertEqual([row[0] for row in tokens], answer.tokens)  # greedy: the likeliest, with its bits
            self.assertEqual([row[0] for row in logprobs], answer.logprobs)
            for row, of in zip(tokens, logprobs):
                self.assertEqual((len(set(row)), of), (top, sorted(of, reverse=True)))
                if top == 11:  # all of the vocabulary
                    self.assertAlmostEqual(sum(map(math.exp, of)), 1, places=5)
            heard = [event for event in events if (event.request, event.sample) == (answer.request, answer.sample)]
            self.assertEqual(([event.top_tokens for event in heard], [event.top_logprobs for event in heard]), (tokens, logprobs))
        self.assertNotEqual(answers[0].logprobs[0], answers[0].top_logprobs[0, 1])
        for top in (12, -1, 2**40):
            with self.assertRaisesRegex(millrace.InvalidArgument, r'requests\[1\].top_logprobs is %d; allowed is 0 to 11' % top):
                run.generate([requests[0], requests[1]._replace(top_logprobs=top)])

    def test_a_stream_that_is_left_ends(self):
        run = self.inference_run()
        with run.stream(self.REQUESTS) as events:
            first = next(events)
            events.cancel(0)
        self.assertEqual(first.index, 0)
        self.assertEqual(list(events), [])
        self.assertEqual(run.step(rows()).step, 1)  # it serves other calls again
        events = run.stream(self.REQUESTS)
        next(events)
        del events
        self.assertEqual(run.step(rows()).step, 2)
        with self.assertRaisesRegex(millrace.InvalidArgument, r'requests\[0\]'):
            next(run.stream([millrace.Request(prompt=[11], max_tokens=1)]))
        run.close()
        with self.assertRaises(millrace.InvalidArgument):
            run.stream(self.REQUESTS)

    def test_a_program_ends_whose_stream_nobody_has_left(self):
        program = ('import millrace, wheel_case\n'
                   'run = millrace.Run(wheel_case.CONFIG, use_inference=True)\n'
                   'run.init()\n'
                   'events = run.stream([millrace.Request([1], max_tokens=3, samples=1000, temperature=1.0)] * 1000)\n'  # minutes of them
                   'next(events)\n'
                   'raise SystemExit(7)\n')
        ended = subprocess.run([sys.executable, '-c', program], env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)), timeout=60)
        self.assertEqual(ended.returncode, 7)

    def test_a_tokenizer_gives_a_stream_its_text(self):
        path = os.path.join(os.environ['WHEEL_DATA'], 'tests/runtime/text/testdata')
        with millrace.Tokenizer(path) as tokenizer:
            text = 'the house caf\u00e9 \u4e2d <|end|>'
            ids = tokenizer.encode(text)
            self.assertEqual(tokenizer.decode(ids), text)
            self.assertEqual(tokenizer.decode(ids, skip_special=True), text[:-7])
            self.assertEqual((ids[-1], tokenizer.token_id('<|none|>')), (tokenizer.token_id('<|end|>'), None))
            self.assertGreater(len(tokenizer.encode(text, plain=True)), len(ids))
            for call in (lambda: tokenizer.decode([2**32 + ids[0]]), lambda: tokenizer.token_id('a\0b'), lambda: millrace.Tokenizer(path + '\0x')):
                with self.assertRaisesRegex(millrace.InvalidArgument, '32-bit|zero byte'):
                    call()
            run = self.inference_run(model=dict(CONFIG['model'], seq_len=40, vocab=697))
            request = millrace.Request(prompt=[5], max_tokens=30)
            shown = ''.join(event.text for event in run.stream([request], tokenizer))
            self.assertEqual(shown, tokenizer.decode(run.generate([request])[0].tokens, skip_special=True))
        with self.assertRaises(millrace.InvalidArgument):
            tokenizer.encode('x')
        with self.assertRaises(millrace.DataError):
            millrace.Tokenizer('/nonexistent')

    def test_scores_are_those_of_lm_eval(self):
        """The rows that lm-eval asked transformers for, of the model of tests/golden/README.md."""
        config = {'model': {'family': 'llama', 'layers': 2, 'd_model': 48, 'heads': 4, 'kv_heads': 2, 'ffn': 96, 'vocab': 256, 'seq_len': 128,
                            'init_std': 0.3}, 'train': {'steps': 1, 'micro_batch': 8, 'accumulate': 1, 'seed': 7}}
        with open(os.path.join(os.environ['WHEEL_DATA'], 'tests/golden/lm_eval/golden.json'), encoding='utf-8') as golden:
            asked = json.load(golden)['hellaswag']['rows'][:32]
        with millrace.Run(config, use_inference=True) as run:
            run.init()
            for at in range(0, len(asked), 8):
                some = asked[at:at + 8]
                scores = run.score([row['ids'] + [0] * (129 - len(row['ids'])) for row in some])
                for row, logprobs in zip(some, scores.logprobs.tolist()):
                    scored = logprobs[row['first'] - 1:len(row['ids']) - 1]
                    self.assertLess(abs(sum(scored) - row['log_prob']), 1e-4 * len(scored))

    def test_lm_eval_is_asked_for_by_its_module_alone(self):
        self.assertNotIn('lm_eval', sys.modules)
        with self.assertRaisesRegex(ImportError, "No module named 'lm_eval'"):
            importlib.import_module('millrace.lm_eval')
