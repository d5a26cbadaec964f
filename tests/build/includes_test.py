"""A source includes what it uses of the standard library, fmt and JSON, or a header of ours that it includes does.

g++ does not say so: it reads a precompiled header ahead of every source (third_party/precompiled), which has these, so that a source
which forgets one compiles here, and in a program that embeds it does not. What is looked for is names, in the text without comments and
strings.

Looks at the files that git tracks in the checkout that this script lies in, not at copies of Bazel's.
"""
import os
import re
import subprocess
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

# Each header of third_party/precompiled/headers.h, and what it declares of namespace std.
STANDARD = {
    'algorithm': 'adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count count_if equal equal_range fill fill_n find '
                 'find_if find_if_not for_each generate includes is_sorted lexicographical_compare lower_bound make_heap max max_element '
                 'merge min min_element minmax_element mismatch next_permutation none_of nth_element partial_sort partition pop_heap '
                 'push_heap remove remove_if replace reverse rotate search set_difference set_union sort stable_partition stable_sort '
                 'transform unique upper_bound',
    'array': 'array',
    'cmath': 'ceil copysign cos erf exp expm1 fabs floor fma fmod frexp hypot isfinite isinf isnan ldexp llround log log1p log2 lrint '
             'lround nearbyint nextafter pow rint round signbit sin sqrt tanh trunc',
    'cstring': 'memchr memcmp memcpy memmove memset strchr strcmp strerror strlen strncmp strrchr strstr',
    'functional': 'bind cref function greater hash invoke less not_fn plus ref reference_wrapper',
    'limits': 'numeric_limits',
    'map': 'map multimap',
    'memory': 'addressof allocator enable_shared_from_this make_shared make_unique shared_ptr unique_ptr weak_ptr',
    'numeric': 'accumulate adjacent_difference exclusive_scan gcd inclusive_scan inner_product iota lcm midpoint partial_sum reduce',
    'optional': 'nullopt optional',
    'set': 'multiset set',
    'span': 'span',
    'sstream': 'istringstream ostringstream stringstream',
    'string': 'getline stod stof stoi stol stoll stoul stoull string to_string',
    'string_view': 'string_view',
    'tuple': 'apply forward_as_tuple make_tuple tie tuple',
    'utility': 'as_const declval exchange forward in_place index_sequence make_index_sequence make_pair move pair swap',
    'variant': 'get_if holds_alternative monostate variant visit',
    'vector': 'vector',
}
# Of what also names something else, only calls count.
CALLS = ('algorithm', 'utility')
PATTERNS = {
    header: re.compile(r'std::(?:%s)\b%s' % ('|'.join(names.split()), r'(?=\s*[(<])' if header in CALLS else ''))
    for header, names in STANDARD.items()
}
PATTERNS['cstdint'] = re.compile(r'(?<![\w:])(?:u?int(?:8|16|32|64)_t|uintptr_t|U?INT(?:8|16|32|64)_MAX)\b')
PATTERNS['fmt/core.h'] = re.compile(r'fmt::(?:format|print|runtime)\b')
PATTERNS['nlohmann/json.hpp'] = re.compile(r'nlohmann::')
# Headers that declare them as well, by the standard or by their own words.
INSTEAD = {
    'cmath': {'math.h'},
    'cstdint': {'stdint.h'},
    'fmt/core.h': {'fmt/chrono.h', 'fmt/format.h', 'fmt/ranges.h', 'spdlog/spdlog.h'},
    'nlohmann/json.hpp': {'nlohmann/json_fwd.hpp'},
    'string': {'sstream'},
    'string_view': {'string'},
    'utility': {'algorithm', 'functional', 'map', 'memory', 'optional', 'set', 'string', 'tuple', 'variant', 'vector'},
}
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^()\s\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.S)


class Source:

    def __init__(self, text):
        self.ours = re.findall(r'^#include "([^"]+)"', text, re.M)
        self.others = set(re.findall(r'^#include <([^>]+)>', text, re.M))
        self.code = NOT_CODE.sub('""', text)


def missing(sources):
    """['FILE: <HEADER> for WORD'], of `sources`, which maps files to Sources."""
    found = []
    for name in sorted(sources):
        reached, ahead, have = {name}, [name], set()
        while ahead:
            source = sources[ahead.pop()]
            have |= source.others
            for header in source.ours:
                if header in sources and header not in reached:
                    reached.add(header)
                    ahead.append(header)
        for header, pattern in PATTERNS.items():
            use = pattern.search(sources[name].code)
            if use and header not in have and not INSTEAD.get(header, set()) & have:
                found.append('%s: <%s> for %s' % (name, header, use.group()))
    return found


class Includes(unittest.TestCase):

    def test_what_counts_as_missing(self):
        code = '// std::set\nauto s = "std::map<>"; std::vector<int64_t> v; std::sort(a, b); x = std::max;\n'
        self.assertEqual(missing({'a.cc': Source(code)}),
                         ['a.cc: <algorithm> for std::sort', 'a.cc: <vector> for std::vector', 'a.cc: <cstdint> for int64_t'])
        ours = {'a.cc': Source('#include "b.h"\n#include <algorithm>\n' + code), 'b.h': Source('#include "c.h"\n#include <vector>\n'),
                'c.h': Source('#include "a.cc"\n#include <stdint.h>\n')}
        self.assertEqual(missing(ours), [])
        del ours['c.h']
        self.assertEqual(missing(ours), ['a.cc: <cstdint> for int64_t'])

    def test_every_precompiled_header_is_looked_for(self):
        with open(os.path.join(ROOT, 'third_party/precompiled/headers.h'), encoding='utf-8') as f:
            self.assertEqual(set(re.findall(r'^#include <([^>]+)>', f.read(), re.M)), set(PATTERNS))

    def test_sources_include_what_they_use(self):
        listed = subprocess.run(['git', '-C', ROOT, 'ls-files', '-z', '*.cc', '*.h', '*.cu', '*.cuh', ':!third_party'],
                                stdout=subprocess.PIPE, check=True)
        sources = {}
        for name in listed.stdout.decode().split('\0')[:-1]:
            path = os.path.join(ROOT, name)
            if os.path.exists(path):
                with open(path, encoding='utf-8') as f:
                    sources[name] = Source(f.read())
        self.assertGreater(len(sources), 500)  # it did look
        found = missing(sources)
        self.assertEqual(found, [], '\n'.join(found))


if __name__ == '__main__':
    unittest.main()
