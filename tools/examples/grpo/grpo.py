"""GRPO in one process: a policy samples, a reward in Python scores, and the same weights learn. Needs Millrace's wheel and nothing else.

A small Llama sorts four digits, byte by byte: `7302>0237.`. It is pre-trained for a moment on examples of which half leave the digits as they were,
and from there on learns from the reward alone, by GRPO with the defaults of TRL 1.16.0. 200 of the 10,000 problems are held out from both.
"""
import argparse
import array
import math
import random
import statistics
import tempfile
import time
from typing import List, NamedTuple

import millrace

LENGTH, LONGEST, STOP = 10, 5, ord('.')  # bytes of a problem with its answer, of an answer, and what ends one
PROMPTS, GROUP = 16, 8  # of a rollout; TRL's num_generations is 8


def config(seed, rows, steps, lr, backend='cpu', **train):
    return {
        'model': {'family': 'llama', 'layers': 2, 'd_model': 64, 'heads': 4, 'ffn': 128, 'vocab': 256, 'tied': True, 'seq_len': LENGTH},
        'train': dict(train, seed=seed, steps=steps, micro_batch=rows, accumulate=1, loss_weights=True),
        # As transformers has it, and so TRL: a learning rate that falls to 0, no weight decay, gradients clipped to a norm of 1.
        'optimizer': {'lr': lr, 'betas': [0.9, 0.999], 'weight_decay': 0.0, 'clip': 1.0, 'schedule': {'kind': 'wsd', 'decay_steps': steps}},
        'inference': {'slots': PROMPTS * GROUP, 'page_tokens': LENGTH, 'prefill': LENGTH - LONGEST, 'decode': [PROMPTS, PROMPTS * GROUP]},
        'execution': {'backend': backend},
    }


def all_problems():
    """(for learning, held out), the same for every seed."""
    problems = ['%04d>' % number for number in range(10000)]
    random.Random(0).shuffle(problems)
    return problems[200:], problems[:200]


def solution(problem):
    return ''.join(sorted(problem[:-1])) + '.'


def reward(problem, answer):
    """The verifier. It may be any Python: nothing of it is pickled, and it runs where the policy does."""
    return float(answer == solution(problem))


class Sample(NamedTuple):
    problem: str
    answer: millrace.Answer  # tokens, the log-probability of each, and the version of the weights that drew them
    reward: float
    advantage: float


def group_advantages(rewards):
    """Rewards less their mean, over their standard deviation (n - 1): TRL's scale_rewards='group'."""
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


def rollout(run, problems, seed) -> List[Sample]:
    """GROUP samples of each problem at temperature 1, by the weights of now."""
    answers = run.generate([
        millrace.Request(prompt=list(problem.encode()), max_tokens=LONGEST, samples=GROUP, seed=seed + number, stop_tokens=[STOP])
        for number, problem in enumerate(problems)
    ])
    if run.config['execution']['backend'] == 'cuda':
        answers = scored(run, [problem for problem in problems for _ in range(GROUP)], answers)
    samples = []
    for problem, group in zip(problems, (answers[i:i + GROUP] for i in range(0, len(answers), GROUP))):
        rewards = [reward(problem, bytes(answer.tokens).decode('latin-1')) for answer in group]
        samples += map(Sample, [problem] * GROUP, group, rewards, group_advantages(rewards))
    return samples


def scored(run, problems, answers):
    """The answers with log-probabilities of the training forward, which those of decode equal to the bit on the CPU alone."""
    scores = run.score([tokens_of(problem, answer.tokens) for problem, answer in zip(problems, answers)], likeliest=False).logprobs.tolist()
    return [answer._replace(logprobs=row[len(problem) - 1:][:len(answer.tokens)]) for problem, answer, row in zip(problems, answers, scores)]


def on_targets(problem, values):
    """A row of LENGTH targets: values of the answer's tokens, and 0 elsewhere. A token is the target of the position before it."""
    before = len(problem) - 1
    return [0.0] * before + values + [0.0] * (LENGTH - before - len(values))


def tokens_of(problem, answer):
    return (list(problem.encode()) + answer + [STOP] * LENGTH)[:LENGTH + 1]


def learn(run, samples):
    """One update. TRL's loss_type='dapo': the mean over all tokens of all answers."""
    versions = {sample.answer.weight_version for sample in samples}
    if len(versions) != 1:
        raise ValueError('samples of the weight versions %s in one batch' % sorted(versions))
    return run.step([tokens_of(sample.problem, sample.answer.tokens) for sample in samples],
                    weights=[on_targets(sample.problem, [1.0] * len(sample.answer.tokens)) for sample in samples],
                    advantages=[on_targets(sample.problem, [sample.advantage] * len(sample.answer.tokens)) for sample in samples],
                    old_logprobs=[on_targets(sample.problem, sample.answer.logprobs) for sample in samples])


