"""libmillrace.so as those meet it who link it: an install tree, compilers, CMake and Python outside Bazel, an environment with nothing in it."""
import glob
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

LIBRARY, HEADER = 'runtime/api/c/libmillrace.so', 'runtime/api/c/millrace.h'
BASELINE = 'runtime/api/c/abi/millrace-0.1.abi'

# A version that is there is a promise: programs that were linked with it go on. Until 1.0 the promise is a minor version's, which ABIDIFF of
# the first release of a new one begins anew: tests/build/library_test.py --baseline FILE writes it.


def run(*command, **options):
    """Standard output; what failed is shown with what it said."""
    environment = {'PATH': '/usr/bin:/bin', 'HOME': options.pop('home', '/nonexistent'), 'LC_ALL': 'C'}
    environment.update(options.pop('env', {}))
    options.setdefault('timeout', 120)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, **options)
    if done.returncode != 0:
        raise AssertionError('%s: exit code %d\n%s%s' % (' '.join(command), done.returncode, done.stdout.decode(), done.stderr.decode()))
    return done.stdout.decode()


def header_text():
    with open(HEADER, encoding='utf-8') as f:
        return f.read()


def prototypes(text=None):
    """[(result, name, parameters)] of the header."""
    text = re.sub(r'/\*.*?\*/', '', text or header_text(), flags=re.S)
    return re.findall(r'^MR_API ([\w* ]+?[* ])(mr_\w+)\(([^;]*)\);', text, re.M)


def write_abi(path, folder, text):
    """What a header says of types and functions, as abidw has it of a library with the same declarations."""
    with open(os.path.join(folder, 'millrace.h'), 'w', encoding='utf-8') as f:
        f.write(text)
    source = os.path.join(folder, 'declared.c')
    with open(source, 'w', encoding='utf-8') as f:
        f.write('#include "millrace.h"\n#include "millrace_arrow.h"\n#include "millrace_dlpack.h"\n')
        for result, name, parameters in prototypes(text):
            f.write('%s %s(%s) { %s }\n' % (result, name, parameters, '' if result.strip() == 'void' else 'return 0;'))
    library = os.path.join(folder, 'libmillrace.so')
    run('gcc', '-std=c11', '-g', '-shared', '-fPIC', '-w', '-Wl,-soname,libmillrace.so', '-I', folder, '-I', os.path.dirname(HEADER),
        source, '-o', library)
    run('abidw', '--no-corpus-path', '--no-comp-dir-path', '--no-show-locs', '--out-file', path, library)


def imported(library):
    """Names of the functions and variables that it takes from other libraries."""
    return {line.split()[-1].split('@')[0] for line in run('nm', '-D', '--undefined-only', library).splitlines()}


# To handle signals, and to end the process at once.
NOT_IMPORTED = {
    'bsd_signal', 'sigaction', 'sigaltstack', 'sigignore', 'siginterrupt', 'signal', 'signalfd', 'sigset', 'sigvec', 'ssignal', '__sigaction',
    '__sysv_signal', '_Exit', '_exit', 'quick_exit', 'raise'
}
# What OpenBLAS and the C++ library bring, and our own code does not use: to end the process, to print, the environment.
NOT_USED = NOT_IMPORTED | {
    'abort', 'exit', '__printf_chk', 'perror', 'printf', 'putchar', 'puts', 'stderr', 'stdout', '_ZSt4cerr', '_ZSt4clog', '_ZSt4cout',
    'environ', 'getenv', 'putenv', 'secure_getenv', 'setenv', 'unsetenv'
}


