#!/usr/bin/env python3
"""exact_gpu.py [--program PROGRAM] [--data FOLDER] [--only FAMILIES] [--set KEY=VALUE]: whether answers under inference.exact=true have the bits of their scores.

A small model of each family that GPUs have it for is trained for a few steps, and answers prompts of many lengths, greedy and drawn: 64 at a
time as they come, in the opposite order five at a time with prompts in small pieces, and some of them alone. Each answer's tokens and
log-probabilities must be the same to the bit in all of these, and the log-probabilities those of `score`. The program prints floats such that
they can be read back, so equal text is equal bits. A line per family; exit code 1 when one failed.
"""
import argparse
import json
import os
import sys
import tempfile

from generate_gpu import Failed, alike, prompts, run, write_lines

BASE = {'layers': 2, 'd_model': 256, 'ffn': 512, 'seq_len': 256, 'vocab': 256}
FAMILIES = {
    'gpt2': BASE | {'family': 'gpt2', 'heads': 4},
    'gpt2_128': BASE | {'family': 'gpt2', 'heads': 2},
    'llama': BASE | {'family': 'llama', 'heads': 4, 'head_dim': 64, 'kv_heads': 2},
    'llama_128': BASE | {'family': 'llama', 'heads': 8, 'head_dim': 128, 'kv_heads': 1},
    'qwen3': BASE | {'family': 'qwen3', 'heads': 8, 'head_dim': 128, 'kv_heads': 2},
}
ALONE = (3, 8, 13, 19, 37)


def answers_of(args, config, rows, work, sets):
    file = os.path.join(work, 'prompts.jsonl')
    write_lines(file, rows)
    words = [word for key in sets + args.set for word in ('--set', key)]
    answers = [json.loads(line) for line in run(args, 'generate', config, '--file', file, *words).splitlines()]
    alike('answers', answers, 'prompts', rows)
    if any('error' in a for a in answers):
        raise Failed('answers: %s' % [a for a in answers if 'error' in a][:2])
    return answers


def compare(what, one, other):
    for key in ('tokens', 'logprobs', 'top_logprobs'):
        off = sum(a[key] != b[key] for a, b in zip(one, other))
        if off:
            raise Failed('%d of %d answers have other %s %s' % (off, len(one), key, what))


def check(name, args, work):
    config, texts = os.path.join(work, 'config.json'), os.path.join(work, 'texts.jsonl')
    with open(config, 'w') as f:
        json.dump({'model': FAMILIES[name], 'data': {'kind': 'text', 'path': args.data},
                   'train': {'steps': 30, 'micro_batch': 4, 'accumulate': 1},
                   'optimizer': {'lr': 3e-3, 'schedule': {'kind': 'cosine', 'warmup': 5, 'min_lr': 3e-4}},
                   'precision': {'compute': 'bf16'},
                   'inference': {'slots': 64, 'decode': [1, 5, 64], 'prefill': [32, 96], 'page_tokens': 16, 'exact': True},
                   'execution': {'watchdog_s': 0}, 'checkpoint': {'every': 30}, 'run': {'dir': os.path.join(work, 'run')}}, f)
    words = [word for key in args.set for word in ('--set', key)]
    run(args, 'train', config, *words)
    rows = [row | {'seed': 100 * copy + row.get('seed', 0)} for copy in range(4) for row in prompts()]
    together = answers_of(args, config, rows, work, [])
    few = answers_of(args, config, rows[::-1], work, ['inference.slots=5', 'inference.decode=[1,5]', 'inference.prefill=[7,50]'])[::-1]
    compare('five at a time', together, few)
    for index in ALONE:
        compare('alone', together[index:index + 1], answers_of(args, config, [rows[index]], work, ['inference.decode=[1]']))
    write_lines(texts, [{'tokens': row['prompt'] + a['tokens']} for row, a in zip(rows, together)])
    scores = [json.loads(line)['logprobs'][len(row['prompt']):] for row, line in
              zip(rows, run(args, 'score', config, '--input', texts, *words).splitlines())]
    alike('scores', scores, 'texts', rows)
    tokens = off = 0
    for answer, score in zip(together, scores):
        alike('log-probabilities of an answer', answer['logprobs'], 'scored tokens', score)
        tokens += len(score)
        off += sum(a != b for a, b in zip(answer['logprobs'], score))
    if off:
        raise Failed('%d of %d log-probabilities are not those of scores' % (off, tokens))
    return '%d tokens of %d answers, each log-probability that of its score' % (tokens, len(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--program', default='bin/millrace')
    parser.add_argument('--data', default='share/licenses')
    parser.add_argument('--set', action='append', default=[])
    parser.add_argument('--only', default='', help='families, separated by commas')
    args = parser.parse_args()
    failed = 0
    for name in args.only.split(',') if args.only else FAMILIES:
        with tempfile.TemporaryDirectory() as work:
            try:
                print('ok %s: %s' % (name, check(name, args, work)), flush=True)
            except Failed as e:
                failed += 1
                print('FAILED %s: %s' % (name, e), flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
