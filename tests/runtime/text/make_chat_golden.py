"""Writes testdata/chat_golden.json: make_chat_golden.py FOLDER. Needs `pip install transformers tokenizers jinja2`; FOLDER has the other files.

For variants of testdata/tokenizer.json with the special tokens of a template: conversations, the ids that transformers' apply_chat_template gives for
them, and its mask of the assistant's tokens (return_assistant_tokens_mask, by {% generation %} around an answer and what ends it).
"""
import json
import os
import sys

import jinja2
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}{% generation %}"
          "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}")
LLAMA3 = ("{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}{% if m['role'] == 'assistant' %}"
          "{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}{{ m['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}")
TEMPLATES = {
    'chatml': (CHATML, ['<|im_start|>', '<|im_end|>']),
    'llama3': (LLAMA3, ['<|begin_of_text|>', '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>']),
}
CONVERSATIONS = [
    [('user', 'Hi'), ('assistant', 'Hello.')],
    [('system', 'Be short.'), ('user', "The administrators' children don't know\n"), ('assistant', ' Yes '), ('user', 'Why?'), ('assistant', '')],
    [('assistant', '\n\nfirst lines are empty\n'), ('user', '\n'), ('assistant', '\nfor (int i = 0; i < n; ++i) {\n    sum += 1;\n}\n')],
    [('user', 'e\u0301 crêpes 中文分词'), ('assistant', '\u0301e\u0301E\u0327\u0301 Việt Nam \u1100\u1161\u11a8 \U0001f600')],
    [('tool', '1234567'), ('assistant', '12'), ('assistant', '  \t34  '), ('user', 'x')],
    [('user', 'no answer')],
]


def with_newlines(model):
    """In place of the last merge one of two newlines, a token that a template's head and an answer may share."""
    (last, number), = [(token, i) for token, i in model['vocab'].items() if i == len(model['vocab']) - 1]
    assert ''.join(model['merges'][-1]) == last
    vocab = {token: i for token, i in model['vocab'].items() if token != last}
    return {**model, 'vocab': {**vocab, '\u010a\u010a': number}, 'merges': model['merges'][:-1] + [['\u010a', '\u010a']]}


def main(folder):
    with open(os.path.join(folder, 'tokenizer.json'), encoding='utf-8') as f:
        base = json.load(f)
    with open(os.path.join(folder, 'golden.json'), encoding='utf-8') as f:
        patches = {name: variant['patch'] for name, variant in json.load(f)['variants'].items()}
    cases = []
    for variant in ('gpt2', 'llama3', 'qwen2'):
        for name, (template, tokens) in TEMPLATES.items():
            document = json.loads(json.dumps(base))
            for key, value in patches[variant].items():
                document[key] = {**document[key], **value} if key == 'model' else value
            first = max(token['id'] for token in document['added_tokens']) + 1
            added = [{**document['added_tokens'][0], 'id': first + i, 'content': token} for i, token in enumerate(tokens)]
            document['added_tokens'] += added
            document['model'] = with_newlines(document['model'])
            tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(document)), chat_template=template)
            case = {'variant': variant, 'template': name, 'tokens': {token['content']: token['id'] for token in added}, 'conversations': []}
            for talk in CONVERSATIONS:
                messages = [{'role': role, 'content': content} for role, content in talk]
                try:
                    out = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
                except jinja2.exceptions.TemplateError as error:
                    raise SystemExit('%s: %s' % (name, error))
                case['conversations'].append({'messages': messages, 'ids': out['input_ids'], 'mask': out['assistant_masks']})
            cases.append(case)
    with open(os.path.join(folder, 'chat_golden.json'), 'w', encoding='utf-8') as f:
        json.dump(cases, f, indent=None, separators=(',', ':'))
        f.write('\n')


if __name__ == '__main__':
    main(sys.argv[1])
