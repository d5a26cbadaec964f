"""tools/examples/grpo with the wheel of the built library and nothing else: grpo_cases.py runs there."""
import os
import shutil
import tempfile
import unittest

from library_test import LIBRARY, run


class Grpo(unittest.TestCase):

    def test_in_an_environment_of_its_own(self):
        folder = tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR'))
        self.addCleanup(shutil.rmtree, folder)
        run('tools/lib/package/library.sh', folder + '/tree', LIBRARY, timeout=800)
        wheel, = os.listdir(folder + '/tree/wheel')
        # A wheel is an archive of what is to be imported; library_test.py has pip install it. -S: no packages besides.
        run('python3', '-m', 'zipfile', '-e', folder + '/tree/wheel/' + wheel, folder + '/alone')
        run('python3', '-S', '-B', os.path.abspath('tests/build/grpo_cases.py'), cwd=folder, timeout=800, env={'PYTHONPATH': folder + '/alone'})


if __name__ == '__main__':
    unittest.main(verbosity=2)
