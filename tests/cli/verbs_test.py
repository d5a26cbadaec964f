"""The verbs beside train: eval, inspect, doctor, and what all that use a checkpoint ask of it."""
import json
import math
import os
import struct
import unittest

from harness import BAD_CHECKPOINT, BAD_CONFIG, BAD_DATA, OK, CliTest, flip_bit, millrace, program, raw_mpirun, truncate


class Verbs(CliTest):

    def test_doctor_finds_a_host_that_can_train_and_names_what_a_package_misses(self):
        # The program without CUDA is not the best for a host with a GPU, and doctor says so.
        gpu_host = os.path.exists('/proc/driver/nvidia/version')
        outcome = self.expect(program('doctor'), BAD_CONFIG if gpu_host else OK)
        self.expect_line(outcome.out, r'^  MPI +Open MPI v4\.\d+.*libmpi\.so\.40.*compiled with Open MPI 4\.')
        self.expect_line(outcome.out, r'^  BLAS +OpenBLAS \d')
        self.expect_line(outcome.out, r'^  arithmetic +products of known result are right, f32 and bf16')
        self.expect_line(outcome.out, 'there is a GPU driver, but this program was built without CUDA' if gpu_host else
                         '^training works here, on the CPU$')
        found = json.loads(program('doctor', '--json').out)
        self.assertEqual((found['ok'], found['backend'], found['gpus']), (not gpu_host, 'cpu', []))
        self.assertIn('host', [finding['name'] for finding in found['findings']])
        # What bin/millrace of a package tells it.
        missing = program('doctor', '--json', env={'MILLRACE_MISSING_LIBRARIES': 'libnccl.so.2, libcudnn.so.9'})
        cuda = [finding for finding in json.loads(missing.out)['findings'] if finding['name'] == 'CUDA'][0]
        self.assertIn('libnccl.so.2, libcudnn.so.9', cuda['trouble'])
        self.assertIn('pip install nvidia-nccl-cu13', cuda['fix'])
        self.assertEqual(missing.code, BAD_CONFIG if cuda['serious'] else OK)

    def test_doctor_names_an_mpirun_of_another_mpi(self):
        folder = self.path('bin')
        os.mkdir(folder)
        with open(os.path.join(folder, 'mpirun'), 'w') as f:
            f.write('#!/bin/sh\necho "mpirun (Open MPI) 5.0.3"\n')
        os.chmod(os.path.join(folder, 'mpirun'), 0o755)
        outcome = self.expect(program('doctor', env={'PATH': folder + ':' + os.environ['PATH']}), BAD_CONFIG)
        self.expect_line(outcome.out, 'mpirun is of another Open MPI than the library')
        self.expect_line(outcome.out, '^training on the best that this host has cannot work')

    def test_ranks_that_a_verb_does_not_have_are_refused(self):
        config, _ = self.config()
        for verb, world in (('plan', r'\. --world N is for N ranks'), ('config', r'\. --world N is for N ranks'), ('export', '')):
            words = {'config': ['config', 'show', config], 'export': ['export', config, '--to', self.path('to')]}.get(verb, [verb, config])
            outcome = self.expect(millrace(*words, ranks=2), BAD_CONFIG)
            self.assertEqual(outcome.out, '')
            self.expect_line(outcome.err, r'^millrace: %s runs on 1 rank of this host; .*no --hostfile%s$' % (verb, world))
        self.assertIn('Subcommands:', self.expect(millrace('--help', ranks=2), OK).out)

    def test_words_in_the_wrong_place_are_told_where_they_belong(self):
        config, _ = self.config()
        for option in (['-n', '2'], ['-n2'], ['--hostfile', 'hosts']):
            self.expect_line(self.expect(program('train', *option, config), BAD_CONFIG).err, '^-n N and .* stand ahead of the verb: millrace -n N train')
        self.expect_line(self.expect(program('launch', 'train', config), BAD_CONFIG).err, '^what launch starts stands behind "--": ')
        self.assertNotIn('stand', self.expect(program('train', '--nonsense', config), BAD_CONFIG).err)

    def test_eval_is_the_held_out_loss_of_the_checkpoint(self):
        config, run = self.trained_afresh(train={'eval_every': 3})
        expected = {line['step']: line['eval_loss'] for line in run.metrics() if 'eval_loss' in line}
        result = json.loads(self.expect(millrace('eval', config, ranks=2), OK).out)
        self.assertEqual(result['step'], 6)
        self.assertEqual(result['eval_loss'], expected[6])
        self.assertAlmostEqual(result['perplexity'], math.exp(result['eval_loss']), delta=1e-9 * result['perplexity'])
        # Twice the batches for one rank: the same windows.
        alone = json.loads(self.expect(millrace('eval', config, '--set', 'data.eval_batches=4'), OK).out)
        self.assertAlmostEqual(alone['eval_loss'], expected[6], delta=1e-5)
        older = json.loads(self.expect(millrace('eval', config, '--checkpoint', run.checkpoint(4)), OK).out)
        self.assertEqual(older['step'], 4)
        self.assertNotEqual(older['eval_loss'], alone['eval_loss'])

    def test_a_balanced_gate_is_named_by_eval_and_advice(self):
        for gate in ('balanced', 'router'):
            experts = {'experts': 4, 'top_k': 2, 'ffn': 16, 'gate': gate}
            config, _ = self.config(run=gate, model={'family': 'qwen3_moe', 'moe': experts})
            with open(config) as f:
                content = json.load(f)
            del content['model']['ffn']
            with open(config, 'w') as f:
                json.dump(content, f)
            self.expect(millrace('train', config), OK)
            done = self.expect(millrace('eval', config), OK)
            self.assertEqual(json.loads(done.out).get('gate'), 'balanced' if gate == 'balanced' else None)
            advised = self.expect(millrace('plan', config, '--world', '2', '--advise'), OK)
            for said in (done.err, advised.err):
                (self.assertIn if gate == 'balanced' else self.assertNotIn)('model.moe.gate=balanced', said)

    def test_eval_and_generate_need_a_sound_checkpoint(self):
        config, run = self.config()
        for verb in ('eval', 'generate'):
            outcome = self.expect(millrace(verb, config, ranks=2), BAD_CHECKPOINT)
            self.expect_line(outcome.err, '%s holds no usable checkpoint' % run.file('checkpoints'))
        self.expect(millrace('train', config, ranks=2), OK)
        shard = run.checkpoint(6, 'rank_00001.safetensors')
        flip_bit(shard, os.path.getsize(shard) - 9)
        for verb in ('eval', 'generate'):
            outcome = self.expect(millrace(verb, config, ranks=2), BAD_CHECKPOINT)
            self.expect_line(outcome.err, 'checkpoint %s cannot be used: %s' % (run.checkpoint(6), shard))
            self.expect(millrace(verb, config, '--checkpoint', run.checkpoint(4), ranks=2), OK)
        named = self.expect(millrace('eval', config, '--checkpoint', run.path), BAD_CHECKPOINT)
        self.expect_line(named.err, 'checkpoint %s cannot be used: .*; this is the folder of a run: name one of its checkpoints$' % run.path)
        self.assertEqual(run.others(), [])  # looking moves nothing

    def test_inspect_a_checkpoint_and_a_run(self):
        config, run = self.trained_afresh()
        outcome = self.expect(program('inspect', run.checkpoint(6)), OK)
        self.expect_line(outcome.out, '^checkpoint of step 6 by 2 ranks: 2 files, ')
        self.expect_line(outcome.out, '^model: family=llama layers=2 d_model=32 ')
        self.expect_line(outcome.out, '^every checksum matches$')
        value = json.loads(self.expect(program('inspect', '--json', run.checkpoint(6)), OK).out)
        self.assertEqual((value['kind'], value['step'], value['world'], value['adam_t'], value['skipped'], value['samples'], value['sound']),
                         ('checkpoint', 6, 2, 6, 0, 48, True))
        outcome = self.expect(program('inspect', '--json', run.path), OK)
        self.assertEqual([json.loads(line)['step'] for line in outcome.out.splitlines()], [6, 4])

        # Every blob of a rank but its header: the first ten are shown.
        path = run.checkpoint(4, 'rank_00001.safetensors')
        with open(path, 'rb') as f:
            whole = f.read()
        with open(path, 'wb') as f:
            header = 8 + int.from_bytes(whole[:8], 'little')
            f.write(whole[:header] + bytes(byte ^ 1 for byte in whole[header:]))
        for words, prefix in (((), '^'), (('--verify',), '^%s: ' % run.checkpoint(4))):
            outcome = self.expect(program('inspect', *words, run.checkpoint(4)), BAD_CHECKPOINT)
            all_of_them = json.loads(self.expect(program('inspect', *words, '--json', run.checkpoint(4)), BAD_CHECKPOINT).out)['problems']
            self.assertGreater(len(all_of_them), 10)
            self.expect_line(outcome.out, prefix + r'damaged: \S+/rank_00001\.safetensors: blob ".*" .* is damaged: its XXH3-128', count=10)
            self.expect_line(outcome.out, prefix + r'damaged: %d more \(--json lists all\)$' % (len(all_of_them) - 10))
            self.expect_line(outcome.out, 'damaged: ', count=11)
        with open(path, 'wb') as f:
            f.write(whole)

        truncate(run.checkpoint(4, 'rank_00000.safetensors'), 100)
        outcome = self.expect(program('inspect', '--json', run.path), BAD_CHECKPOINT)
        sound, damaged = [json.loads(line) for line in outcome.out.splitlines()]
        self.assertTrue(sound['sound'])
        self.assertFalse(damaged['sound'])
        self.assertIn('rank_00000.safetensors has 100 bytes', damaged['problems'][0])
        os.remove(run.checkpoint(6, 'manifest.json'))
        outcome = self.expect(program('inspect', run.path), BAD_CHECKPOINT)
        self.expect_line(outcome.out, '^damaged: .*%s' % run.checkpoint(6, 'manifest.json'))
        self.expect_line(outcome.out, '^do not use it$', 2)
        self.expect(program('inspect', run.checkpoint(6)), BAD_CHECKPOINT)
        self.expect(program('inspect', self.path('nothing')), BAD_DATA)
        os.makedirs(self.path('empty', 'checkpoints'))
        self.expect(program('inspect', self.path('empty')), BAD_CHECKPOINT)

    def test_inspect_tokens_and_safetensors(self):
        tokens = self.path('tokens.bin')
        with open(tokens, 'wb') as f:
            f.write(struct.pack('<1000H', *range(1000)))
        value = json.loads(self.expect(program('inspect', '--json', tokens), OK).out)
        self.assertEqual((value['kind'], value['tokens']), ('tokens', 1000))
        truncate(tokens, 1999)
        outcome = self.expect(program('inspect', tokens), BAD_DATA)
        self.expect_line(outcome.err, '%s has 1999 bytes' % tokens)

        header = json.dumps({'w': {'dtype': 'F32', 'shape': [2, 3], 'data_offsets': [0, 24]}}).encode()
        tensors = self.path('model.safetensors')
        with open(tensors, 'wb') as f:
            f.write(struct.pack('<Q', len(header)) + header + struct.pack('<6f', *range(6)))
        value = json.loads(self.expect(program('inspect', '--json', tensors), OK).out)
        self.assertEqual(value['tensors'], [{'name': 'w', 'dtype': 'F32', 'shape': [2, 3]}])
        truncate(tensors, 20)
        outcome = self.expect(program('inspect', tensors), BAD_DATA)
        self.expect_line(outcome.err, tensors)

    def test_inspect_of_what_is_neither_says_what_it_found_and_what_it_takes(self):
        takes = r'inspect takes a checkpoint, the folder of a run or of its checkpoints, a file \*\.safetensors, and a file or folder of tokens'
        config, run = self.config()
        for size in (40, 41):  # an even one could be raw tokens
            text = self.path('notes%d.txt' % size)
            with open(text, 'w') as f:
                f.write('Gr\u00fc\u00dfe\t\r\n'.ljust(size - 2, 'x'))
            self.assertEqual(os.path.getsize(text), size)
            outcome = self.expect(program('inspect', text), BAD_DATA)
            self.expect_line(outcome.err, r'%s is no checkpoint: it is a file of text\. %s' % (text, takes))
        os.rename(self.path('notes40.txt'), self.path('bytes.bin'))
        self.assertEqual(json.loads(self.expect(program('inspect', '--json', self.path('bytes.bin')), OK).out)['tokens'], 20)
        self.expect_line(self.expect(program('inspect', config), BAD_DATA).err, r'%s is no checkpoint: it is a file of text' % config)
        ids = self.path('ids')
        with open(ids, 'wb') as f:
            f.write(struct.pack('<3H', *b'abc'))
        self.assertEqual(json.loads(self.expect(program('inspect', '--json', ids), OK).out)['tokens'], 3)
        truncate(ids, 5)
        self.expect_line(self.expect(program('inspect', ids), BAD_DATA).err,
                         r'%s is no checkpoint, and cannot be read as tokens: %s has 5 bytes; raw uint16 tokens need an even number: truncated\?\. %s' % (ids, ids, takes))
        truncate(ids, 0)
        self.expect_line(self.expect(program('inspect', ids), BAD_DATA).err, r'%s is no checkpoint, and cannot be read as tokens: %s is empty\. %s' % (ids, ids, takes))
        os.mkdir(self.path('a_folder'))
        self.expect_line(self.expect(program('inspect', self.path('a_folder')), BAD_DATA).err, r'is no checkpoint, and cannot be read as tokens: the folder .*/a_folder has no \*\.bin file directly in it\. %s' % takes)

    def test_doctor_measures_this_host_for_plan(self):
        config, _ = self.config()
        path = self.path('this_host.json')
        said = self.expect(raw_mpirun(2, 'doctor', '--measure', path), OK).out
        self.expect_line(said, 'GB/s')
        with open(path) as f:
            machine = json.load(f)
        self.assertRegex(machine['measured'], r'^20\d\d-\d\d-\d\d, doctor --measure, 2 ranks$')
        self.assertEqual(len(machine['gemm']['shapes']), 6)
        self.assertRegex(machine['sources']['all'], r'copy [\d.]+ \([\d.]+ to [\d.]+\) GB/s')
        self.assertRegex(machine['sources']['all'], r'64 KiB: gather [\d.e+]+ \([\d.e+]+ to [\d.e+]+\), reduce-scatter')
        text = self.expect(program('plan', config, '--world', '2', '--machine', path, '--set', 'execution.backend=cpu'), OK).out
        self.assertNotIn('at best', text)
        self.expect_line(text, 'doctor --measure, 2 ranks')


if __name__ == '__main__':
    unittest.main(verbosity=2)
