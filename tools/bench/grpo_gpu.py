#!/usr/bin/env python3
"""grpo_gpu.py OUT [--only CASE,...] [--rounds N] [--steps N] [--sides NAME,...] [--peer-python PYTHON] [--budget-s SECONDS]: steps of GRPO by
tools/examples/grpo/large.py, through the wheel, and by peers/torch_grpo.py, or others of SIDES, in turn on this host's GPU.

All processes live from begin to end and take their steps in turns: a round is --steps of each side. Of the first turn of each the first
step is not counted, which measures, captures and compiles. Each case's result is OUT/grpo_CASE.json. The table comes last. PYTHONPATH has the wheel's package.
Exit code 1: a side failed, or had no time for all of its steps.
"""
import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time

import device_tables
import results

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = {'llama_160m': 64, 'llama_1b': 16}  # rows of a forward and backward
OURS = 'tools/examples/grpo/large.py'
SIDES = {  # a script, into how many parts those rows go, options
    'millrace': (OURS, 1, []),
    'millrace_lean': (OURS, 2, ['--set', 'optimizer.moments=bf16', '--set', 'memory.recompute=norms']),
    'torch': ('tools/bench/peers/torch_grpo.py', 1, []),
    'trl': ('tools/bench/peers/trl_grpo.py', 1, []),
    'trl_tuned': ('tools/bench/peers/trl_grpo.py', 1, ['--tuned']),
}
PARTS = ('sample_s', 'score_s', 'train_s', 'step_s')


class Side:
    """A process that takes steps when it is asked to."""

    def __init__(self, name, words, log):
        self.name, self.command, self.start, self.rows, self.failed = name, ' '.join(words), {}, [], None
        self.said = queue.Queue()
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(log, 'w'), text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.said.put(line)
        self.said.put(None)

    def turn(self, steps, end):
        """Takes steps until its word that they are done; what was kept is there even where it fails."""
        if self.failed:
            return
        try:
            self.process.stdin.write('%d\n' % steps)
            self.process.stdin.flush()
            while True:
                line = self.said.get(timeout=max(1, end - time.monotonic()))
                if line is None:
                    raise RuntimeError('it has ended')
                said = json.loads(line)
                if 'turn' in said:
                    return
                if 'step_s' in said:
                    self.rows.append(said)
                else:
                    self.start.update(said)
        except (OSError, RuntimeError, ValueError, queue.Empty) as error:
            self.failed = repr(error)

    def close(self):
        self.process.kill()
        self.process.wait()


def counted(rows):
    return [row for row in rows if row['step'] > 0]


def measure(case, args, end):
    folder = os.path.join(args.out, 'grpo_' + case)
    sides = []
    try:
        for name in args.sides.split(','):
            script, parts, options = SIDES[name]
            python = sys.executable if script == OURS else args.peer_python
            command = [python, script, 'configs/%s.json' % case, '--micro-batch', str(CASES[case] // parts), '--steps', str(args.rounds * args.steps), '--turns', *options]
            sides.append(Side(name, command, '%s_%s.err' % (folder, name)))
        for _ in range(args.rounds):
            for side in sides:
                side.turn(args.steps, end)
    finally:
        for side in sides:
            side.close()
    device = subprocess.run(['nvidia-smi', '--query-gpu=name,driver_version', '--format=csv,noheader'], stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
    result = {'case': case, 'device': device, 'date': time.strftime('%Y-%m-%d'), 'rounds': args.rounds, 'steps': args.steps,
              'sides': {side.name: {'command': side.command, 'start': side.start, 'failed': side.failed, 'rows': side.rows} for side in sides}}
    with open(folder + '.json.part', 'w', encoding='utf-8') as f:
        json.dump(result, f)
        f.write('\n')
    os.rename(folder + '.json.part', folder + '.json')
    return not any(side.failed for side in sides)


def table(out):
    print('| case | side | ' + ' | '.join(part.replace('_s', ', ms') for part in PARTS) + ' | GiB | ratio of the first update | reward |')
    print('|---|---|' + '--:|' * (len(PARTS) + 3))
    for case in CASES:
        path = os.path.join(out, 'grpo_%s.json' % case)
        if not os.path.exists(path):
            continue
        with open(path, encoding='utf-8') as f:
            sides = json.load(f)['sides']
        for name, side in sides.items():
            rows = counted(side['rows'])
            if side['failed'] or not rows:
                print('%s, %s: %s, %d steps counted' % (case, name, side['failed'], len(rows)))
            if not rows:
                continue
            ratios = device_tables.grpo_ratios(side['rows'])
            size = side['start']['arena_bytes'] if 'arena_bytes' in side['start'] else max(row['allocated_bytes'] for row in rows)
            print('| %s | %s | %s | %.2f | %s | %.3f to %.3f |' % (
                case, name, ' | '.join('%.1f (%.1f, %.1f)' % tuple(1e3 * value for value in results.spread([row[part] for row in rows])) for part in PARTS),
                size / 2**30, '%.9f to %.9f' % (min(ratios), max(ratios)) if ratios else '', side['rows'][0]['reward'], side['rows'][-1]['reward']))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out')
    parser.add_argument('--only', default=','.join(CASES))
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--steps', type=int, default=4)
    parser.add_argument('--sides', default='millrace,torch', help='of %s, separated by commas' % ', '.join(SIDES))
    parser.add_argument('--peer-python', default='python3')
    parser.add_argument('--budget-s', type=float, default=600, help='of each case')
    args = parser.parse_args()
    if unknown := [name for name in args.sides.split(',') if name not in SIDES]:
        parser.error('--sides: %s: allowed are %s' % (', '.join(unknown), ', '.join(SIDES)))
    if unknown := [case for case in args.only.split(',') if case not in CASES]:
        parser.error('--only: %s: allowed are %s' % (', '.join(unknown), ', '.join(CASES)))
    args.out = os.path.abspath(args.out)
    os.makedirs(args.out, exist_ok=True)
    os.chdir(os.path.join(HERE, '../..'))
    failed = 0
    for case in args.only.split(','):
        failed |= not measure(case, args, time.monotonic() + args.budget_s)
    table(args.out)
    return int(failed)


if __name__ == '__main__':
    sys.exit(main())
