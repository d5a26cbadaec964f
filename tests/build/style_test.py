"""No line of our C++ and CUDA is longer than 100 columns, but for what lies in raw strings, which are data: clang-format does not set comments.
Nor is one of the pages that users of the tools read, outside of tables, or a comment of tools/test. JSON is parsed and dumped in one source.
The six files that runtime/README.md begins with have less than 250 lines each. What takes a precompiled header of ours says what it depends on.

Looks at the files that git tracks in the checkout that this script lies in, not at copies of Bazel's.
"""
import os
import re
import subprocess
import unittest

COLUMNS = 100
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
RAW_STRING = re.compile(r'R"([^()\s\\]{0,16})\(.*?\)\1"', re.S)


def long_lines(text):
    """[(number, length)]"""
    text = RAW_STRING.sub(lambda match: '\n' * match.group().count('\n'), text)
    return [(i, len(line)) for i, line in enumerate(text.split('\n'), 1) if len(line) > COLUMNS]


class Style(unittest.TestCase):

    def test_what_counts_as_long(self):
        self.assertEqual(long_lines('x' * 100 + '\n' + 'é' * 101 + '\n//' + 'x' * 99), [(2, 101), (3, 101)])
        self.assertEqual(long_lines('f(R"(' + 'x' * 200 + '\n' + 'y' * 200 + ')");\nR"css(\n' + 'z")"' * 50 + ')css";'), [])
        self.assertEqual(long_lines('f(R"(a\nb)");\n' + 'x' * 101), [(3, 101)])

    def test_precompiled_headers_of_ours_are_dependencies(self):
        with open(os.path.join(ROOT, '.bazelrc'), encoding='utf-8') as f:
            flags = re.findall(r'-include,([^,\s]+)(\S*)', f.read())
        self.assertGreater(len(flags), 4)  # it did look
        for header, rest in flags:
            if not header.startswith('third_party/'):  # those have other projects' headers alone
                self.assertIn('-fpch-deps', rest.split(','), header)

    def test_no_line_is_longer_than_100_columns(self):
        listed = subprocess.run(['git', '-C', ROOT, 'ls-files', '-z', '*.cc', '*.h', '*.cu', '*.cuh'], stdout=subprocess.PIPE, check=True)
        names = listed.stdout.decode().split('\0')[:-1]
        self.assertGreater(len(names), 500)  # it did look
        found = []
        for name in names:
            if os.path.exists(os.path.join(ROOT, name)):
                with open(os.path.join(ROOT, name), encoding='utf-8') as f:
                    found += ['%s:%d: %d columns' % (name, line, length) for line, length in long_lines(f.read())]
        self.assertEqual(found, [], '\n'.join(found))

    def test_what_users_of_the_tools_read_has_100_columns(self):
        for name, counts in (('README.md', lambda line: not line.startswith('|')), ('tools/README.md', lambda line: not line.startswith('|')),
                             ('tools/lib/package/README.md', lambda line: not line.startswith('|')),
                             ('tools/test', lambda line: line.lstrip().startswith('#'))):
            with open(os.path.join(ROOT, name), encoding='utf-8') as f:
                lines = [line for line in f.read().split('\n') if counts(line)]
            self.assertGreater(len(lines), 20, name)
            self.assertEqual([line for line in lines if len(line) > COLUMNS], [], name)

    def test_the_six_files_to_read_are_short(self):
        with open(os.path.join(ROOT, 'runtime/README.md'), encoding='utf-8') as f:
            named = re.findall(r'^[1-6]\. `([a-z_/]+\.h)`', f.read(), re.M)
        self.assertEqual(len(named), 6)
        for name in named:
            with open(os.path.join(ROOT, 'runtime', name), encoding='utf-8') as f:
                self.assertLess(len(f.readlines()), 250, name)

    def test_json_is_parsed_and_dumped_in_one_source(self):
        # runtime/base/json.h says why. strict_json.cc and json_text.cc look at each token, and have a
        # parser of their own.
        own = {'runtime/base/json.cc', 'runtime/data/strict_json.cc', 'runtime/config/json_text.cc'}
        listed = subprocess.run(['git', '-C', ROOT, 'ls-files', '-z', '*.cc', '*.h'], stdout=subprocess.PIPE, check=True)
        found = []
        for name in listed.stdout.decode().split('\0')[:-1]:
            if name.startswith('tests/') or name in own or not os.path.exists(os.path.join(ROOT, name)):
                continue
            with open(os.path.join(ROOT, name), encoding='utf-8') as f:
                found += [name for line in f if re.search(r'\.dump\(|json::(sax_)?parse\(|json::accept\(', line, re.I)]
        self.assertEqual(found, [])


if __name__ == '__main__':
    unittest.main(verbosity=2)
