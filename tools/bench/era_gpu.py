#!/usr/bin/env python3
"""era_gpu.py OUT [--only CASE,...] [--rounds N] [--steps N]: what inference costs a run that trains on a GPU: steps with and without its era in the arena,
and weights lent to another process.

Two runs live in one process, by the wheel's package, which PYTHONPATH has; one is planned for inference, too. They read one file of what was measured for
tuning, and take --steps steps in turn; ahead of its steps the one with an era answers requests, so that it comes back from inference in each round. The first
step of a turn is counted by itself. Then that run exports its weights three times. Each case's result is OUT/era_CASE.json; the table comes last.
"""
import argparse
import json
import os
import sys
import tempfile
import time

import millrace

import device_tables

CASES = {'gpt2_124m': 4, 'llama_160m': 8, 'llama_1b': 4}  # sequences of a step
ROWS, PROMPT, ANSWER = 64, 32, 32  # of what is answered ahead of a turn


def run_of(case, folder, era):
    with open('configs/%s.json' % case, encoding='utf-8') as f:
        given = json.load(f)
    return millrace.Run({
        'model': given['model'],
        'precision': given.get('precision', {}),
        'data': {'kind': 'synthetic'},
        'train': {'steps': 100000, 'micro_batch': CASES[case], 'accumulate': 1},
        'inference': {'slots': ROWS, 'prefill': PROMPT, 'decode': ROWS, 'max_length': PROMPT + ANSWER},
        'execution': {'backend': 'cuda', 'deterministic': False, 'programmatic_launch': 'end', 'tuning_file': os.path.join(folder, 'tuning.json')},
        'run': {'dir': os.path.join(folder, 'era' if era else 'none')},
    }, use_data=True, use_inference=era)


def turn(run, steps):
    """Milliseconds of steps, each until its result is there."""
    taken = []
    for _ in range(steps):
        begin = time.perf_counter()
        run.step()
        taken.append((time.perf_counter() - begin) * 1e3)
    return taken


def answer(run, seed):
    vocab = run.info.vocab
    prompts = [[(row * 7919 + at * 31 + seed) % vocab for at in range(PROMPT)] for row in range(ROWS)]
    answers = run.generate([millrace.Request(prompt=prompt, max_tokens=ANSWER, seed=seed * ROWS + row) for row, prompt in enumerate(prompts)])
    if any(len(one.tokens) != ANSWER for one in answers):
        sys.exit('an answer is short')


def measure(case, rounds, steps):
    found = {'case': case, 'rows': CASES[case], 'steps': steps, 'none': [], 'era': [], 'export_s': []}
    with tempfile.TemporaryDirectory() as folder, run_of(case, folder, False) as none, run_of(case, folder, True) as era:
        found['arena_bytes'] = {'none': none.info.arena_bytes, 'era': era.info.arena_bytes}
        for run in (none, era):
            run.init()
            turn(run, 10)  # the first ones measure, capture and compile
        for number in range(rounds):
            for name in ('none', 'era') if number % 2 == 0 else ('era', 'none'):
                if name == 'era':
                    answer(era, number)
                found[name].append(turn({'none': none, 'era': era}[name], steps))
        for _ in range(3):
            begin = time.perf_counter()
            with era.export_weights() as exported:
                found['export_s'].append(time.perf_counter() - begin)
                found['export_bytes'] = json.loads(exported.manifest)['bytes']
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out')
    parser.add_argument('--only', default=','.join(CASES), help='cases, separated by commas')
    parser.add_argument('--rounds', type=int, default=6)
    parser.add_argument('--steps', type=int, default=40)
    args = parser.parse_args()
    lines = []
    for case in args.only.split(','):
        found = measure(case, args.rounds, args.steps)
        version = open('VERSION', encoding='utf-8').readline().strip() if os.path.exists('VERSION') else millrace.__version__
        found.update(date=time.strftime('%Y-%m-%d'), version=version)
        with open(os.path.join(args.out, 'era_%s.json' % case), 'w', encoding='utf-8') as f:
            json.dump(found, f)
        lines.append(device_tables.era_line(found))
    print('\n'.join(device_tables.table(device_tables.ERA_HEADS, lines)))


if __name__ == '__main__':
    main()
