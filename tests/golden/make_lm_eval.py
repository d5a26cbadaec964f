#!/usr/bin/env python3
"""Scores of lm-eval itself, through transformers, which `millrace eval --task` is tested against.

    pip install 'lm-eval==0.4.13' transformers tokenizers torch datasets
    python3 tests/golden/make_lm_eval.py write                  # makes examples.jsonl and texts.jsonl
    python3 tests/golden/make_lm_eval.py score HF_FOLDER --seq-len T --out FILE.json
    python3 tests/golden/make_lm_eval.py score HF_FOLDER --seq-len 48 --tokenizer tests/runtime/text/testdata/tokenizer.json --prefix 696 --rows --out FILE.json
    python3 tests/golden/make_lm_eval.py compare FILE.json HELLASWAG.jsonl PPL.jsonl

`score` runs lm-eval's hellaswag (its own task, over examples.jsonl) and loglikelihood_rolling (over texts.jsonl) with a tokenizer whose ids
are bytes, and writes the rows that lm-eval asked for, each one's log-probability, and its metrics. `compare` holds what
`millrace eval --task hellaswag:... --examples FILE` and `ppl:...` wrote against it: choices equal, log-probabilities within 1e-4 of a row's
length. lm_eval/golden.json is of a random model: README.md says which.
"""
import argparse
import json
import os
import pathlib
import random
import re

FOLDER = pathlib.Path(__file__).parent / 'lm_eval'
WORDS = ('a man is standing on the roof of his house and begins to pull up old shingles while another throws them down into the garden '
         'she takes two eggs from a bowl breaks them slowly stirs sugar in until it is smooth then bakes').split()


def words(draw, n):
    return ' '.join(draw.choice(WORDS) for _ in range(n))


