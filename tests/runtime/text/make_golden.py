"""Writes testdata/tokenizer.json and testdata/golden.json: make_golden.py FOLDER. Needs `pip install tokenizers xxhash`.

tokenizer.json is small: 600 merges, trained on the sentences below. golden.json has variants of it, as JSON merge patches, and for each the
ids that PyPI's tokenizers gives for texts; for some a hash of those of code points between others. differential.py compares more of everything.
"""
import json
import os
import struct
import sys

import xxhash
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SENTENCES = [
    "The administrators' children don't know that they're wordy; we've said it 1234 times, and I'll say it again.\n",
    "L'été dernier, l'administration a décidé d'élever les prix de 25 % à Việt Nam, où l'on mange des crêpes.\n",
    "Die Straßenbahn fährt über die Brücke; Größe und Höhe sind überraschend unterschiedlich.\n",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.\n",
    "中文分词不需要空格，但是模型需要知道词语的边界。日本語の文章も同じです。한국어 문장도 있습니다.\n",
    "for (int i = 0; i < n; ++i) {\n    sum += values[i] * 0x1f;  // \tthe  blanks\r\n}\n",
    "نحن نتعلم اللغة العربية. हम हिन्दी सीखते हैं।\n",
]
TEXTS = [
    '', ' ', '  ', '\n', ' a', 'a ', 'a  b', 'a   b\n\n  c', '\r\n\r\n\ta', "don't DON'T we'Ve I'LL it'\u017f 'x ''s", 'x\u00a0y\u3000\u180ez', '1234567 12 ٣٤٥٦ Ⅷ½',
    'admin|sters administrators <|end|>', '<|end|>', '<|end|><|end|> <|pad|>', 'word wordy words a word. _word word_ wordword', '  <mask>  x [R]  y [LR] z', 'é! e\u0301! E\u0301!',
    'e\u0301\u0327 \u1100\u1161\u11a8 \u212b \u0958 \u0344 a\u0315\u0300', ' <|pad|> x<|pad|>', ' s p s p', '...!!!\n\n?', '=====\r\n', 'Größe\u200dx \U0001f600\U0001f468\u200d\U0001f469',
    'Việt Nam ' * 3, 'supercalifragilisticexpialidocious' * 5, 'aaaa' * 40, 'a' + '\u0301' * 70, '中文分词不需要空格' * 9, '\u0000\u007f\u0080', SENTENCES[0] * 2, SENTENCES[3] + SENTENCES[4],
]
AROUND = ('a%s ', "'%s\u0301")
PLANES = (*range(0, 0xd800, 256), *range(0xe000, 0x18e00, 256), *range(0x1ac00, 0x20000, 256), 0xe0000, 0xe0100)  # where there is something

HASHED = ('gpt2', 'llama3', 'odd')


def base():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(SENTENCES * 3, trainers.BpeTrainer(
        vocab_size=856, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([AddedToken('<|end|>', special=True, normalized=False)])
    return json.loads(tokenizer.to_str())


def added(first, *tokens):
    plain = {'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': False}
    return [{**plain, 'content': content, 'id': first + i, **flags} for i, (content, flags) in enumerate(tokens)]


def variants(first):
    split = lambda pattern: {'type': 'Split', 'pattern': {'Regex': pattern}, 'behavior': 'Isolated', 'invert': False}
    byte_level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': False}
    digits = {'type': 'Digits', 'individual_digits': True}
    sequence = lambda *stages: {'type': 'Sequence', 'pretokenizers': list(stages), 'add_prefix_space': None, 'trim_offsets': None, 'use_regex': None}
    template = {'type': 'TemplateProcessing', 'single': [{'SpecialToken': {'id': '<|end|>', 'type_id': 0}}, {'Sequence': {'id': 'A', 'type_id': 0}}],
                'pair': [{'Sequence': {'id': 'A', 'type_id': 0}}, {'Sequence': {'id': 'B', 'type_id': 0}}],
                'special_tokens': {'<|end|>': {'id': '<|end|>', 'ids': [first], 'tokens': ['<|end|>']}}}
    odd = added(first, ('<|end|>', {'special': True}), ('<mask>', {'lstrip': True}), ('[R]', {'rstrip': True}), ('word', {'single_word': True, 'normalized': True}),
                ('é!', {'normalized': True}), ('[LR]', {'lstrip': True, 'rstrip': True}), ('<|pad|>', {'special': True, 'normalized': True, 'single_word': True}), (' s p', {}),
                ('wordy', {'normalized': True}))
    return {
        'gpt2': {},
        'llama3': {'pre_tokenizer': sequence(split(CL100K % '{1,3}'), byte_level), 'model': {'ignore_merges': True},
                   'post_processor': {'type': 'Sequence', 'processors': [{'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': False, 'use_regex': True}, template]}},
        'qwen2': {'normalizer': {'type': 'NFC'}, 'pre_tokenizer': sequence(split(CL100K % ''), byte_level)},
        'odd': {'normalizer': {'type': 'Sequence', 'normalizers': [{'type': 'NFC'}]}, 'added_tokens': odd, 'pre_tokenizer': {**byte_level, 'add_prefix_space': True, 'use_regex': True}},
        'digits': {'pre_tokenizer': sequence(digits, {**byte_level, 'use_regex': True})},
        'prefixed': {'pre_tokenizer': sequence(split(CL100K % ''), {**byte_level, 'add_prefix_space': True})},
        'whole': {'pre_tokenizer': byte_level},
    }


def patched(document, patch):
    if not isinstance(patch, dict):
        return patch
    document = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            document.pop(key, None)
        else:
            document[key] = patched(document.get(key), value)
    return document


def hash_of_code_points(tokenizer):
    """Of the ids of each 256 code points' text, in order."""
    state = xxhash.xxh3_128()
    for first in PLANES:
        text = ''.join(around % chr(code) for code in range(first, first + 256) for around in AROUND)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        state.update(struct.pack('<%di' % len(ids), *ids))
    return state.hexdigest()


def main():
    folder = sys.argv[1]
    document = base()
    first = max(document['model']['vocab'].values()) + 1
    golden = {'sentences': SENTENCES, 'variants': {}}
    for name, patch in variants(first).items():
        tokenizer = Tokenizer.from_str(json.dumps(patched(document, patch)))
        cases = []
        for text in TEXTS:
            tokenizer.encode_special_tokens = False
            tokens = tokenizer.encode(text).ids
            tokenizer.encode_special_tokens = True
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append([text, tokens, plain])
        tokenizer.encode_special_tokens = False
        golden['variants'][name] = {'patch': patch, 'cases': cases,
                                    'code_points': hash_of_code_points(tokenizer) if name in HASHED else ''}
    with open(os.path.join(folder, 'tokenizer.json'), 'w', encoding='ascii') as f:
        json.dump(document, f, separators=(',', ':'))
        f.write('\n')
    with open(os.path.join(folder, 'golden.json'), 'w', encoding='ascii') as f:
        json.dump(golden, f, separators=(',', ':'))
        f.write('\n')


if __name__ == '__main__':
    main()
