"""lm-eval's requests to the wheel's model on each rank of mpirun: prints a hash of all results, which is to be that of one rank.

    mpirun -n 2 python3 tests/golden/lm_eval_ranks.py --mpi        # tests/build/lm_eval_wheel.sh compares 1, 2 and 3 ranks
"""
import hashlib
import os
import pathlib
import sys

os.environ.update(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1', TOKENIZERS_PARALLELISM='false')

from lm_eval.api.instance import Instance

import millrace
from millrace.lm_eval import MillraceLM

TOKENIZER = pathlib.Path(__file__).parent.parent / 'runtime/text/testdata/tokenizer.json'
CONFIG = {
    'model': {'family': 'llama', 'layers': 2, 'd_model': 48, 'heads': 4, 'kv_heads': 2, 'ffn': 96, 'seq_len': 64, 'vocab': 697, 'init_std': 0.2},
    'train': {'steps': 1, 'micro_batch': 8, 'accumulate': 1, 'seed': 7},
    'inference': {'slots': 4},
}
WORDS = 'a man is standing on the roof of his house and begins to pull up old shingles'.split()


def asked(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]


def until(stop, **sampling):
    return dict({'until': [stop], 'max_gen_toks': 12}, **sampling)


with millrace.Run(CONFIG, use_inference=True, **({'mpi': True} if sys.argv[1:] == ['--mpi'] else {})) as run:
    run.init()
    lm = MillraceLM(run, TOKENIZER, prefix_token_id=5, eot_token_id=6)
    results = [
        lm.loglikelihood(asked('loglikelihood', [(' '.join(WORDS[:i % 9]), ' ' + WORDS[i % 16]) for i in range(101)]), disable_tqdm=True),
        lm.loglikelihood_rolling(asked('loglikelihood_rolling', [(' '.join(WORDS * (1 + i)),) for i in range(7)])),
        lm.generate_until(asked('generate_until', [(word, until('e')) for word in WORDS[:11]])),
        lm.generate_until(asked('generate_until', [(WORDS[0], until('zz', do_sample=True, temperature=1.0))])),
    ]
    print('results %s' % hashlib.sha256(repr(results).encode()).hexdigest())
