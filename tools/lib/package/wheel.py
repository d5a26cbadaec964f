"""wheel.py LIBRARY VERSION FOLDER: the wheel of the Python package in runtime/api/python with the library in it.

One wheel serves every Python 3.8 or newer: the package speaks to the library by ctypes. Its platform tag is the oldest glibc that the
library's symbol versions ask for (PEP 600). The same input gives the same bytes.
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


def platform_tag(library):
    """manylinux_2_34_x86_64, of a library that needs glibc 2.34 and nothing that glibc and gcc do not bring."""
    dynamic = subprocess.run(['readelf', '-d', library], check=True, stdout=subprocess.PIPE).stdout.decode()
    needed = set(re.findall(r'\(NEEDED\).*\[(.*)\]', dynamic))
    allowed = {'libc.so.6', 'libm.so.6', 'libgcc_s.so.1', 'ld-linux-x86-64.so.2'}
    if not needed <= allowed:
        sys.exit('wheel: the library needs %s, which not every system has' % ', '.join(sorted(needed - allowed)))
    versions = subprocess.run(['readelf', '-V', '--wide', library], check=True, stdout=subprocess.PIPE).stdout.decode()
    newest = max(tuple(map(int, found.split('.'))) for found in re.findall(r'Name: GLIBC_([0-9.]+)', versions))
    return 'manylinux_%d_%d_x86_64' % newest[:2]


def build(library, version, folder):
    tag = 'py3-none-' + platform_tag(library)
    info = 'millrace-%s.dist-info' % version
    files = {}
    for name in sorted(os.listdir(SOURCES)):
        if name.endswith(('.py', '.typed')):
            with open(os.path.join(SOURCES, name), 'rb') as source:
                files['millrace/' + name] = source.read()
    with open(library, 'rb') as source:
        files['millrace/libmillrace.so'] = source.read()
    files[info + '/METADATA'] = (
        'Metadata-Version: 2.1\nName: millrace\nVersion: %s\nSummary: Training runtime for transformers, on the CPU\n'
        'Requires-Python: >=3.8\n' % version).encode()
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
