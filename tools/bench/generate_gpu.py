#!/usr/bin/env python3
"""generate_gpu.py [--program PROGRAM] [--data FOLDER] [--only FAMILIES] [--precision fp32,bf16]: whether caches give what the training forward gives.

A small model of each family is trained for a few steps, answers prompts of many lengths with and without draws, alone and beside others,
and scores its own answers. Checked in f32: each answer's log-probabilities against the score's. In bf16 both round, each in its own
order, so that the score of the same weights in f32 says how much: from it an answer's may be twice as far as the farthest of bf16's score
and, by root mean square over all tokens, 1.5 times as far as those; and from bf16's score, by root mean square, twice as far. In both: that
a greedy answer has no token that is less likely than another; in f32, where no two tokens are as close as rounding, that answers do not
depend on what is beside them. A line per check; exit code 1 when one failed.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

BASE = {'layers': 2, 'd_model': 256, 'heads': 4, 'head_dim': 64, 'ffn': 512, 'seq_len': 256}
FAMILIES = {
    'gpt2': {k: v for k, v in BASE.items() if k != 'head_dim'} | {'family': 'gpt2'},
    'llama': BASE | {'family': 'llama', 'kv_heads': 2},
    'llama_window': BASE | {'family': 'llama', 'heads': 2, 'head_dim': 128, 'kv_heads': 1, 'attention': {'window': 50}},
    'qwen3': BASE | {'family': 'qwen3', 'heads': 8, 'head_dim': 128, 'kv_heads': 2},
    'qwen3_moe': {k: v for k, v in BASE.items() if k != 'ffn'} |
                 {'family': 'qwen3_moe', 'kv_heads': 1, 'moe': {'experts': 8, 'top_k': 2, 'ffn': 128}},
    'nemotron_h': {k: v for k, v in BASE.items() if k != 'layers'} |
                  {'family': 'nemotron_h', 'pattern': 'MM*-M-', 'kv_heads': 2,
                   'mamba': {'heads': 8, 'head_dim': 64, 'groups': 2, 'state': 64, 'chunk': 64}},
    'nemotron_h_odd': {k: v for k, v in BASE.items() if k != 'layers'} |
                      {'family': 'nemotron_h', 'pattern': 'M*-', 'head_dim': 24, 'kv_heads': 2, 'd_model': 96,
                       'mamba': {'heads': 6, 'head_dim': 32, 'groups': 2, 'state': 16, 'chunk': 64}},
}
# Of a log-probability in f32: of tokens whose logits are a few units.
TOLERANCE = 2e-4
# In bf16, of how far scores are from those in f32: how far answers may be from those in f32, the farthest and by root mean square, and from scores by
# root mean square. Roundings that do not know of each other give 1, 1 and sqrt(2).
FARTHEST, RMS, RMS_BETWEEN = 2, 1.5, 2


class Failed(Exception):
    pass


def run(args, *words):
    done = subprocess.run([*args.program.split(), *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed('%s: exit code %d: %s' % (' '.join(words[:2]), done.returncode, done.stderr.strip()[-600:]))
    return done.stdout


def prompts():
    rows = []
    for i, length in enumerate((1, 2, 7, 31, 32, 33, 64, 100, 129, 180)):
        tokens = [(i * 37 + n * n * 7 + n // 3) % 250 for n in range(length)]
        rows.append({'prompt': tokens, 'max_tokens': 40, 'temperature': 0, 'logprobs': 2})
        rows.append({'prompt': tokens, 'max_tokens': 40, 'temperature': 1.0, 'top_p': 0.95, 'top_k': 40 if i % 2 else 0, 'min_p': 0.01 * (i % 3),
                     'seed': i, 'logprobs': 5})
    return rows


def write_lines(path, rows):
    with open(path, 'w') as f:
        for row in rows:
            f.write(json.dumps(row) + '\n')


def alike(what, rows, of, others):
    if len(rows) != len(others):
        raise Failed('%d %s of %d %s' % (len(rows), what, len(others), of))


def compare(args, configs, texts, asked, said):
    """How far log-probabilities of answers are from scores: by the configuration that they are of, and by both where there are two."""
    def scored(words):
        lines = run(args, 'score', *words, '--input', texts).splitlines()
        alike('lines of score', lines, 'texts', asked)
        return [json.loads(line)['logprobs'][len(row['prompt']):] for row, line in zip(asked, lines)]

    def apart(rows, others):
        """(the farthest, the root mean square) over all tokens. What is no number is the farthest."""
        alike('answers', rows, 'texts', others)
        for row, other in zip(rows, others):
            alike('log-probabilities of an answer', row, 'scored tokens', other)
        off = [abs(a - b) for row, other in zip(rows, others) for a, b in zip(row, other)]
        return max(off, key=lambda x: (x != x, x)), math.sqrt(math.fsum(x * x for x in off) / len(off))

    scores = scored(configs[:1])
    far, rms = apart(said, scores)
    if len(configs) == 1:
        if not far <= TOLERANCE:
            raise Failed('log-probabilities differ by %.2g from scores' % far)
        return 'within %.1e of scores' % far
    exact = scored(configs)
    (answer_off, answer_rms), (score_off, score_rms) = apart(said, exact), apart(scores, exact)
    text = ('%.3f (rms %.4f) from scores; from those in f32 %.3f (rms %.4f), where scores are %.3f (rms %.4f)' %
            (far, rms, answer_off, answer_rms, score_off, score_rms))
    within = {'the farthest': answer_off <= FARTHEST * score_off, 'rms from f32': answer_rms <= RMS * score_rms,
              'rms from scores': rms <= RMS_BETWEEN * score_rms}
    if not all(within.values()):
        raise Failed('log-probabilities differ by %s: too far by %s' % (text, ', '.join(what for what, holds in within.items() if not holds)))
    return text


def check(name, precision, args, work):
    config, in_f32 = os.path.join(work, 'config.json'), os.path.join(work, 'in_f32.json')
    with open(in_f32, 'w') as f:
        json.dump({'precision': {'compute': 'fp32', 'norms': 'fp32'}}, f)
    with open(config, 'w') as f:
        json.dump({'model': FAMILIES[name] | {'vocab': 256}, 'data': {'kind': 'text', 'path': args.data},
                   'train': {'steps': 30, 'micro_batch': 4, 'accumulate': 1},
                   'optimizer': {'lr': 3e-3, 'schedule': {'kind': 'cosine', 'warmup': 5, 'min_lr': 3e-4}},
                   # Norms in bf16 are one kernel with the product behind them where a row is alone.
                   'precision': {'compute': precision} | ({'norms': 'compute'} if precision == 'bf16' else {}),
                   'inference': {'slots': 16, 'decode': [1, 3, 16], 'prefill': [32, 96], 'page_tokens': 16},
                   'execution': {'watchdog_s': 0}, 'checkpoint': {'every': 30}, 'run': {'dir': os.path.join(work, 'run')}}, f)
    run(args, 'train', config)
    asked, texts = prompts(), os.path.join(work, 'texts.jsonl')
    file = os.path.join(work, 'prompts.jsonl')
    write_lines(file, asked)
    extra = [word for option in args.set for word in ('--set', option)]
    answers = [json.loads(line) for line in run(args, 'generate', config, '--file', file, *extra).splitlines()]
    if any('error' in a for a in answers) or len(answers) != len(asked):
        raise Failed('answers: %s' % answers[:2])
    write_lines(texts, [{'tokens': row['prompt'] + a['tokens']} for row, a in zip(asked, answers)])
    said = [answer['logprobs'] for answer in answers]
    below, count = 0.0, sum(map(len, said))
    for row, answer in zip(asked, answers):
        alike('lists of likeliest tokens', answer['top_logprobs'], 'log-probabilities', answer['logprobs'])
        for logprob, likeliest in zip(answer['logprobs'], answer['top_logprobs']):
            best = max(t['logprob'] if isinstance(t, dict) else t[1] for t in likeliest)
            if row['temperature'] == 0:
                below = max(below, best - logprob)
    far = compare(args, [config, in_f32][:1 if precision == 'fp32' else 2], texts, asked, said)
    if below > 0:
        raise Failed('a greedy token is %.2g less likely than another' % below)
    changed, alone = 0, []
    for index in (3, 8, 13):
        write_lines(file, [asked[index]])
        alone.append(json.loads(run(args, 'generate', config, '--file', file, *extra)))
        changed += alone[-1]['tokens'] != answers[index]['tokens']
    write_lines(texts, [{'tokens': asked[index]['prompt'] + a['tokens']} for index, a in zip((3, 8, 13), alone)])
    far += '; alone, ' + compare(args, [config, in_f32][:1 if precision == 'fp32' else 2], texts, [asked[index] for index in (3, 8, 13)],
                                [answer['logprobs'] for answer in alone])
    if precision == 'fp32' and changed:
        raise Failed('%d of 3 answers are others when they are alone' % changed)
    return '%d tokens, log-probabilities %s; %d of 3 answers change when alone' % (count, far, changed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--program', default='bin/millrace')
    parser.add_argument('--data', default='share/licenses')
    parser.add_argument('--set', action='append', default=[], help='also for generate')
    parser.add_argument('--only', default='', help='families, separated by commas')
    parser.add_argument('--precision', default='fp32,bf16')
    args = parser.parse_args()
    failed = 0
    for name in args.only.split(',') if args.only else FAMILIES:
        for precision in args.precision.split(','):
            with tempfile.TemporaryDirectory() as work:
                try:
                    print('ok %s %s: %s' % (name, precision, check(name, precision, args, work)), flush=True)
                except Failed as e:
                    failed += 1
                    print('FAILED %s %s: %s' % (name, precision, e), flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
