"""A task that any model can learn from a random start: answers of even tokens. Also the arguments of large.py and of what is compared with it."""
import argparse
import array
import random
import sys


def arguments(description, extra=()):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='a file of configs/ with a Llama')
    parser.add_argument('--prompts', type=int, default=32)
    parser.add_argument('--group', type=int, default=8, help='samples of a prompt')
    parser.add_argument('--prompt-tokens', type=int, default=64)
    parser.add_argument('--answer-tokens', type=int, default=256, help='of every answer: nothing ends one')
    parser.add_argument('--micro-batch', type=int, default=32, help='rows of a forward and backward')
    parser.add_argument('--iterations', type=int, default=1, help='updates by each rollout')
    parser.add_argument('--lr', type=float, default=1e-4)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--steps', type=int, default=20)
    parser.add_argument('--turns', action='store_true', help='read how many steps to take from standard input, a number on each line')
    for name, options in extra:
        parser.add_argument(name, **options)
    return parser


def turns(a):
    """Numbers of steps, until --steps are done."""
    left = a.steps
    for asked in sys.stdin if a.turns else [a.steps]:
        yield min(int(asked), left)
        left -= min(int(asked), left)
        if left == 0:
            return


def prompts(a, vocab, step):
    """Random tokens, others in each step."""
    draw = random.Random(a.seed * 10**6 + step)
    return [draw.choices(range(vocab), k=a.prompt_tokens) for _ in range(a.prompts)]


def reward(answer):
    """The share of even tokens."""
    return 1 - sum(token & 1 for token in answer) / len(answer)


def rows_of(values, columns, kind):
    """A buffer [rows, columns] of lists."""
    flat = array.array(kind)
    for row in values:
        flat.extend(row)
    return memoryview(flat).cast('B').cast(kind, [len(flat) // columns, columns])
