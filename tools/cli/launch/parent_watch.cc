#include "tools/cli/launch/parent_watch.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "runtime/base/error.h"

namespace millrace {

void DieWithParent() {
  // A parent-death signal would not do: it comes when the thread ends that started us, which a
  // launcher's may at any time.
  const pid_t parent = ::getppid();
#ifdef SYS_pidfd_open
  const int watched = static_cast<int>(::syscall(SYS_pidfd_open, parent, 0));
#else
  const int watched = -1;
#endif
  if (watched < 0) return;
  // Signals are for the threads that handle them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([watched, parent] {
    pollfd end = {watched, POLLIN, 0};
    while (::getppid() == parent && ::poll(&end, 1, -1) <= 0) continue;
    ::_exit(ExitCode(ErrorCode::kPeerLost));
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace millrace
