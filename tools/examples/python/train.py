"""A tiny Llama learns to count by a stride that each sequence has of its own: saved, loaded, looked at. Needs the wheel and nothing else;
with numpy 2.1 or torch beside it, weights are shown to them without a copy."""
import sys
import tempfile

import millrace

ROWS, SEQ_LEN, VOCAB, STEPS = 16, 16, 61, 60

CONFIG = {
    'model': {'family': 'llama', 'layers': 2, 'd_model': 32, 'heads': 2, 'ffn': 64, 'seq_len': SEQ_LEN, 'vocab': VOCAB},
    'train': {'steps': STEPS, 'micro_batch': 8, 'accumulate': 2},
    'optimizer': {'lr': 0.01},
}


def batch(step):
    return [[(7 * step + 13 * row + i * (1 + row % 5)) % VOCAB for i in range(SEQ_LEN + 1)] for row in range(ROWS)]


def main():
    with tempfile.TemporaryDirectory() as folder, millrace.Run(CONFIG) as run:
        run.init()
        first = run.step(batch(0)).loss
        for step in range(1, STEPS):
            result = run.step(batch(step))
        print('Millrace %s: loss %.4f -> %.4f in %d steps' % (millrace.__version__, first, result.loss, result.step))

        held_out = run.evaluate(batch(STEPS)).loss
        run.save(folder)
        with millrace.Run(CONFIG) as again:
            again.load(folder)
            assert again.evaluate(batch(STEPS)).loss == held_out

        with run.borrow('lm_head.weight') as weights:
            row = weights.tolist()[VOCAB - 1]
            print('%s %s of version %d begins its last row with %s' % (weights.name, weights.shape, weights.version, row[:3]))
            try:
                run.step(batch(0))
                return 'a step wrote weights that are lent'
            except millrace.BorrowedError:
                pass
        run.step(batch(0))
        try:
            millrace.Run({'optimizer': {'lr': 'fast'}})
            return 'a wrong configuration was taken'
        except millrace.ConfigError as error:
            assert error.pointer == '/optimizer/lr', error.pointer
    return 0 if result.loss < first / 2 else 'the loss has not fallen by half'


if __name__ == '__main__':
    sys.exit(main())
