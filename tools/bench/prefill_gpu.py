#!/usr/bin/env python3
"""prefill_gpu.py OUT [--program NAME=PROGRAM]... [--budget-s SECONDS] [--only CASE,...]: how long a prompt takes on this host's GPU, beside the forward
of training for as many tokens, in an unpacked package.

A case is a model and a number of tokens. A prompt of so many: bench --decode, one sequence at a time, whose first prompt is not counted, as it has first
launches in it; of several programs in turn, to compare them. The forward: what an evaluation of EVALUATED batches of one sequence takes between two steps of
train, which is the forward with the loss and without what a backward needs. Each row's result is OUT/prefill_CASE_NAME.json; a row that is there is not run
again, and none is begun after the budget. The table comes last.
"""
import argparse
import json
import os
import subprocess
import sys
import time

# Rows of the plan for a prompt, and its tokens.
TOKENS = {512: 504, 2048: 2048, 8192: 8192}
CASES = {'%s_%d' % (model, rows): (model, rows) for rows in (8192, 2048, 512) for model in ('llama_1b', 'gpt2_124m')}
PROMPTS = 8
EVALUATED = 48
SETS = ['train.micro_batch=1', 'inference.slots=1', 'inference.decode=[1]', 'execution.programmatic_launch=end']


def words_of(assignments, out):
    """Programs share what the library's algorithms were measured to take."""
    return [word for assignment in (*assignments, 'execution.tuning_file=%s' % os.path.join(out, 'tuning.json')) for word in ('--set', assignment)]


def prompt(program, model, rows, out):
    """Prompts of one program, in ms."""
    words = [program, 'bench', 'configs/%s.json' % model, '--decode', ','.join(['1'] * (PROMPTS + 1)), '--prompt-tokens', str(TOKENS[rows]), '--warmup', '1',
             '--steps', '1', '--json', *words_of([*SETS, 'inference.prefill=[%d]' % rows, 'model.seq_len=%d' % (rows + 256)], out)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError('exit code %d: %s' % (done.returncode, done.stderr.strip()[-500:]))
    result = json.loads(done.stdout)
    samples = [row['prefill_ms_samples'][0] for row in result['decode']]
    return {'command': ' '.join(words), 'device': result['device'], 'tokens': TOKENS[rows], 'first_ms': samples[0], 'ms_samples': samples[1:]}


def forward(program, model, rows, out):
    """An evaluation's forwards, in ms."""
    words = [program, 'train', 'configs/%s.json' % model, *words_of(
        ['train.micro_batch=1', 'model.seq_len=%d' % rows, 'train.steps=1', 'optimizer.schedule.warmup=0', 'train.eval_every=1', 'checkpoint.every=0',
         'data.eval_batches=%d' % EVALUATED, 'run.dir=%s' % os.path.join(out, 'run_%s_%d' % (model, rows))], out)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said, began, ms = [], None, None
    for line in process.stdout:
        said.append(line)
        if line.startswith('step 1/1'):
            began = time.monotonic()
        elif line.startswith('step 1: held-out') and began:
            ms = 1e3 * (time.monotonic() - began) / EVALUATED
            process.terminate()  # it would save a checkpoint next
    process.wait()
    if ms is None:
        raise RuntimeError('no evaluation: %s' % ''.join(said)[-500:])
    return {'command': ' '.join(words), 'tokens': rows, 'ms_samples': [ms]}


def median(values):
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def table(out, names):
    print('| case | tokens | %s | forward, ms | %s |' % (' | '.join('%s, ms' % name for name in names), ' | '.join('%s of its rate' % name for name in names)))
    print('|---|' + '--:|' * (2 + 2 * len(names)))
    for case in CASES:
        rows = {}
        for name in (*names, 'forward'):
            path = os.path.join(out, 'prefill_%s_%s.json' % (case, name))
            if os.path.exists(path):
                rows[name] = json.load(open(path))
        if not rows:
            continue
        ms = {name: median(row['ms_samples']) / row['tokens'] for name, row in rows.items()}
        print('| %s | %d | %s | %s | %s |' % (
            case, TOKENS[CASES[case][1]], ' | '.join('%.2f' % median(rows[name]['ms_samples']) if name in rows else '' for name in names),
            '%.2f' % rows['forward']['ms_samples'][0] if 'forward' in rows else '',
            ' | '.join('%.2f' % (ms['forward'] / ms[name]) if name in ms and 'forward' in ms else '' for name in names)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out')
    parser.add_argument('--program', action='append', help='NAME=PROGRAM; else ours=bin/millrace')
    parser.add_argument('--budget-s', type=float, default=600)
    parser.add_argument('--only', default=','.join(CASES))
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    programs = dict(pair.split('=', 1) for pair in args.program or ['ours=bin/millrace'])
    last = list(programs.values())[-1]
    end = time.monotonic() + args.budget_s
    failed = 0
    for case in args.only.split(','):
        model, rows = CASES[case]
        runs = {name: lambda program=program: prompt(program, model, rows, args.out) for name, program in programs.items()}
        runs['forward'] = lambda: forward(last, model, rows, args.out)
        for name, run in runs.items():
            path = os.path.join(args.out, 'prefill_%s_%s.json' % (case, name))
            if os.path.exists(path):
                continue
            if time.monotonic() > end:
                print('%s, %s: no time left for it' % (case, name), flush=True)
                continue
            try:
                result = run()
            except (RuntimeError, ValueError, KeyError, OSError) as e:
                print('%s, %s: %s' % (case, name, e), flush=True)
                failed = 1
                continue
            result.update({'case': case, 'program': name, 'date': time.strftime('%Y-%m-%d')})
            with open(path + '.part', 'w') as f:
                json.dump(result, f)
                f.write('\n')
            os.rename(path + '.part', path)
    table(args.out, list(programs))
    return failed


if __name__ == '__main__':
    sys.exit(main())
