// What a supervisor that is killed with SIGKILL leaves behind, and how the next
// one finds and removes it.
//
// Open MPI keeps the shared memory and the sockets of its ranks in files, and a killed mpirun
// leaves them. Theirs is a folder of the supervisor's, in /dev/shm where there is one, whose path
// run.dir/.launch says. All processes of the run carry that path in their environment, so that
// those that outlive everybody are found.
#pragma once

#include <string>

namespace millrace {

// The environment variable, whose value is the path of the folder.
inline constexpr char kLaunchVariable[] = "MILLRACE_LAUNCH";

class LaunchScratch {
 public:
  // The caller holds the supervisor's lock on run_dir. Kills what an earlier supervisor of this
  // folder left running on this host, and removes its files. Error(kIo): no folder can be made, or
  // a process remains.
  explicit LaunchScratch(const std::string& run_dir);
  ~LaunchScratch();  // removes the folder and the note
  LaunchScratch(const LaunchScratch&) = delete;
  LaunchScratch& operator=(const LaunchScratch&) = delete;

  const std::string& path() const noexcept { return path_; }
  bool found_earlier() const noexcept { return found_earlier_; }  // its supervisor was killed
  void Clear();  // removes what an attempt left in it

 private:
  std::string note_, path_;
  bool found_earlier_ = false;
};

}  // namespace millrace
