// A rank does not outlive whoever started it (mpirun, its daemon on another host, Slurm's step).
#pragma once

namespace millrace {

// From now on the parent's death ends this process at once, with exit code 72, whatever it is
// doing: without its launcher a rank can neither reach the others' ends nor be stopped, and what is
// saved is saved. Open MPI does this too, a second later, and only while its own threads run.
// Nothing happens where the kernel cannot watch processes (before Linux 5.3).
void DieWithParent();

}  // namespace millrace
