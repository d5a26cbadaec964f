"""libmillrace.so and the library for CUDA that it opens, which stand-ins play: who answers what, and what is said where none can."""
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p

from library_test import HEADER, LIBRARY, header_text, prototypes

FAKES = 'tests/runtime/api/c'
TABLE = 'runtime/api/c/run_functions.h'
OURS = 'libmillrace_cuda.so'
ON_CUDA = json.dumps({'execution': {'backend': 'cuda'}}).encode()
TINY = {'model': {'family': 'gpt2', 'layers': 1, 'd_model': 12, 'heads': 2, 'seq_len': 4, 'vocab': 11}, 'train': {'micro_batch': 3}}
# About no run: the library that the program is linked with answers.
OWN = {'mr_version', 'mr_version_number', 'mr_config_schema'}
OWN_KINDS = ('mr_status_', 'mr_tokenizer_', 'mr_rows_')

Log = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
OnEvent = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p)


class Options(ctypes.Structure):
    _fields_ = [('size', c_size_t), ('config', c_char_p), ('rank', c_int32), ('world', c_int32), ('device', c_int32), ('use_data', c_int32),
                ('user', c_void_p), ('log', Log), ('exchange', c_void_p), ('on_stall', c_void_p), ('use_inference', c_int32), ('mpi', c_void_p)]


class Mpi(ctypes.Structure):
    _fields_ = [('size', c_size_t), ('comm', c_void_p), ('library', c_char_p)]


class Answer(ctypes.Structure):
    _fields_ = [('size', c_size_t), ('request', c_int64), ('sample', c_int64), ('tokens', POINTER(c_int32)), ('logprobs', POINTER(ctypes.c_float)),
                ('count', c_int64), ('finish', c_int32), ('weight_version', ctypes.c_uint64), ('top', c_int64), ('top_tokens', POINTER(c_int32)),
                ('top_logprobs', POINTER(ctypes.c_float))]


class Event(ctypes.Structure):
    _fields_ = [('size', c_size_t), ('request', c_int64), ('sample', c_int64), ('index', c_int64), ('token', c_int32), ('logprob', ctypes.c_float),
                ('finish', c_int32), ('cancel', c_int32), ('weight_version', ctypes.c_uint64), ('text', c_void_p), ('text_bytes', c_int64),
                ('top', c_int64), ('top_tokens', POINTER(c_int32)), ('top_logprobs', POINTER(ctypes.c_float))]


class StreamOptions(ctypes.Structure):
    _fields_ = [('size', c_size_t), ('user', c_void_p), ('on_event', OnEvent), ('tokenizer', c_void_p)]


def sized(kind, **fields):
    return kind(ctypes.sizeof(kind), **fields)


class Opened:
    """A copy of libmillrace.so in a folder of its own, with a stand-in beside it or none."""

    def __init__(self, folder, fake=None):
        os.makedirs(folder)
        self.file = os.path.join(folder, OURS)
        if fake is not None:
            shutil.copy(os.path.join(FAKES, fake), self.file)
        shutil.copy(LIBRARY, folder)
        self.library = ctypes.CDLL(os.path.join(folder, os.path.basename(LIBRARY)))
        for name in ('mr_status_message', 'mr_status_name', 'mr_status_pointer'):
            getattr(self.library, name).restype = c_char_p
        self.library.mr_status_message.argtypes = self.library.mr_status_pointer.argtypes = self.library.mr_status_free.argtypes = [c_void_p]
        self.library.mr_status_code.argtypes = [c_void_p]
        self.library.mr_status_new.restype = c_void_p

    def said(self, status):
        """(code, message, pointer) of a status, which is freed; None of success."""
        if not status:
            return None
        told = (self.library.mr_status_code(status), self.library.mr_status_message(status).decode('utf-8', 'replace'),
                self.library.mr_status_pointer(status).decode())
        self.library.mr_status_free(status)
        return told

    def call(self, name, *arguments):
        function = getattr(self.library, name)
        function.restype = c_void_p
        return self.said(function(*arguments))

    def create(self, config, **options):
        run = c_void_p(1)
        return self.call('mr_run_create', byref(sized(Options, config=config, **options)), byref(run)), run