class Library(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR'))
        made = os.path.join(cls.folder, 'made')
        run('tools/lib/package/library.sh', made, LIBRARY)
        cls.tree = os.path.join(cls.folder, 'elsewhere')  # it can lie anywhere
        os.rename(made, cls.tree)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def compiled(self, name, text, compiler, *arguments):
        source = self.at(name)
        with open(source, 'w', encoding='utf-8') as f:
            f.write(text)
        program = source + '.out'
        run(compiler, *arguments, '-Wall', '-Wextra', '-Wpedantic', '-Werror', '-I', self.tree + '/include', source, '-L', self.tree + '/lib',
            '-lmillrace', '-Wl,-rpath,' + self.tree + '/lib', '-o', program)
        return program

    def test_what_is_exported_is_what_the_header_declares(self):
        for library in (LIBRARY, self.tree + '/lib/libmillrace.so'):
            listed = run('nm', '-D', '--defined-only', library)
            exported = {line.split()[-1].split('@')[0] for line in listed.splitlines()}
            self.assertEqual(exported - {'MILLRACE_0.1'}, {name for _, name, _ in prototypes()})
        self.assertGreater(len(prototypes()), 20)

    def test_it_handles_no_signal_and_ends_no_process(self):
        for library in (LIBRARY, self.tree + '/lib/libmillrace.so'):
            names = imported(library)
            self.assertIn('malloc', names)
            self.assertEqual(names & NOT_IMPORTED, set())

    def test_our_own_code_neither_exits_nor_prints_nor_reads_the_environment(self):
        called, objects = {}, glob.glob('**/_objs/**/*.o', recursive=True)
        self.assertGreater(len(objects), 100)
        for line in run('nm', '-A', '--undefined-only', *objects).splitlines():
            path, _, name = line.rpartition(' ')
            if name in NOT_USED:
                called.setdefault(os.path.basename(path.partition(':')[0]).partition('.')[0], set()).add(name)
        self.assertEqual(called, {
            'blas_core': {'getenv', 'setenv', 'unsetenv'},  # OPENBLAS_CORETYPE
            'bundled': {'abort', 'stderr', 'stdout'},  # arc4random without random numbers, as glibc's; and fmt's own, which nobody calls
        })

    def test_it_needs_glibc_and_is_found_by_its_series(self):
        dynamic = run('readelf', '-d', self.tree + '/lib/libmillrace.so')
        needed = set(re.findall(r'\(NEEDED\).*\[(.*)\]', dynamic))
        self.assertLessEqual(needed, {'libc.so.6', 'libm.so.6', 'libgcc_s.so.1', 'ld-linux-x86-64.so.2'})
        version = [re.search(r'#define MR_VERSION_%s (\d+)' % part, header_text()).group(1) for part in ('MAJOR', 'MINOR', 'PATCH')]
        soname = 'libmillrace.so.' + '.'.join(version[:2])
        self.assertEqual(re.search(r'\(SONAME\).*\[(.*)\]', dynamic).group(1), soname)
        self.assertNotIn('TEXTREL', dynamic)
        self.assertEqual(os.path.realpath(self.tree + '/lib/' + soname), os.path.realpath(self.tree + '/lib/libmillrace.so'))
        versions = run('readelf', '-V', '--wide', self.tree + '/lib/libmillrace.so')
        newest = max(tuple(map(int, found.split('.'))) for found in re.findall(r'Name: GLIBC_([0-9.]+)', versions))
        self.assertLessEqual(newest, (2, 34))

    def test_loading_it_starts_no_thread_and_says_nothing(self):
        said = run(sys.executable, '-c', 'import ctypes, os, sys\nctypes.CDLL(sys.argv[1])\nprint(len(os.listdir("/proc/self/task")))',
                   self.tree + '/lib/libmillrace.so')
        self.assertEqual(said, '1\n')

    def test_the_headers_are_c11_and_cpp(self):
        headers = ''.join('#include <%s>\n' % name for name in ('millrace.h', 'millrace_arrow.h', 'millrace_dlpack.h'))
        both = headers + headers + 'int main(void) { return mr_version() == 0; }\n'
        for compiler, standard, name in (('gcc', 'c11', 'c.c'), ('gcc', 'c99', 'd.c'), ('g++', 'c++11', 'c.cc'), ('g++', 'c++20', 'd.cc')):
            run(self.compiled(name, both, compiler, '-std=' + standard))
        only = '#include <millrace.h>\nstruct DLManagedTensorVersioned* none;\nint main(void) { return none != 0; }\n'
        run(self.compiled('only.c', only, 'gcc', '-std=c11'))

    def test_the_interface_is_that_of_its_series(self):
        now, text = self.at('now.abi'), header_text()
        write_abi(now, self.folder, text)
        run('abidiff', BASELINE, now)
        for was, changed in (('int64_t sequences;', 'int32_t rows;\n  int32_t sequences;'), ('mr_init(mr_run* run)', 'mr_init(mr_run* run, int how)'),
                             ('MR_API mr_status* mr_init(mr_run* run);', '')):
            self.assertIn(was, text)
            write_abi(now, self.folder, text.replace(was, changed))
            with self.assertRaisesRegex(AssertionError, 'abidiff.*exit code'):
                run('abidiff', BASELINE, now)

    def test_the_program_of_the_readme_runs(self):
        with open('runtime/api/c/README.md', encoding='utf-8') as f:
            program = re.search(r'```c\n(.*?)```', f.read(), re.S).group(1)
        self.assertLessEqual(program.count('\n'), 40)
        said = run(self.compiled('readme.c', program, 'gcc', '-std=c11'), cwd=self.folder)
        first, behind = re.fullmatch(r'loss ([0-9.]+) behind ([0-9]+) steps\n', said).groups()
        self.assertLess(float(first), 4.6)  # ln 100 before the first step
        self.assertEqual(behind, '20')
        self.assertTrue(os.path.isdir(self.at('runs/linked/checkpoints/step_00000020')))
        again = re.fullmatch(r'loss ([0-9.]+) behind 40 steps\n', run(self.at('readme.c.out'), cwd=self.folder))
        self.assertLess(float(again.group(1)), float(first))

    def test_a_c_program_reads_answers_and_trains_on_arrows_rows(self):
        with open('tests/build/consumer.c', encoding='utf-8') as f:
            said = run(self.compiled('consumer.c', f.read(), 'gcc', '-std=c11'))
        self.assertRegex(said, r'^7 tokens, loss [0-9.]+\n$')

    def example(self, name):
        copy = self.at('example_' + name)
        shutil.copytree('tools/examples/' + name, copy)
        return copy

    def test_a_c_program_is_built_by_make_and_pkg_config(self):
        folder = self.example('c')
        said = run('make', '-s', '-C', folder, 'PKG_CONFIG_PATH=' + self.tree + '/lib/pkgconfig', 'check')
        self.assertRegex(said, r'^Millrace 0\.1\.\d+: loss 4\.\d+ -> [01]\.\d+ in 60 steps\nlm_head.weight \[61, 32\] of version 61: ')

    def test_a_cpp_program_is_built_by_cmake(self):
        folder, build = self.example('cmake'), self.at('build')
        run('cmake', '-S', folder, '-B', build, '-DCMAKE_PREFIX_PATH=' + self.tree)
        run('cmake', '--build', build)
        self.assertRegex(run(build + '/train'), r'^Millrace 0\.1\.\d+, 2 ranks: loss 4\.\d+ -> [01]\.\d+ in 60 steps\n$')
        # Another series is not taken for this one.
        script = self.at('versions.cmake')
        with open(script, 'w', encoding='utf-8') as f:
            for wanted, taken in (('0.1', 'TRUE'), ('0.1.0', 'TRUE'), ('0.2', 'FALSE'), ('0.0', 'FALSE'), ('1.0', 'FALSE')):
                major, minor = wanted.split('.')[:2]
                f.write('set(PACKAGE_FIND_VERSION %s)\nset(PACKAGE_FIND_VERSION_MAJOR %s)\nset(PACKAGE_FIND_VERSION_MINOR %s)\n'
                        'include(%s/lib/cmake/millrace/millrace-config-version.cmake)\n'
                        'if(NOT PACKAGE_VERSION_COMPATIBLE STREQUAL %s)\n  message(FATAL_ERROR "%s")\nendif()\n' %
                        (wanted, major, minor, self.tree, taken, wanted))
        run('cmake', '-P', script)

    def test_the_wheel_serves_a_python_that_has_nothing_else(self):
        wheel, = os.listdir(self.tree + '/wheel')
        self.assertRegex(wheel, r'^millrace-0\.1\.\d+-py3-none-manylinux_2_\d+_x86_64\.whl$')
        python = self.at('venv/bin/python')
        run('python3', '-m', 'venv', self.at('venv'))
        run(python, '-m', 'pip', 'install', '--quiet', '--no-index', '--disable-pip-version-check', self.tree + '/wheel/' + wheel, home=self.folder)
        said = run(python, os.path.abspath('tools/examples/python/train.py'), cwd=self.folder)
        self.assertRegex(said, r'^Millrace 0\.1\.\d+: loss 4\.\d+ -> [01]\.\d+ in 60 steps\nlm_head.weight \(61, 32\) of version 61 begins ')
        said = run('mpirun', '-n', '2', '--oversubscribe', '--allow-run-as-root', python, '-B', os.path.abspath('tests/build/wheel_cases.py'), '--mpi',
                   cwd=self.folder, home=self.folder)
        self.assertEqual(sorted(line.split()[:2] for line in said.splitlines()), [['0', '2'], ['1', '2']])
        self.assertEqual(len({line.split()[2] for line in said.splitlines()}), 1)
        run(python, '-B', os.path.abspath('tests/build/wheel_cases.py'), cwd=self.folder, env={'WHEEL_DATA': os.getcwd()})

    def require_manual(self, folder):
        """Of each function: the one page, without a warning, with every word of the header's comments."""
        names = ['millrace', *(name for _, name, _ in prototypes())]
        self.assertEqual(sorted(os.listdir(folder + '/man3')), sorted(name + '.3.gz' for name in names))
        self.assertEqual({os.path.realpath(folder + '/man3/%s.3.gz' % name) for name in names}, {os.path.realpath(folder) + '/man3/millrace.3.gz'})
        with gzip.open(folder + '/man3/mr_step.3.gz') as f:
            source = f.read()

        def words(text):
            return ' '.join(word for word in text.split() if word not in ('*', '/*', '*/'))  # which begin lines of comments

        def shown(source):
            done = subprocess.run(['groff', '-man', '-ww', '-Tascii', '-P-cbou'], input=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env={'PATH': '/usr/bin:/bin'}, timeout=60, check=True)
            self.assertEqual(done.stderr, b'')
            return words(done.stdout.decode())

        page, comments = shown(source), re.findall(r'/\*(.*?)\*/', re.sub(r'^#.*', '', header_text(), flags=re.M), re.S)
        self.assertGreater(len(comments), 100)
        for comment in comments:
            self.assertIn(words(comment), page)
        for prototype in prototypes():
            self.assertIn(words('{}{}({});'.format(*prototype)), page)
        self.assertRegex(page, r'^MILLRACE\(3\) Library Functions MILLRACE\(3\) NAME millrace - training runs behind a C interface SYNOPSIS')
        # What the header says otherwise, the page does, too: troff's own characters come through.
        other = self.at('other.h')
        with open(other, 'w', encoding='utf-8') as f:
            f.write(header_text().replace('/* One training step: ', "/* .One \\training 'step': ", 1))
        for epoch in ('0', '86400'):  # into a folder that has one, too
            run(sys.executable, '-B', 'tools/lib/package/manual.py', 'library', other, '0.1.0', self.at('man'), env={'SOURCE_DATE_EPOCH': epoch})
        with open(self.at('man/man3/mr_step.3'), 'rb') as f:
            again = shown(f.read())
        self.assertIn(".One \\training 'step': forward", again)
        self.assertIn(' 1970-01-02 ', again)

    def test_debian_packages_bring_what_links_and_what_runs(self):
        run('tools/lib/package/debs.sh', self.at('debs'), '0.1.0', '--library', self.tree)
        self.assertEqual(sorted(os.listdir(self.at('debs'))), ['libmillrace-dev_0.1.0_amd64.deb', 'libmillrace0.1_0.1.0_amd64.deb'])
        for package in os.listdir(self.at('debs')):
            run('dpkg-deb', '-x', self.at('debs', package), self.at('root'))
        control = run('dpkg-deb', '-f', self.at('debs/libmillrace-dev_0.1.0_amd64.deb'))
        self.assertIn('Depends: libmillrace0.1 (= 0.1.0)\n', control)
        control = run('dpkg-deb', '-f', self.at('debs/libmillrace0.1_0.1.0_amd64.deb'))
        self.assertRegex(control, r'Depends: libc6 \(>= 2\.\d+\), libgcc-s1\n')
        self.require_manual(self.at('root/usr/share/man'))
        # Apart, as they are when nobody links: the runtime's files alone serve a program that is there.
        usr = self.at('root/usr')
        flags = run('pkg-config', '--cflags', '--libs', 'millrace', env={'PKG_CONFIG_PATH': usr + '/lib/pkgconfig'}).split()
        run('gcc', '-std=c11', 'tools/examples/c/train.c', *flags, '-o', self.at('train'))
        os.remove(usr + '/lib/libmillrace.so')
        self.assertRegex(run(self.at('train'), env={'LD_LIBRARY_PATH': usr + '/lib'}), '^Millrace 0.1')

    def test_the_schema_is_the_configurations(self):
        with open(self.tree + '/share/millrace/config.schema.json', encoding='utf-8') as f:
            text = f.read()
        self.assertIn('"micro_batch"', text)
        self.assertIn('draft-07', text)


if __name__ == '__main__':
    if sys.argv[1:2] == ['--baseline']:
        with tempfile.TemporaryDirectory() as scratch:
            write_abi(sys.argv[2], scratch, header_text())
    else:
        unittest.main(verbosity=2)
