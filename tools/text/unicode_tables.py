"""Writes runtime/text/unicode/unicode_ranges.cc, nfc_pairs.cc and nfc_marks.cc from Unicode's data.

  pip install unicodedataplus==16.0.0.post1; python3 tools/text/unicode_tables.py runtime/text/unicode

Classes are those of Unicode 16, which PyPI's tokenizers, tiktoken and regex have in 2026. Normalization is that of
Unicode 9 on purpose: tokenizers normalizes with a crate of that age (unicode-normalization-alignments), and ids are
to be the same. Nothing else differs: what a character decomposes to never changes once it is there, so the tables of
an older version are those of a newer one without the characters that came since.
"""
import os
import sys

import unicodedataplus as unicode

CLASSES, NORMALIZATION = '16.0.0', 9.0
# Alphabetic, but neither letter, number nor mark: circled, squared and other such Latin letters.
ALPHABETIC_SYMBOLS = set(range(0x24B6, 0x24EA)) | set(range(0x1F130, 0x1F14A)) | set(range(0x1F150, 0x1F16A)) | set(range(0x1F170, 0x1F18A))
WHITE_SPACE = {*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
JOIN_CONTROLS = {0x200C, 0x200D}
LETTER, NUMBER, SPACE, WORD, UNSTABLE = 1, 2, 3, 4, 8


def known(code):
    age = unicode.age(chr(code))
    return age not in ('NA', 'Unassigned') and float(age) <= NORMALIZATION


def mark_class(code):
    return unicode.combining(chr(code)) if known(code) else 0


def decomposition(code):
    text = unicode.decomposition(chr(code))
    return [] if not text or text.startswith('<') or not known(code) else [int(c, 16) for c in text.split()]


def write(path, what, arrays):
    with open(path, 'w', encoding='ascii') as f:
        f.write('// Written by tools/text/unicode_tables.py; do not edit. %s\n' % what)
        f.write('#include "runtime/text/unicode/unicode_tables.h"\n\nnamespace millrace {\n\n// clang-format off\n')
        for name, values in arrays:
            f.write('const uint32_t %s[] = {\n' % name)
            line = ''
            for word in ('0x%x,' % value for value in values):
                if len(line) + len(word) > 100:
                    f.write(line + '\n')
                    line = ''
                line += word
            f.write(line + '};\nconst int %sCount = %d;\n' % (name, len(values)))
        f.write('// clang-format on\n\n}  // namespace millrace\n')


def main():
    folder = sys.argv[1]
    assert unicode.unidata_version == CLASSES, unicode.unidata_version
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    singles, pairs, composes_behind = [], [], set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))  # jamo V and T
    unstable = set()
    for code in codes:
        parts = decomposition(code)
        if len(parts) == 1:
            singles.append((code, parts[0]))
            unstable.add(code)
        elif parts:
            composes = unicode.normalize('NFC', chr(code)) == chr(code)
            pairs.append((code, parts[0] | (0 if composes else 0x80000000), parts[1]))
            (composes_behind if composes else unstable).add(parts[1] if composes else code)
        if mark_class(code):
            unstable.add(code)
    unstable |= composes_behind

    ranges, last = [], None
    for code in codes:
        category = unicode.category(chr(code))
        flags = LETTER if category[0] == 'L' else NUMBER if category[0] == 'N' else SPACE if code in WHITE_SPACE else 0
        if category[0] in 'LM' or category in ('Nd', 'Nl', 'Pc') or code in JOIN_CONTROLS or code in ALPHABETIC_SYMBOLS:
            flags |= WORD
        if code in unstable:
            flags |= UNSTABLE
        if flags != last:
            ranges.append(code << 4 | flags)
        last = flags
    marks, last = [], 0
    for code in codes:
        if mark_class(code) != last:
            last = mark_class(code)
            marks.append(code << 8 | last)
    write(os.path.join(folder, 'unicode_ranges.cc'), 'Unicode 16.', [('kClassRanges', ranges)])
    write(os.path.join(folder, 'nfc_pairs.cc'), 'Unicode 9.', [('kNfcPairs', [v for pair in pairs for v in pair])])
    write(os.path.join(folder, 'nfc_marks.cc'), 'Unicode 9.', [('kNfcMarks', marks), ('kNfcSingles', [v for pair in singles for v in pair])])


if __name__ == '__main__':
    main()
