#!/usr/bin/env python3
"""decode_gpu.py OUT [--budget-s SECONDS] [--only CASE,...] [--before PROGRAM]: tokens per second of decode on this host's GPU, in an unpacked package.

A case is a model, at batches 1 and 64: bench --decode, 8 steps of warm-up and 308 timed ones at contexts 512 to 820, top-p 0.95,
log-probabilities, bf16. Each case's result is OUT/decode_CASE.json; a case that is there is not run again, and none is begun that may
not end within the budget. With --before another program does the same, right before this one: its times are in the result, too. The table comes last.
Exit code 1: a case failed.
"""
import argparse
import json
import os
import subprocess
import sys
import time

# Least tokens per second wanted at batch 1 and 64, and what transformers 5 gives compiled, with a static cache (2026-11-22).
CASES = {
    'gpt2_124m': {'wanted': (3500, 80000), 'transformers': (1882, None), 'most_s': 30},
    'llama_1b': {'wanted': (1250, 35000), 'transformers': (628, 9927), 'most_s': 60},
    'llama_8b': {'wanted': (240, 9000), 'transformers': (171, 2632), 'most_s': 140},
}
SETS = ['inference.slots=64', 'inference.decode=[1,64]', 'inference.prefill=[512]', 'inference.max_length=1024',
        'execution.programmatic_launch=end']
STEPS = ['--decode', '1,64', '--prompt-tokens', '504', '--warmup', '8', '--steps', '308', '--json']


def text_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ''


def bench(program, case):
    """What the program prints, or nothing; and the command."""
    words = [program, 'bench', 'configs/%s.json' % case, *STEPS]
    for assignment in SETS:
        words += ['--set', assignment]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        print('%s of %s: exit code %d: %s' % (case, program, done.returncode, done.stderr.strip()[-500:]), flush=True)
        return None, words
    return json.loads(done.stdout), words


def measure(case, path, before):
    earlier = bench(before, case)[0] if before else None
    result, words = bench('bin/millrace', case)
    if result is None or (before and earlier is None):
        return False
    if earlier:
        for row, old in zip(result['decode'], earlier['decode']):
            row['before_ms_samples'] = old['step_ms_samples']
    result.update({'case': case, 'command': ' '.join(words), 'date': time.strftime('%Y-%m-%d'),
                   'driver': text_of('nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader'),
                   'version': open('VERSION').read().splitlines()[0] if os.path.exists('VERSION') else ''})
    with open(path + '.part', 'w') as f:
        json.dump(result, f)
        f.write('\n')
    os.rename(path + '.part', path)
    return True


def table(out):
    print('| model | batch | tok/s | ms a step (10th, 90th percentile) | wanted | transformers, compiled |')
    print('|---|--:|--:|--:|--:|--:|')
    for case, of in CASES.items():
        path = os.path.join(out, 'decode_%s.json' % case)
        if not os.path.exists(path):
            continue
        for i, row in enumerate(json.load(open(path))['decode']):
            peer = of['transformers'][i]
            print('| %s | %d | %s | %.3f (%.3f, %.3f) | %s | %s |' % (
                case, row['batch'], '{:,.0f}'.format(row['tokens_per_s']), row['step_ms'], row['step_ms_p10'], row['step_ms_p90'],
                '{:,}'.format(of['wanted'][i]), '{:,}'.format(peer) if peer else ''))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out')
    parser.add_argument('--budget-s', type=float, default=600)
    parser.add_argument('--only', default=','.join(CASES))
    parser.add_argument('--before', default='')
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    end, failed = time.monotonic() + args.budget_s, 0
    for case in args.only.split(','):
        path = os.path.join(args.out, 'decode_%s.json' % case)
        if os.path.exists(path):
            continue
        if time.monotonic() + CASES[case]['most_s'] * (2 if args.before else 1) > end:
            print('%s: no time left for it' % case, flush=True)
            continue
        failed |= not measure(case, path, args.before)
    table(args.out)
    return int(failed)


if __name__ == '__main__':
    sys.exit(main())
