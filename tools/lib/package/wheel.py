"""wheel.py LIBRARY VERSION FOLDER [CUDA_LIBRARY]: the wheel of the Python package in runtime/api/python with the library in it, and beside it that for CUDA.

One wheel serves every Python 3.8 or newer: the package speaks to the library by ctypes. Its platform tag is the oldest glibc that the
libraries' symbol versions ask for (PEP 600). With CUDA it is another wheel of the same version, 0.1.0+cu13: of CUDA's own libraries, which are opened
when a run asks for a GPU, those of the machine serve. The same input gives the same bytes.
"""
import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
SOURCES = os.path.join(ROOT, 'runtime/api/python/millrace')


EVERYWHERE = {'libc.so.6', 'libm.so.6', 'libgcc_s.so.1', 'ld-linux-x86-64.so.2'}
OF_CUDA = re.compile(r'lib(cublasLt|cudnn|nccl)\.so\.(\d+)$')


def needed(library):
    dynamic = subprocess.run(['readelf', '-d', library], check=True, stdout=subprocess.PIPE).stdout.decode()
    return set(re.findall(r'\(NEEDED\).*\[(.*)\]', dynamic)) - EVERYWHERE


def newest_glibc(library):
    versions = subprocess.run(['readelf', '-V', '--wide', library], check=True, stdout=subprocess.PIPE).stdout.decode()
    return max(tuple(map(int, found.split('.'))) for found in re.findall(r'Name: GLIBC_([0-9.]+)', versions))


def platform_tag(libraries):
    """manylinux_2_34_x86_64, of libraries that need glibc 2.34 and nothing that glibc, gcc and CUDA do not bring."""
    of_cuda = {name for name in needed(libraries[-1]) if OF_CUDA.match(name)} if len(libraries) > 1 else set()
    more = set().union(*map(needed, libraries)) - of_cuda
    if more:
        sys.exit('wheel: the library needs %s, which not every system has' % ', '.join(sorted(more)))
    return 'manylinux_%d_%d_x86_64' % max(map(newest_glibc, libraries))[:2]


def cuda_version(library):
    """13, of a library that needs libcublasLt.so.13."""
    version, = (found.group(2) for found in map(OF_CUDA.match, needed(library)) if found and found.group(1) == 'cublasLt')
    return version


def build(library, version, folder, cuda_library=None):
    libraries = {'millrace/libmillrace.so': library}
    if cuda_library:
        libraries['millrace/libmillrace_cuda.so'] = cuda_library
        version += '+cu' + cuda_version(cuda_library)
    tag = 'py3-none-' + platform_tag(list(libraries.values()))
    info = 'millrace-%s.dist-info' % version
    files = {}
    for name in sorted(os.listdir(SOURCES)):
        if name.endswith(('.py', '.typed')):
            with open(os.path.join(SOURCES, name), 'rb') as source:
                files['millrace/' + name] = source.read()
    for name, path in libraries.items():
        with open(path, 'rb') as source:
            files[name] = source.read()
    files[info + '/METADATA'] = (
        'Metadata-Version: 2.1\nName: millrace\nVersion: %s\nSummary: Training runtime for transformers, on the CPU%s\n'
        'Requires-Python: >=3.8\n' % (version, ' and on NVIDIA GPUs' if cuda_library else '')).encode()
    files[info + '/WHEEL'] = ('Wheel-Version: 1.0\nGenerator: millrace wheel.py\nRoot-Is-Purelib: false\nTag: %s\n' % tag).encode()
    record = ''
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()
        record += '%s,sha256=%s,%d\n' % (name, digest, len(content))
    files[info + '/RECORD'] = (record + info + '/RECORD,,\n').encode()
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, 'millrace-%s-%s.whl' % (version, tag))
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if name.endswith('.so') else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return path


if __name__ == '__main__':
    print(build(*sys.argv[1:]))