def write():
    draw = random.Random(20241)
    odd = ['[header] How to bake bread [title] Mix flour. [step] Add water', 'caf\u00e9 \u00c9COLE stra\u00dfe 5\u00b0  and  more', 'it\'s "odd"  [note] here',
           '\u00a0 padded \u2003', 'line\nbreak [not\nclosed] end']
    examples = []
    for i in range(24):
        ctx_a = words(draw, draw.randint(3, 22)) + '.'
        if i % 5 == 1:
            ctx_a = odd[i // 5] + ' ' + ctx_a
        ctx_b = '' if i % 3 == 0 else draw.choice(['he', 'THE Woman', '\u00e9lan OF it', '[he] then', 'she'])
        endings = [words(draw, draw.randint(2, 9)) + draw.choice(['.', '!', ' \u2026', '']) for _ in range(4)]
        if i % 4 == 2:
            endings[1] = 'starts [title] again  [substeps] ' + endings[1]
        label = draw.randrange(4)
        examples.append({'ind': i, 'activity_label': draw.choice(['Roof removal', 'Baking', '  Food and Entertaining']), 'ctx_a': ctx_a, 'ctx_b': ctx_b,
                         'ctx': ctx_a + (' ' + ctx_b if ctx_b else ''), 'endings': endings, 'label': str(label), 'source_id': f'x~{i}'})
    texts = [words(draw, n) + end for n, end in ((5, ''), (40, '\n'), (12, ' \u2003 '), (23, '.'), (1, ''), (90, ' caf\u00e9 \u4e2d\u6587 \U0001f600'))]
    texts.append('x' * 240 + '  ' + 'y' * 14)  # two windows of 128, and nothing left
    os.makedirs(FOLDER, exist_ok=True)
    for name, lines in (('examples', examples), ('texts', [{'text': text} for text in texts])):
        (FOLDER / (name + '.jsonl')).write_text(''.join(json.dumps(line, ensure_ascii=name == 'texts') + '\n' for line in lines))


def tokenizer_of(path):
    from transformers import PreTrainedTokenizerFast
    return PreTrainedTokenizerFast(tokenizer_file=path)


def byte_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    # The bytes that stand for themselves, and the others from U+0100 on, as ByteLevel names them.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {b: chr(b) for b in plain}
    for n, b in enumerate(b for b in range(256) if b not in names):
        names[b] = chr(256 + n)
    tokenizer = Tokenizer(models.BPE(vocab={name: b for b, name in names.items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.pad_token_id = 0
    for text in ('Az \u00e9\n', '\u4e2d\u00a0'):
        assert fast.encode(text) == list(text.encode())
    return fast


def score(arguments):
    import lm_eval
    import torch
    import yaml
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks.hellaswag import utils
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    rows = []

    class Recorded(HFLM):
        """HFLM that keeps the rows which it is asked for, as it cuts them."""

        def _loglikelihood_tokens(self, requests, *args, **options):
            found = super()._loglikelihood_tokens(requests, *args, **options)
            for (_, context, continuation), (log_prob, _) in zip(requests, found):
                ids = (list(context) + list(continuation))[-(self.max_length + 1):]
                rows.append({'ids': ids, 'first': len(ids) - len(continuation), 'log_prob': float(log_prob)})
            return found

    model = AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32)
    lm = Recorded(pretrained=model, tokenizer=tokenizer_of(arguments.tokenizer) if arguments.tokenizer else byte_tokenizer(),
                  max_length=arguments.seq_len, batch_size=4, device='cpu', prefix_token_id=arguments.prefix)
    yaml_text = (pathlib.Path(utils.__file__).parent / 'hellaswag.yaml').read_text()
    hellaswag = yaml.safe_load(re.sub(r'!function \S+', 'null', yaml_text))
    hellaswag.update(dataset_path='json', dataset_kwargs={'data_files': {'validation': str(FOLDER / 'examples.jsonl')}}, training_split=None,
                     process_docs=utils.process_docs)
    ppl = {'task': 'ppl', 'dataset_path': 'json', 'dataset_kwargs': {'data_files': {'validation': str(FOLDER / 'texts.jsonl')}}, 'output_type': 'loglikelihood_rolling',
           'validation_split': 'validation', 'test_split': None, 'doc_to_text': '', 'doc_to_target': '{{text}}',
           'metric_list': [{'metric': m} for m in ('word_perplexity', 'byte_perplexity', 'bits_per_byte')]}
    golden = {'seq_len': arguments.seq_len}
    for task in (hellaswag, ppl):
        rows.clear()
        result = lm_eval.simple_evaluate(model=lm, tasks=[task], bootstrap_iters=0, log_samples=True)
        name = task['task']
        values = {key.split(',')[0]: value for key, value in result['results'][name].items() if isinstance(value, float)}
        samples = sorted(result['samples'][name], key=lambda sample: sample['doc_id'])
        golden[name] = {'values': values, 'rows': list(rows),
                        'examples': [[float(r[0]) if isinstance(r, (list, tuple)) else float(r) for r in s['filtered_resps']] for s in samples]}
        if name == 'hellaswag':
            golden[name]['acc'] = [s['acc'] for s in samples]
            golden[name]['acc_norm'] = [s['acc_norm'] for s in samples]
    if arguments.rows:
        for name in ('hellaswag', 'ppl'):
            golden[name] = {'rows': [{'ids': row['ids'], 'first': row['first'], 'log_prob': 0} for row in golden[name]['rows']]}
    pathlib.Path(arguments.out).write_text(json.dumps(golden) + '\n')


def lines_of(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def compare(arguments):
    golden = json.loads(pathlib.Path(arguments.golden).read_text())
    largest = 0
    theirs, ours = golden['hellaswag'], lines_of(arguments.hellaswag)
    assert len(ours) == len(theirs['examples'])
    for i, (a, b) in enumerate(zip(theirs['examples'], ours)):
        largest = max([largest] + [abs(x - y) for x, y in zip(a, b['log_probs'])])
        assert theirs['acc'][i] == (b['choice'] == b['label']) and theirs['acc_norm'][i] == (b['choice_norm'] == b['label']), i
    documents = lines_of(arguments.ppl)
    assert len(documents) == len(golden['ppl']['examples'])
    for a, b in zip(golden['ppl']['examples'], documents):
        largest = max(largest, abs(a[0] - b['log_prob']) / b['ids'])
    print(f'{len(ours)} questions: every choice equal; {len(documents)} documents; largest difference of a log-probability {largest:.2e}')
    assert largest < 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest='verb', required=True)
    verbs.add_parser('write')
    scored = verbs.add_parser('score')
    scored.add_argument('folder')
    scored.add_argument('--seq-len', type=int, required=True)
    scored.add_argument('--out', required=True)
    scored.add_argument('--tokenizer', help='tokenizer.json (default: bytes)')
    scored.add_argument('--prefix', type=int, default=0, help='id of the token that stands before a text')
    scored.add_argument('--rows', action='store_true', help='write the rows alone')
    compared = verbs.add_parser('compare')
    for name in ('golden', 'hellaswag', 'ppl'):
        compared.add_argument(name)
    arguments = parser.parse_args()
    {'write': lambda _: write(), 'score': score, 'compare': compare}[arguments.verb](arguments)


if __name__ == '__main__':
    main()
