"""The Python package by itself, in an environment with nothing else in it: all of wheel_*.py beside this file. With --mpi a rank of mpirun."""
import sys
import unittest

import millrace
from wheel_arrow import Arrow
from wheel_calls import Calls
from wheel_case import CONFIG, rows
from wheel_inference import Inference
from wheel_ranks import Ranks
from wheel_tensors import Tensors

__all__ = ['Arrow', 'Calls', 'Inference', 'Ranks', 'Tensors']


def main():
    if sys.argv[1:] != ['--mpi']:
        unittest.main()
    with millrace.Run(CONFIG, mpi=True) as run:  # under mpirun
        run.init()
        rank = run.info.rank
        if run.gather(bytes([rank]) * rank) != [bytes([other]) * other for other in range(run.info.world)]:
            sys.exit('ranks did not gather what they had to say')
        sys.stdout.write('%d %d %r\n' % (rank, run.info.world, [run.step(rows(step, rank)).loss for step in range(3)][2]))


if __name__ == '__main__':
    main()