def loss_at_ratio_1(samples):
    """What learn() gives where the policy's probability of every token is the stored one: in double, of weights and advantages in f32."""
    lengths = [len(sample.answer.tokens) for sample in samples]
    targets = len(samples) * LENGTH
    weight, *advantages = array.array('f', [targets / sum(lengths)] + [sample.advantage for sample in samples])
    return -math.fsum(weight * advantage * length for advantage, length in zip(advantages, lengths)) / targets


def accuracy(run, problems):
    """Of the likeliest answers."""
    answers = run.generate([
        millrace.Request(prompt=list(problem.encode()), max_tokens=LONGEST, temperature=0, stop_tokens=[STOP]) for problem in problems
    ])
    return statistics.fmean(reward(problem, bytes(answer.tokens).decode('latin-1')) for problem, answer in zip(problems, answers))


def pretrain(folder, seed, steps, copied=0.5, backend='cpu'):
    """Supervised steps on answers of which the share `copied` is not sorted; leaves a Hugging Face folder."""
    draw, (problems, _) = random.Random(seed), all_problems()
    with millrace.Run(config(seed, 64, steps, 0.003, backend)) as run:
        run.init()
        for _ in range(steps):
            rows = []
            for problem in draw.choices(problems, k=64):
                rows.append((problem, problem[:-1] + '.' if draw.random() < copied else solution(problem)))
            run.step([tokens_of(problem, list(answer.encode())) for problem, answer in rows],
                     weights=[on_targets(problem, [1.0] * len(answer)) for problem, answer in rows])
        run.export(folder)


def train(run, seed, steps, iterations, say):
    """Returns held-out accuracy at start and end, and of each update the samples' reward and weight version, its result, and its loss at ratios of 1."""
    draw, (problems, held_out) = random.Random(seed), all_problems()
    start, figures, sampling = accuracy(run, held_out), [], 0.0
    say('held-out accuracy %.3f' % start)
    began = time.monotonic()
    for step in range(steps):
        at = time.monotonic()
        samples = rollout(run, draw.sample(problems, PROMPTS), seed=seed * 10**6 + step * PROMPTS)
        sampling += time.monotonic() - at
        drawn_by, mean = samples[0].answer.weight_version, statistics.fmean(sample.reward for sample in samples)
        for _ in range(iterations):
            result = learn(run, samples)
            figures.append((mean, drawn_by, result, loss_at_ratio_1(samples)))
        if (step + 1) % 20 == 0:
            say('rollout %3d: reward %.3f, drawn by weights %d, held-out accuracy %.3f; last update: ratio %.4f, clipped %.3f, KL %.1e' %
                (step + 1, mean, drawn_by, accuracy(run, held_out), result.policy.ratio, result.policy.clip_fraction, result.policy.kl))
    seconds = time.monotonic() - began
    say('%d samples and %d updates in %.1f s, of which %.1f s sampling' % (steps * PROMPTS * GROUP, len(figures), seconds, sampling))
    return start, accuracy(run, held_out), figures


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--pretrain', type=int, default=350, help='supervised steps')
    parser.add_argument('--steps', type=int, default=80, help='rollouts')
    parser.add_argument('--iterations', type=int, default=1, help="updates by each rollout, TRL's num_iterations")
    parser.add_argument('--lr', type=float, default=0.0005, help='of GRPO (TRL: 1e-6, for models of another size)')
    parser.add_argument('--backend', default='cpu', choices=('cpu', 'cuda'), help='cuda: the wheel with CUDA; old log-probabilities are then of score()')
    a = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        pretrain(folder + '/start', a.seed, a.pretrain, backend=a.backend)
        policy = config(a.seed, PROMPTS * GROUP, a.steps * a.iterations, a.lr, a.backend, loss='policy_gradient')
        with millrace.Run(policy, use_inference=True) as run:
            run.import_weights(folder + '/start')
            start, end, figures = train(run, a.seed, a.steps, a.iterations, print)
    off = max(abs(result.loss - at_one) for _, _, result, at_one in figures[::a.iterations])
    print('held-out accuracy %.3f -> %.3f; first updates are off the loss at ratio 1 by %.0e at most' % (start, end, off))
    return start, end, figures


if __name__ == '__main__':
    main()
