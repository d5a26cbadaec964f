#!/usr/bin/env python3
"""lm-eval on the wheel (millrace.lm_eval) beside lm-eval through transformers, on one model: trained here by the wheel, and exported.

    bazel test //tests/build:lm_eval_wheel_test --test_output=all

Tasks: hellaswag as lm-eval has it and loglikelihood_rolling over lm_eval/, a cloze whose score is whether the continuation is the greedy
one, and generate_until. Choices, greedy flags and generated texts are equal; log-probabilities differ by at most 1e-4 of a row's length.
tests/build/lm_eval_wheel.sh makes the environment, with pinned versions.
"""
import os
import pathlib
import random
import re
import tempfile

os.environ.update(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1', TOKENIZERS_PARALLELISM='false')

import lm_eval
import torch
import yaml
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.tasks.hellaswag import utils
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import millrace
from millrace.lm_eval import MillraceLM

GOLDEN = pathlib.Path(__file__).parent
TOKENIZER = GOLDEN.parent / 'runtime/text/testdata/tokenizer.json'
END = '<|end|>'
CONFIG = {
    'model': {'family': 'llama', 'layers': 2, 'd_model': 48, 'heads': 4, 'kv_heads': 2, 'ffn': 96, 'seq_len': 64, 'vocab': 697},
    'optimizer': {'lr': 0.01},
    'train': {'steps': 60, 'micro_batch': 8, 'accumulate': 1, 'seed': 7},
    'inference': {'slots': 4},
}
WORDS = ('a man is standing on the roof of his house and begins to pull up old shingles while another throws them down into the garden '
         'she takes two eggs from a bowl breaks them slowly stirs sugar in until it is smooth then bakes').split()


def trained(run, tokenizer):
    """The words in their order, over and over: what follows one is mostly certain, and greedy answers are no ties."""
    run.init()
    draw, ids = random.Random(5), []
    while len(ids) < 60 * 8 * 65:
        at = draw.randrange(len(WORDS))
        ids += tokenizer.encode(' '.join(WORDS[at:]) + '.' + END)
    for step in range(60):
        rows = [ids[(step * 8 + r) * 65:(step * 8 + r + 1) * 65] for r in range(8)]
        loss = run.step(rows).loss
    print('trained to a loss of %.3f' % loss)


def json_task(name, path, output_type, **more):
    return dict({'task': name, 'dataset_path': 'json', 'dataset_kwargs': {'data_files': {'validation': str(path)}}, 'output_type': output_type,
                 'validation_split': 'validation', 'test_split': None}, **more)


def tasks(folder):
    hellaswag = yaml.safe_load(re.sub(r'!function \S+', 'null', (pathlib.Path(utils.__file__).parent / 'hellaswag.yaml').read_text()))
    hellaswag.update(dataset_path='json', dataset_kwargs={'data_files': {'validation': str(GOLDEN / 'lm_eval/examples.jsonl')}},
                     training_split=None, process_docs=utils.process_docs)
    rolling = json_task('ppl', GOLDEN / 'lm_eval/texts.jsonl', 'loglikelihood_rolling', doc_to_text='', doc_to_target='{{text}}',
                        metric_list=[{'metric': 'byte_perplexity'}])
    lines, draw = [], random.Random(3)
    for i in range(24):
        at = draw.randrange(len(WORDS) - 14)
        answer = WORDS[at + 10] if i % 3 else draw.choice(WORDS)
        lines.append('{"text": "%s", "answer": "%s"}\n' % (' '.join(WORDS[at:at + 10]), answer))
    (folder / 'cloze.jsonl').write_text(''.join(lines))
    cloze = json_task('cloze', folder / 'cloze.jsonl', 'loglikelihood', doc_to_text='{{text}}', doc_to_target=' {{answer}}',
                      metric_list=[{'metric': 'acc'}])
    texts = json_task('texts', folder / 'cloze.jsonl', 'generate_until', doc_to_text='{{text}}', doc_to_target='{{answer}}',
                      generation_kwargs={'until': [' from', '.'], 'max_gen_toks': 24}, metric_list=[{'metric': 'exact_match'}])
    return [hellaswag, rolling, cloze, texts]


def responses(lm, task):
    # The tasks are these alone: the harness's own are thousands of files.
    result = lm_eval.simple_evaluate(model=lm, tasks=[task], task_manager=TaskManager(include_defaults=False), bootstrap_iters=0,
                                     log_samples=True)
    name = task['task']
    return [s['filtered_resps'] for s in sorted(result['samples'][name], key=lambda s: s['doc_id'])], result['results'][name]


def flat(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value


def same(task, theirs, ours):
    largest, texts, greedy = 0.0, 0, []
    for i, (a, b) in enumerate(zip(theirs, ours)):
        a, b = list(flat(a)), list(flat(b))
        assert len(a) == len(b), (task, i)
        for x, y in zip(a, b):
            if isinstance(x, (str, bool)):
                assert x == y, (task, i, x, y)
                texts += isinstance(x, str)
                greedy += [x] if isinstance(x, bool) else []
            else:
                largest = max(largest, abs(float(x) - float(y)) / max(1.0, abs(float(x))))
    print('%s: %d examples, %d texts, %d of %d greedy; largest relative difference of a log-probability %.1e' %
          (task, len(ours), texts, sum(greedy), len(greedy), largest))
    assert len(theirs) == len(ours) > 0 and largest < 1e-4
    return greedy


def main():
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as name, millrace.Run(CONFIG, use_inference=True) as run, millrace.Tokenizer(TOKENIZER) as tokenizer:
        folder = pathlib.Path(name)
        trained(run, tokenizer)
        run.export(folder / 'model')
        end = tokenizer.token_id(END)
        model = AutoModelForCausalLM.from_pretrained(folder / 'model', dtype=torch.float32)
        fast = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), eos_token=END, pad_token=END)
        theirs = HFLM(pretrained=model, tokenizer=fast, max_length=64, batch_size=4, device='cpu', prefix_token_id=end)
        ours = MillraceLM(run, tokenizer, prefix_token_id=end, eot_token_id=end)
        version = run.info.weight_version
        for task in tasks(folder):
            a, of_theirs = responses(theirs, dict(task))
            b, of_ours = responses(ours, dict(task))
            greedy = same(task['task'], a, b)
            assert task['task'] != 'cloze' or 0 < sum(greedy) < len(greedy)
            for key, value in of_theirs.items():
                if isinstance(value, float):
                    assert abs(value - of_ours[key]) <= 1e-4 * abs(value), (key, value, of_ours[key])
        assert run.info.weight_version == version


if __name__ == '__main__':
    main()
