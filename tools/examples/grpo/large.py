"""GRPO of a larger model on a GPU, with the time of each part of a step. Needs Millrace's wheel with CUDA and nothing else.

A Llama of configs/ begins with random weights and learns to answer in even tokens (even.py). On a GPU decode and training sum in other orders, so the old
log-probabilities of an update are those of score(), which are the training forward's: the ratio is exactly 1 in the first update by a rollout.
A line of JSON for each step.
"""
import json
import statistics
import sys
import tempfile
import time

import even
import millrace
from grpo import group_advantages


def put(values, assignment):
    """SECTION.KEY=VALUE, which the library checks: a value is JSON, or a text as it is."""
    key, given, text = assignment.partition('=')
    *sections, name = key.split('.')
    if not given or not sections or '' in (*sections, name):
        sys.exit('--set %s: SECTION.KEY=VALUE is expected' % assignment)
    if sections[0] in ('train', 'run'):
        sys.exit('--set %s: keys of %s are set by options of this program' % (assignment, sections[0]))
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            sys.exit('--set %s: %s is no section' % (assignment, section))
    try:
        values[name] = json.loads(text)
    except ValueError:
        values[name] = text


def settings(a, folder):
    """The model of a file; the rest as TRL has it, of a learning rate that stays."""
    with open(a.config, encoding='utf-8') as f:
        given = json.load(f)
    execution = {'backend': a.backend}
    if a.backend == 'cuda':
        execution.update(deterministic=False, programmatic_launch='end', tuning_file=a.tuning_file or folder + '/tuning.json')
    rows, length = a.prompts * a.group, a.prompt_tokens + a.answer_tokens
    if rows % a.micro_batch:
        sys.exit('%d rows are no multiple of --micro-batch %d' % (rows, a.micro_batch))
    values = {
        'model': dict(given['model'], seq_len=length),
        'precision': given.get('precision', {}),
        'train': {'seed': a.seed, 'steps': a.steps * a.iterations, 'micro_batch': a.micro_batch, 'accumulate': rows // a.micro_batch,
                  'loss': 'policy_gradient', 'loss_weights': True},
        'optimizer': {'lr': a.lr, 'betas': [0.9, 0.999], 'weight_decay': 0.0, 'clip': 1.0},
        'inference': {'slots': rows, 'page_tokens': 16, 'prefill': a.prompt_tokens, 'decode': rows},
        'execution': execution,
        'run': {'dir': folder},
    }
    for assignment in a.set:
        put(values, assignment)
    return values


class Clock:
    """Seconds of the parts of a step."""

    def __init__(self):
        self.parts, self.at = {}, time.perf_counter()

    def lap(self, name):
        now = time.perf_counter()
        self.parts[name] = self.parts.get(name, 0.0) + now - self.at
        self.at = now


def one_step(run, a, step):
    """A rollout, and the updates by it."""
    vocab, answer, before = run.info.vocab, a.answer_tokens, a.prompt_tokens - 1
    clock = Clock()
    problems = even.prompts(a, vocab, step)
    answers = run.generate([
        millrace.Request(prompt=problem, max_tokens=answer, samples=a.group, seed=(a.seed * 10**6 + step) * a.prompts + number)
        for number, problem in enumerate(problems)
    ])
    clock.lap('sample_s')
    rewards = [even.reward(one.tokens) for one in answers]
    groups = [group_advantages(rewards[at:at + a.group]) for at in range(0, len(rewards), a.group)]
    advantages = [value for group in groups for value in group]
    clock.lap('reward_s')
    # A target of the position before it; the last position has none, and the prompt's do not count.
    tokens = even.rows_of([problems[one.request] + one.tokens + [0] for one in answers], a.prompt_tokens + answer + 1, 'i')
    columns = a.prompt_tokens + answer
    counts = even.rows_of([[0.0] * before + [1.0] * answer + [0.0]] * len(answers), columns, 'f')
    told = even.rows_of([[value] * columns for value in advantages], columns, 'f')
    clock.lap('rows_s')
    old = even.rows_of(run.score(tokens, likeliest=False).logprobs.tolist(), columns, 'f')
    clock.lap('score_s')
    results = [run.step(tokens, weights=counts, advantages=told, old_logprobs=old) for _ in range(a.iterations)]
    clock.lap('train_s')
    off = max(abs(old[row, before + i] - one.logprobs[i]) for row, one in enumerate(answers) for i in (0, answer // 2, answer - 1))
    return {'step': step, 'step_s': sum(clock.parts.values()), **clock.parts, 'reward': statistics.fmean(rewards), 'drawn_by': answers[0].weight_version,
            'losses': [result.loss for result in results], 'norms': [result.grad_norm for result in results],
            'policy': [result.policy._asdict() for result in results], 'decode_off_score': off}


def main(arguments=None):
    extra = [('--backend', {'default': 'cuda'}), ('--tuning-file', {'help': 'keep what was measured of the products here, for the next call'}),
             ('--set', {'action': 'append', 'default': [], 'metavar': 'SECTION.KEY=VALUE', 'help': 'a key of the configuration, as optimizer.moments=bf16'})]
    a = even.arguments(__doc__, extra).parse_args(arguments)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, millrace.Run(settings(a, folder), use_inference=True) as run:
        run.init()
        print(json.dumps({'parameters': run.info.parameters, 'arena_bytes': run.info.arena_bytes, 'start_s': time.perf_counter() - began,
                          'version': millrace.__version__}), flush=True)
        step = 0
        for count in even.turns(a):
            for step in range(step, step + count):
                print(json.dumps(one_step(run, a, step)), flush=True)
            step += 1
            print(json.dumps({'turn': count}), flush=True)


if __name__ == '__main__':
    main()
