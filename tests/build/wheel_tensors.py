"""Weights that are lent as tensors, or exported to another process, and who holds them."""
import ast
import ctypes
import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import types
import unittest.mock

import millrace
from wheel_case import WheelCase, rows


class Tensors(WheelCase):

    def test_a_tensor_holds_steps_up_until_it_is_given_back(self):
        name = 'transformer.h.0.mlp.c_fc.weight'  # stored transposed
        self.assertIn(name, self.run_.weight_names)
        tensor = self.run_.borrow(name)
        self.assertEqual((tensor.shape, tensor.strides), ((12, 48), (1, 12)))
        before = tensor.tolist()
        self.assertEqual((len(before), len(before[0])), tensor.shape)
        with self.assertRaises(millrace.BorrowedError):
            self.run_.step(rows())
        capsule = tensor.__dlpack__(max_version=(1, 1))
        self.assertEqual(self.run_.info.lent, 2)
        tensor.release()
        with self.assertRaises(ValueError):
            tensor.tolist()
        self.assertEqual(self.run_.info.lent, 1)
        del capsule  # nobody has taken it
        self.assertEqual(self.run_.info.lent, 0)

        def refuses(_):
            raise RuntimeError('a consumer refuses what it was given, and drops it while it raises')
        with self.assertRaisesRegex(RuntimeError, 'a consumer refuses'):
            with self.run_.borrow(name) as other:
                refuses(other.__dlpack__(max_version=(1, 0)))
        version = self.run_.step(rows()).weight_version
        with self.run_.borrow(name) as after:
            self.assertEqual(after.version, version)
            self.assertNotEqual(after.tolist(), before)
            with self.assertRaisesRegex(BufferError, '1.0'):
                after.__dlpack__()
            with self.assertRaises(BufferError):
                after.__dlpack__(max_version=(1, 0), copy=True)
            self.assertEqual(after.__dlpack_device__(), (1, 0))
        self.assertEqual(self.run_.info.lent, 0)

    def test_a_consumer_of_dlpack_sees_the_bytes(self):
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        tensor = self.run_.borrow('transformer.wte.weight')
        capsule = tensor.__dlpack__(max_version=(1, 0))
        words = ctypes.cast(api.PyCapsule_GetPointer(capsule, b'dltensor_versioned'), ctypes.POINTER(ctypes.c_uint64))
        self.assertEqual(words[0] & 0xffffffff, 1)  # major version
        self.assertEqual(words[3], 1)  # flags: read-only
        values = ctypes.cast(words[4], ctypes.POINTER(ctypes.c_float))
        self.assertEqual([values[i] for i in range(11 * 12)], sum(tensor.tolist(), []))

    def test_numpy_is_given_what_dlpack_shares(self):
        class Shared:
            dtype = 'float32'

            def __init__(self, of):
                self.of, self.made = of, []

            def copy(self):
                return 'a copy'

            def astype(self, dtype):
                return 'as ' + dtype

        numpy = types.ModuleType('numpy')  # the wheel's environment has none
        numpy.from_dlpack, numpy.dtype = Shared, str
        with self.run_.borrow('transformer.ln_f.weight') as tensor, unittest.mock.patch.dict(sys.modules, numpy=numpy):
            self.assertIs(tensor.__array__().of, tensor)
            self.assertIs(tensor.__array__('float32', copy=False).of, tensor)
            self.assertEqual((tensor.__array__(copy=True), tensor.__array__('float64')), ('a copy', 'as float64'))
            with self.assertRaisesRegex(ValueError, 'as float64 it is a copy'):
                tensor.__array__('float64', copy=False)

    def test_a_tensor_outlives_its_run(self):
        tensor = self.run_.borrow('transformer.ln_f.weight')
        self.run_.close()
        self.assertEqual(tensor.tolist(), [1.0] * 12)

    def test_another_process_has_the_weights_of_the_version_that_was_exported(self):
        """The other process reads them; what it says of their bytes is held beside the folder that export() writes."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        ours, theirs = socket.socketpair()
        program = ('import hashlib, socket, sys, millrace.weights\n'
                   'connection = socket.socket(fileno=int(sys.argv[1]))\n'
                   'held = []\n'
                   'for line in sys.stdin:\n'
                   '    if line == "receive\\n":\n'
                   '        held.append(millrace.weights.receive(connection))\n'
                   '    weights = held[int(line) if line.strip().isdigit() else -1]\n'
                   '    sums = {n: [list(weights[n].shape), hashlib.sha256(weights[n].tobytes()).hexdigest()] for n in weights}\n'
                   '    print(weights.version, sums, flush=True)\n')
        other = subprocess.Popen([sys.executable, '-B', '-c', program, str(theirs.fileno())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 pass_fds=[theirs.fileno()], universal_newlines=True)
        theirs.close()
        self.addCleanup(other.wait)
        self.addCleanup(other.stdout.close)
        self.addCleanup(other.stdin.close)

        def asked(word):
            other.stdin.write(word + '\n')
            other.stdin.flush()
            version, sums = other.stdout.readline().split(' ', 1)
            return int(version), ast.literal_eval(sums)

        def exported():
            with self.run_.export_weights() as weights:
                millrace.weights.send(ours, weights)
                return weights.version, json.loads(weights.manifest)

        def of_folder(name):
            self.run_.export(os.path.join(folder.name, name))
            with open(os.path.join(folder.name, name, 'model.safetensors'), 'rb') as f:
                data = f.read()
            length, = struct.unpack('<Q', data[:8])
            tensors = {}
            for name, told in json.loads(data[8:8 + length]).items():
                if name != '__metadata__':
                    begin, end = (8 + length + at for at in told['data_offsets'])
                    tensors[name] = [told['shape'], hashlib.sha256(data[begin:end]).hexdigest()]
            return tensors

        first, manifest = exported()
        self.assertEqual(set(manifest), {'millrace_weights', 'version', 'bytes', 'tensors'})
        before = of_folder('before')
        self.assertEqual(asked('receive'), (first, before))
        self.run_.step(rows())  # nothing is lent
        second, _ = exported()
        self.assertEqual(second, first + 1)
        after = of_folder('after')
        self.assertNotEqual(after, before)
        self.assertEqual(asked('receive'), (second, after))
        self.assertEqual(asked('0'), (first, before))  # what it had is what it was
        with self.run_.released('all'):
            with self.assertRaises(millrace.ReleasedError):
                self.run_.export_weights()
        self.run_.close()
        self.assertEqual(asked('1'), (second, after))  # and outlives the run
        ours.close()
        with self.assertRaises(millrace.InvalidArgument):
            self.run_.export_weights()

    def test_a_manifest_that_leads_outside_the_memory_is_refused(self):
        with self.run_.export_weights() as exported:
            for change in ({'offset': 1 << 40}, {'offset': -256}, {'shape': [1 << 40]}, {'shape': [-1]}):
                told = json.loads(exported.manifest)
                name = next(iter(told['tensors']))
                told['tensors'][name].update(change)
                with self.assertRaisesRegex(ValueError, 'lies outside'):
                    millrace.weights.SharedWeights(exported.fileno(), json.dumps(told))
            self.assertGreater(len(millrace.weights.SharedWeights(exported.fileno(), exported.manifest)), 0)

    def test_exported_weights_are_for_readers_of_dlpack(self):
        with self.run_.export_weights() as exported:
            weights = millrace.weights.SharedWeights(exported.fileno(), exported.manifest)
        with self.assertRaises(ValueError):
            exported.fileno()
        name = 'lm_head.weight' if 'lm_head.weight' in weights else next(iter(weights))
        tensor = weights[name]
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))
        with self.assertRaisesRegex(BufferError, 'DLPack'):
            tensor.__dlpack__()
        capsule = tensor.__dlpack__(max_version=(1, 0))
        self.assertEqual(len(millrace.weights._lent), 1)
        del capsule
        weights.close()
        self.assertEqual(len(millrace.weights._lent), 0)  # given back
        with self.assertRaises(ValueError):
            weights[name]
        self.assertEqual(len(tensor.tobytes()), tensor.nbytes)  # a tensor keeps the memory