def package_says(folder, cuda_library, program):
    """What a Python program says that has the package with the libraries in it, of which that for CUDA may be None."""
    shutil.copytree('runtime/api/python/millrace', os.path.join(folder, 'millrace'))
    shutil.copy(LIBRARY, os.path.join(folder, 'millrace'))
    if cuda_library is not None:
        shutil.copy(cuda_library, os.path.join(folder, 'millrace', OURS))
    done = subprocess.run([sys.executable, '-B', '-c', program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
                          env={'PYTHONPATH': folder, 'PATH': '/usr/bin:/bin'}, check=False)
    return done.stdout.decode()


# Of a program that has said what BACKENDS are.
TWO_RANKS = '''
import threading, millrace
gate, parts, said = threading.Barrier(2), [None, None], [None, None]
def rank(number, backend):
    def exchange(own):
        parts[number] = own
        gate.wait(20)
        all = list(parts)
        gate.wait(20)
        return all
    try:
        millrace.Run({'execution': {'backend': backend}, 'model': {'layers': 1, 'd_model': 12, 'heads': 2}}, rank=number, world=2, exchange=exchange)
    except millrace.Error as error:
        said[number] = '%s: %s' % (type(error).__name__, error)
threads = [threading.Thread(target=rank, args=a) for a in enumerate(BACKENDS)]
[t.start() for t in threads]
[t.join() for t in threads]
print(said[0], said[1], sep='\\n')
'''


class CudaLibrary(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def opened(self, name, fake=None):
        return Opened(os.path.join(self.folder, name), fake)

    def created(self, opened, config=ON_CUDA):
        failed, run = opened.create(config)
        self.assertIsNone(failed)
        return run

    def test_the_table_has_every_function_about_a_run(self):
        with open(TABLE, encoding='utf-8') as f:
            rows = re.findall(r'^  decltype\(&::(mr_\w+)\) (mr_\w+);$', f.read(), re.M)
        self.assertEqual([named for named, _ in rows], [member for _, member in rows])
        about_runs = [name for _, name, _ in prototypes() if name not in OWN and not name.startswith(OWN_KINDS)]
        self.assertEqual(sorted(member for _, member in rows), sorted(about_runs))
        for _, name, parameters in prototypes():
            self.assertEqual(bool(re.search(r'\bmr_(run|answers)\b', parameters)), name in about_runs, name)

    def test_every_call_of_a_run_reaches_the_library_that_has_it(self):
        opened = self.opened('one', 'libfake_cuda.so')
        self.created(opened)
        second = self.created(opened)
        asked = 0
        for _, name, parameters in prototypes():
            if not parameters.startswith('mr_run* run') or name in ('mr_generate', 'mr_stream'):
                continue
            arguments, words = [second], [hex(second.value)]
            for place, parameter in enumerate(parameters.split(',')[1:]):
                number = 0x1000 * (place + 1) + 8  # no two alike: an argument in another's place would be seen
                is_pointer = '*' in parameter
                arguments.append((c_void_p if is_pointer else c_int64 if 'int64_t' in parameter else c_int32)(number))
                words.append(hex(number) if is_pointer else str(number))
            if name == 'mr_acquire':
                words.append('0')  # answers freed
            self.assertEqual(opened.call(name, *arguments), (74, 'fake %s %s' % (name, ' '.join(words)), ''))
            asked += 1
        self.assertEqual(asked, len([1 for _, _, parameters in prototypes() if parameters.startswith('mr_run* run')]) - 2)

    def test_runs_of_both_are_not_mixed_up(self):
        opened = self.opened('one', 'libfake_cuda.so')
        one = c_void_p(0x13)  # what the stand-in is going to give out: nobody's yet
        self.assertRegex(opened.call('mr_init', one)[1], 'run is no handle')
        here, there = self.created(opened, json.dumps(TINY).encode()), self.created(opened)
        self.assertEqual(there.value, one.value)
        for _ in range(3):
            self.assertIsNone(opened.call('mr_init', here))
            self.assertEqual(opened.call('mr_init', there)[1], 'fake mr_init 0x13')
        self.assertIsNone(opened.call('mr_run_destroy', here))
        self.assertRegex(opened.call('mr_init', here)[1], 'destroyed')
        self.assertEqual(opened.call('mr_init', there)[1], 'fake mr_init 0x13')
        self.assertRegex(opened.call('mr_init', c_void_p(0x15))[1], 'run is no handle')
        self.assertIsNone(opened.call('mr_run_destroy', None))

    def test_what_it_refuses_and_says_comes_through(self):
        opened = self.opened('one', 'libfake_cuda.so')
        heard = []
        log = Log(lambda user, level, text: heard.append((user, level, text)))
        config = json.dumps({'execution': {'backend': 'cuda'}, 'run': {'dir': 'refuse me'}}).encode()
        failed, run = opened.create(config, user=77, log=log)
        self.assertEqual((failed, run.value), ((74, 'fake mr_run_create', ''), None))
        self.assertEqual(heard, [(77, 2, b'fake')])

    def test_only_who_asks_for_cuda_gets_it(self):
        opened = self.opened('one', 'libfake_cuda.so')
        for backend in ('cpu', 'auto', None):
            config = dict(TINY, **({'execution': {'backend': backend}} if backend else {}))
            run = self.created(opened, json.dumps(config).encode())
            self.assertIsNone(opened.call('mr_run_destroy', run))
        for wrong in (b'{', b'[]', b'null', b'{"execution": 3}', b'{"execution": {"backend": ["cuda"]}}', b'\xff'):
            self.assertEqual(opened.create(wrong)[0][0], 2, wrong)
        self.assertEqual(opened.call('mr_run_create', None, None)[0], 64)
        short = sized(Options, config=ON_CUDA)
        short.size = 8
        self.assertEqual(opened.call('mr_run_create', byref(short), byref(c_void_p()))[0], 64)
        self.assertEqual(self.mapped(opened), 0)

    def mapped(self, opened):
        with open('/proc/self/maps', encoding='utf-8') as f:
            return f.read().count(opened.file)

    def test_answers_are_copied_and_freed_there(self):
        opened = self.opened('one', 'libfake_cuda.so')
        run, answers = self.created(opened), c_void_p(1)
        opened.library.mr_answers_count.restype = c_int64
        self.assertEqual(opened.call('mr_generate', run, c_void_p(0x2000), c_int64(7), byref(answers)), (74, 'fake mr_generate 0x13 0x2000 7', ''))
        self.assertIsNone(answers.value)
        self.assertIsNone(opened.call('mr_generate', run, None, c_int64(3), byref(answers)))
        self.assertEqual(opened.call('mr_acquire', run, None)[1], 'fake mr_acquire 0x13 0x0 1')
        self.assertEqual(opened.library.mr_answers_count(answers), 3)
        for index in range(3):
            answer = sized(Answer)
            self.assertIsNone(opened.call('mr_answers_get', answers, c_int64(index), byref(answer)))
            self.assertEqual((answer.request, answer.sample, answer.finish, answer.weight_version), (index, index + 1, 0, 42))
            self.assertEqual(answer.tokens[:answer.count], [10 * index, 10 * index + 1, 10 * index + 2])
            self.assertEqual(answer.logprobs[:answer.count], [-5 * index, -5 * index - 0.5, -5 * index - 1])
            # Of the first answer none, of the others one and two.
            self.assertEqual((answer.top, bool(answer.top_tokens), bool(answer.top_logprobs)), (index, index > 0, index > 0))
            self.assertEqual([answer.top_tokens[i] for i in range(3 * index)], [100 * index + i for i in range(3 * index)])
            self.assertEqual([answer.top_logprobs[i] for i in range(3 * index)], [-0.25 * i for i in range(3 * index)])
        self.assertRegex(opened.call('mr_answers_get', answers, c_int64(3), byref(sized(Answer)))[1], 'of 3 answers')
        opened.library.mr_answers_free.restype = None
        opened.library.mr_answers_free(answers)

    def test_a_stream_has_the_text_of_a_tokenizer_that_was_opened_here(self):
        opened = self.opened('one', 'libfake_cuda.so')
        run, tokenizer = self.created(opened), c_void_p()
        self.assertIsNone(opened.call('mr_tokenizer_open', b'tests/runtime/text/testdata', byref(tokenizer)))
        seen, tops, cancel, failing = [], [], [], []

        def on_event(user, event):
            event = ctypes.cast(event, POINTER(Event)).contents
            tops.append((event.top, event.top_tokens[0], event.top_logprobs[0]))
            seen.append((user, event.token, ctypes.string_at(event.text, event.text_bytes) if event.text else None))
            event.cancel = len(cancel)
            return opened.library.mr_status_new(3, b'no more') if failing else None

        options = sized(StreamOptions, user=9, on_event=OnEvent(on_event), tokenizer=tokenizer)
        self.assertIsNone(opened.call('mr_stream', run, None, c_int64(0), byref(options)))
        text, length = ctypes.create_string_buffer(64), c_int64()
        self.assertIsNone(opened.call('mr_tokenizer_decode', tokenizer, (c_int32 * 2)(5, 260), c_int64(2), 1, text, c_int64(64), byref(length)))
        self.assertEqual([token for _, token, _ in seen], [5, 260, 0])
        self.assertEqual(tops, [(1, 5, -0.5), (1, 260, -0.5), (1, 0, -0.5)])
        self.assertEqual({user for user, _, _ in seen}, {9})
        # 260 ends with the first byte of a character, which nothing ends.
        self.assertEqual([part for _, _, part in seen], [b'&', b' ', b'\xd0'])
        self.assertEqual(text.raw[:length.value], b'& \xd0')
        cancel.append(1)
        self.assertEqual(opened.call('mr_stream', run, None, c_int64(0), byref(options))[1], 'fake mr_stream cancelled 5')
        failing.append(1)
        self.assertEqual(opened.call('mr_stream', run, None, c_int64(0), byref(options)), (3, 'no more', ''))
        del seen[:], failing[:], cancel[:]
        options.tokenizer = None
        self.assertIsNone(opened.call('mr_stream', run, None, c_int64(0), byref(options)))
        self.assertEqual(seen, [(9, 5, None), (9, 260, None), (9, 0, None)])
        # What is wrong with the options is for the run to say: its peers wait for its word.
        self.assertEqual(opened.call('mr_stream', run, c_void_p(0x2000), c_int64(4), None)[1], 'fake mr_stream 0x13 0x2000 4 0x0')
        options.size = 3
        self.assertEqual(opened.call('mr_stream', run, c_void_p(0x2000), c_int64(4), byref(options)), None)
        self.assertIsNone(opened.call('mr_tokenizer_free', tokenizer))

    def test_where_there_is_none_it_is_named(self):
        opened = self.opened('one')
        failed, run = opened.create(ON_CUDA)
        self.assertEqual((failed[0], failed[2], run.value), (2, '/execution/backend', None))
        self.assertIn(os.path.realpath(opened.file), failed[1])
        self.assertRegex(failed[1], 'no CUDA.*is not there.*can be cpu or auto')
        # It may come later.
        shutil.copy(os.path.join(FAKES, 'libfake_cuda.so'), opened.file)
        self.created(opened)

    def test_it_is_found_behind_a_relative_name_when_the_program_has_gone_elsewhere(self):
        self.opened('one', 'libfake_cuda.so')
        os.mkdir(os.path.join(self.folder, 'two'))
        program = "import ctypes, os, sys\n" \
                  "library = ctypes.CDLL(os.path.join('one', %r))\n" \
                  "os.chdir('two')\n" \
                  "class Options(ctypes.Structure): _fields_ = [('size', ctypes.c_size_t), ('config', ctypes.c_char_p)]\n" \
                  "library.mr_run_create.restype = ctypes.c_void_p\n" \
                  "run = ctypes.c_void_p()\n" \
                  "status = library.mr_run_create(ctypes.byref(Options(16, %r)), ctypes.byref(run))\n" \
                  "library.mr_status_message.restype = ctypes.c_char_p\n" \
                  "print(run.value, library.mr_status_message(ctypes.c_void_p(status)))\n" % (os.path.basename(LIBRARY), ON_CUDA)
        said = subprocess.run([sys.executable, '-c', program], cwd=self.folder, stdout=subprocess.PIPE, timeout=60, check=True).stdout
        self.assertEqual(said.decode(), "19 b''\n")

    def test_mpi_is_begun_once_whichever_library_has_the_run(self):
        opened = self.opened('one', 'libfake_cuda.so')
        library = os.path.abspath(os.path.join(FAKES, 'libfake_mpi.so'))
        mpi = sized(Mpi, library=library.encode())
        options = dict(mpi=ctypes.cast(ctypes.pointer(mpi), c_void_p))
        said, gate = [None] * 4, threading.Barrier(4)

        def create(number):
            gate.wait(20)
            config = ON_CUDA if number % 2 else json.dumps(TINY).encode()
            said[number], run = opened.create(config, **options)
            opened.call('mr_run_destroy', run) if number % 2 == 0 else None

        threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        begun = (74, 'fake mr_run_create, MPI begun 1', '')  # before the stand-in was asked
        self.assertEqual(said, [None, begun, None, begun])
        self.assertEqual(ctypes.CDLL(library).fake_begun(), 1)

    def test_what_cannot_serve_is_named_with_the_reason(self):
        for fake, words in (('libno_cuda.so', 'has no mr_cuda_table'), ('libold_cuda.so', r'of version 0\.2\.3 .*this library of 0\.1\.0 .*one build'),
                            ('libchanged_cuda.so', r'table 99\).*table 3\)')):
            opened = self.opened(fake, fake)
            failed, run = opened.create(ON_CUDA)
            self.assertEqual((failed[0], run.value), (65, None), failed)
            self.assertIn(os.path.realpath(opened.file), failed[1])
            self.assertRegex(failed[1], words)
            self.assertRegex(opened.call('mr_init', c_void_p(0x13))[1], 'run is no handle')
        opened = self.opened('cut')
        with open(opened.file, 'wb') as f:
            f.write(b'\x7fELF')
        failed, _ = opened.create(ON_CUDA)
        self.assertEqual(failed[0], 65)
        self.assertRegex(failed[1], 'file too short.*LD_LIBRARY_PATH')

    def test_two_libraries_have_one_each(self):
        libraries = [self.opened('a', 'libfake_cuda.so'), self.opened('b', 'libother_cuda.so')]
        wrong = []

        def calls(opened, name):
            for _ in range(200):
                run = self.created(opened)
                for _ in range(5):
                    said = opened.call('mr_init', run)
                    if said[1] != '%s mr_init %#x' % (name, run.value):
                        wrong.append(said)

        threads = [threading.Thread(target=calls, args=arguments) for arguments in zip(2 * libraries, 2 * ['fake', 'other'])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def binding(self, fake, program):
        return package_says(os.path.join(self.folder, 'package'), None if fake is None else os.path.join(FAKES, fake), program)

    def test_the_python_package_needs_to_know_nothing_of_it(self):
        said = self.binding('libfake_cuda.so', '''
import millrace
try:
    millrace.Run({'execution': {'backend': 'cuda'}})
except millrace.StorageError as error:
    print(error)
''')
        self.assertRegex(said, r'(?m)^fake mr_run_info 0x13 0x')

    def test_ranks_without_it_refuse_together(self):
        both = self.binding(None, 'BACKENDS = "cuda", "cuda"' + TWO_RANKS).splitlines()
        for line in both:
            self.assertRegex(line, '^ConfigError: execution.backend is cuda, and this library has no CUDA in it: .*is not there')
        self.assertEqual(len(both), 2)
        shutil.rmtree(os.path.join(self.folder, 'package'))
        first, second = self.binding(None, 'BACKENDS = "cpu", "cuda"' + TWO_RANKS).split('\nConfigError', 1)
        self.assertRegex(first, '^ConfigError: rank 1, but not rank 0: 1 problem')
        self.assertRegex(second, '^: execution.backend is cuda, and this library has no CUDA in it')

    def test_it_exports_its_table_and_is_asked_for_by_no_header(self):
        exported = subprocess.run(['nm', '-D', '--defined-only', os.path.join(FAKES, 'libfake_cuda.so')], stdout=subprocess.PIPE, check=True)
        self.assertIn(b' mr_cuda_table\n', exported.stdout)
        self.assertNotIn('mr_cuda_table', header_text())
        self.assertTrue(os.path.exists(HEADER))


if __name__ == '__main__':
    unittest.main(verbosity=2)
