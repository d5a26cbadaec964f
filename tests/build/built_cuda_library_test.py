"""libmillrace_cuda.so as it is built and installed: what it needs and exports, and who hears where there is no GPU."""
import ctypes
import glob
import json
import os
import re
import tempfile
import unittest

from cuda_library_test import ON_CUDA, TINY, TWO_RANKS, Options, package_says, sized
from library_test import LIBRARY, NOT_IMPORTED, imported, run

BUILT = 'runtime/api/c/libmillrace_cuda.so'
LOADER = '/lib64/ld-linux-x86-64.so.2'


class BuiltCudaLibrary(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))
        cls.addClassCleanup(folder.cleanup)
        cls.tree = os.path.join(folder.name, 'tree')
        run('tools/lib/package/library.sh', cls.tree, LIBRARY, BUILT, timeout=300)
        cls.file = cls.tree + '/lib/libmillrace_cuda.so'

    def test_it_needs_glibc_and_three_libraries_of_nvidias(self):
        dynamic = run('readelf', '-d', self.file)
        needed = {re.sub(r'\.so.*', '', name) for name in re.findall(r'\(NEEDED\).*\[(.*)\]', dynamic)}
        self.assertEqual(needed - {'ld-linux-x86-64'}, {'libc', 'libm', 'libgcc_s', 'libcublasLt', 'libcudnn', 'libnccl'})
        self.assertEqual(re.search(r'\(SONAME\).*\[(.*)\]', dynamic).group(1), 'libmillrace_cuda.so')
        self.assertNotIn('TEXTREL', dynamic)
        versions = run('readelf', '-V', '--wide', self.file)
        newest = max(tuple(map(int, found.split('.'))) for found in re.findall(r'Name: GLIBC_([0-9.]+)', versions))
        self.assertLessEqual(newest, (2, 34))

    def test_it_exports_one_name(self):
        names = [line.split()[-2:] for line in run('nm', '-D', '--defined-only', self.file).splitlines()]
        self.assertEqual([name for kind, name in names if kind.isupper()], ['mr_cuda_table'])

    def test_it_handles_no_signal_and_ends_no_process(self):
        names = imported(self.file)
        self.assertIn('malloc', names)
        self.assertEqual(names & NOT_IMPORTED, set())

    def test_the_other_one_opens_it_and_says_what_it_says(self):
        library = ctypes.CDLL(self.tree + '/lib/libmillrace.so')
        library.mr_run_create.restype = library.mr_init.restype = ctypes.c_void_p
        library.mr_status_message.restype = library.mr_status_pointer.restype = ctypes.c_char_p
        library.mr_status_message.argtypes = library.mr_status_pointer.argtypes = library.mr_status_code.argtypes = [ctypes.c_void_p]

        def create(config):
            made = ctypes.c_void_p()
            failed = library.mr_run_create(ctypes.byref(sized(Options, config=config)), ctypes.byref(made))
            return made, failed and (library.mr_status_code(failed), library.mr_status_pointer(failed), library.mr_status_message(failed))

        here, failed = create(json.dumps(TINY).encode())
        self.assertIsNone(failed)
        wrong = json.dumps({'execution': {'backend': 'cuda'}, 'model': {'layers': -1}}).encode()
        self.assertEqual(create(wrong)[1][:2], (2, b'/model/layers'))
        _, failed = create(ON_CUDA)
        if failed is not None:  # no GPU here
            self.assertEqual(failed[0], 77)
            self.assertRegex(failed[2], b'no GPU is visible here: ')
        self.assertIsNone(library.mr_init(here))

    def test_its_wheel_serves_a_python_that_has_no_cuda(self):
        wheel, = os.listdir(self.tree + '/wheel')
        self.assertRegex(wheel, r'^millrace-0\.1\.\d+\+cu\d+-py3-none-manylinux_2_\d+_x86_64\.whl$')
        venv = os.path.join(self.tree, 'venv')
        run('python3', '-m', 'venv', venv)
        run(venv + '/bin/python', '-m', 'pip', 'install', '--quiet', '--no-index', '--disable-pip-version-check', self.tree + '/wheel/' + wheel,
            home=self.tree, timeout=300)
        packages, = glob.glob(venv + '/lib/python3*/site-packages')
        self.assertTrue(os.path.exists(packages + '/millrace/libmillrace_cuda.so'))
        # CUDA's libraries may be here: a loader without its cache looks in the system's own folders alone, and where the library was built.
        self.hide_where_it_was_built(packages + '/millrace/libmillrace_cuda.so')
        bare = [LOADER, '--inhibit-cache', '--library-path', '/lib/x86_64-linux-gnu', os.path.realpath(venv + '/bin/python'), '-B']
        environment = {'PYTHONPATH': packages, 'PYTHONNOUSERSITE': '1'}
        said = run(*bare, os.path.abspath('tools/examples/python/train.py'), env=environment)
        self.assertRegex(said, r'^Millrace 0\.1\.\d+: loss 4\.\d+ -> [01]\.\d+ in 60 steps\n')
        said = run(*bare, '-c', 'import millrace\ntry:\n    millrace.Run(%r)\nexcept millrace.Unsupported as error:\n    print(error)' % ON_CUDA.decode(),
                   env=environment)
        self.assertRegex(said, r'libmillrace_cuda\.so.*lib(cublasLt|cudnn|nccl)\.so\.\d+: cannot open shared object file')

    def hide_where_it_was_built(self, library):
        folders = ''.join(re.findall(r'\((?:RUNPATH|RPATH)\).*\[(.*)\]', run('readelf', '-d', library))).encode()
        if folders:
            with open(library, 'rb') as f:
                content = f.read()
            self.assertEqual(content.count(folders + b'\0'), 1)
            with open(library, 'wb') as f:
                f.write(content.replace(folders + b'\0', b'/' + b'x' * (len(folders) - 1) + b'\0'))

    def test_ranks_of_both_libraries_refuse_together(self):
        said = package_says(os.path.join(self.tree, 'package'), BUILT, 'BACKENDS = "cpu", "cuda"' + TWO_RANKS).splitlines()
        self.assertEqual(len(said), 2, said)
        for line in said:
            self.assertRegex(line, '^InvalidArgument: rank 0 has the library for the CPU, and rank 1 that for CUDA')


if __name__ == '__main__':
    unittest.main(verbosity=2)
