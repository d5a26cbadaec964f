"""libmillrace_cuda.so as it is built and installed: what it needs and exports, and who hears where there is no GPU."""
import ctypes
import json
import os
import re
import tempfile
import unittest

from cuda_library_test import ON_CUDA, TINY, TWO_RANKS, Options, package_says, sized
from library_test import LIBRARY, run

BUILT = 'runtime/api/c/libmillrace_cuda.so'


class BuiltCudaLibrary(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))
        self.addCleanup(folder.cleanup)
        self.tree = os.path.join(folder.name, 'tree')
        run('tools/lib/package/library.sh', self.tree, LIBRARY, BUILT)
        self.file = self.tree + '/lib/libmillrace_cuda.so'

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

    def test_ranks_of_both_libraries_refuse_together(self):
        said = package_says(os.path.join(self.tree, 'package'), BUILT, 'BACKENDS = "cpu", "cuda"' + TWO_RANKS).splitlines()
        self.assertEqual(len(said), 2, said)
        for line in said:
            self.assertRegex(line, '^InvalidArgument: rank 0 has the library for the CPU, and rank 1 that for CUDA')


if __name__ == '__main__':
    unittest.main(verbosity=2)
