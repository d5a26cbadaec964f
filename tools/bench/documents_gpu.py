#!/usr/bin/env python3
"""documents_gpu.py OUT [--program PROGRAM] [--configs FOLDER] [--rounds N] [--budget-s SECONDS] [--only CASE,...]: what data.document_mask costs a step on this
host's device, in an unpacked package.

A case is a model, a batch and the tokens of a row. Its data is a file of documents whose lengths are drawn from the exponential distribution with a quarter of
a row as mean, so that attention has 0.38 of its work left; ids are uniform. Steps are timed by `bench` without the mask and with it in turn, of the same file.
The results are OUT/documents.json, written anew after each run; no run is begun after the budget. The table comes last.
Exit code 1: a run failed, or was not begun.
"""
import argparse
import array
import json
import os
import random
import statistics
import subprocess
import sys
import time

# Configuration, rows of a step, tokens of a row, vocabulary.
CASES = {
    'GPT-2 124M': ('gpt2_124m', 64, 1024, 50304),
    'Llama 1B': ('llama_1b', 4, 4096, 128256),
    'Llama of 4 layers': ('llama_160m', 2, 256, 32000),  # of a CPU
}
SMALL = ['model.layers=4', 'model.d_model=256', 'model.heads=4', 'model.kv_heads=2', 'model.ffn=1024', 'model.vocab=32000', 'precision.compute=fp32',
         'precision.norms=fp32', 'precision.grad_wire=fp32']
STEPS, WARMUP = 12, 4
END = 0


def write_documents(path, batch, seq_len, vocab, steps):
    """Tokens in the format of llm.c, and the share of causal attention that is left, over rows as they are cut from the file's beginning."""
    rng = random.Random(1)
    count = batch * seq_len * (steps + 2) * 10 // 9 + seq_len
    ids = array.array('I', (1 + word % (vocab - 1) for word in array.array('I', rng.randbytes(4 * count))))
    left, work, begin = 0, 0, 0
    for at in range(count):
        if at % seq_len == 0:
            begin = at
        work += at - begin + 1
        left -= 1
        if left <= 0:
            ids[at], begin, left = END, at + 1, 1 + int(rng.expovariate(4 / seq_len))
    short = vocab <= 65536
    header = array.array('i', [20240520, 1, count] if short else [20240801, 7, count])
    header.extend([0] * (256 - len(header)))
    with open(path, 'wb') as file:
        file.write(header.tobytes())
        file.write((array.array('H', ids) if short else ids).tobytes())
    return 2 * work / count / (seq_len + 1)


def bench(args, case, path, mask):
    config, batch, seq_len, _ = CASES[case]
    sets = ['train.micro_batch=%d' % batch, 'model.seq_len=%d' % seq_len, 'data.kind=tokens', 'data.path=%s' % path, 'data.document_mask=%s' % ('true' if mask else 'false'),
            'execution.tuning_file=%s' % os.path.join(args.out, 'tuning.json'), *(SMALL if config == 'llama_160m' else [])]
    if mask:
        sets.append('data.end_of_document=%d' % END)
    words = [args.program, 'bench', os.path.join(args.configs, config + '.json'), '--warmup', str(WARMUP), '--steps', str(STEPS), '--json']
    done = subprocess.run(words + [word for one in sets for word in ('--set', one)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError('exit code %d: %s' % (done.returncode, done.stderr.strip()[-500:]))
    result = json.loads(done.stdout)
    return result['device'], result['step_ms_samples']


def table(cases):
    print('| case | share of attention left | without, ms | with, ms | with / without |')
    print('|---|--:|--:|--:|--:|')
    for case, row in cases.items():
        off, on = ([ms for samples in row[key] for ms in samples] for key in ('without_ms_samples', 'with_ms_samples'))
        if off and on:
            print('| %s | %.2f | %.2f | %.2f | %.3f |' % (case, row['share'], statistics.median(off), statistics.median(on), statistics.median(on) / statistics.median(off)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('out')
    parser.add_argument('--program', default='bin/millrace')
    parser.add_argument('--configs', default='configs')
    parser.add_argument('--rounds', type=int, default=2)
    parser.add_argument('--budget-s', type=float, default=600)
    parser.add_argument('--only', default='GPT-2 124M,Llama 1B')
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    end, failed = time.monotonic() + args.budget_s, 0
    data = {'date': time.strftime('%Y-%m-%d'), 'device': '', 'steps': STEPS, 'cases': {}}
    for turn in range(args.rounds):
        for case in args.only.split(','):
            path = os.path.join(args.out, CASES[case][0] + '.bin')
            if case not in data['cases']:
                share = write_documents(path, *CASES[case][1:], WARMUP + STEPS + 10)
                data['cases'][case] = {'share': round(share, 3), 'batch': CASES[case][1], 'tokens': CASES[case][2], 'without_ms_samples': [], 'with_ms_samples': []}
            for mask in (False, True) if turn % 2 == 0 else (True, False):
                if time.monotonic() > end:
                    print('%s: no time left for it' % case, flush=True)
                    failed = 1
                    continue
                began = time.monotonic()
                try:
                    data['device'], samples = bench(args, case, path, mask)
                except (RuntimeError, ValueError, KeyError, OSError) as e:
                    print('%s, mask %s: %s' % (case, mask, e), flush=True)
                    failed = 1
                    continue
                data['cases'][case]['with_ms_samples' if mask else 'without_ms_samples'].append(samples)
                print('%s, mask %s: %.2f ms a step; %.0f s' % (case, mask, statistics.median(samples), time.monotonic() - began), flush=True)
                with open(os.path.join(args.out, 'documents.json'), 'w') as file:
                    json.dump(data, file)
                    file.write('\n')
    table(data['cases'])
    return failed


if __name__ == '__main__':
    sys.exit(main())
