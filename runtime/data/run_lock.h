// One writer per run folder: a lock on <run.dir>/lock, held by rank 0 for as long as the run lives.
//
// Release  The kernel releases it when the process ends, however it ends; the file that a killed
//          holder leaves is no obstacle. A holder that ends in good order removes it, and the
//          folder, too, if it made that and left it empty.
// Hosts    flock works between the hosts of an NFS mount (Linux sends it to the server as a
//          byte-range lock), unless it is mounted with `nolock` or `local_lock`: then only
//          processes of one host see each other. A file system without locks gives an unlocked
//          RunLock, which says so in warning().
#pragma once

#include <chrono>
#include <string>

namespace millrace {

class RunLock {
 public:
  // Makes the folder if need be. Error(kConfig) naming the holder's pid, host and start when
  // another process, or another RunLock of this one, has not let go within `patience`: a run that
  // was just killed takes a moment to die. kIo: the folder or the file cannot be made.
  // `name`: of the file; a supervisor has one of its own, "launch.lock", beside that of the run it
  // supervises. `words`: what errors call the folder and its holder.
  struct Words {
    std::string folder, holder;
  };
  explicit RunLock(const std::string& run_dir,
                   std::chrono::milliseconds patience = std::chrono::seconds(3),
                   const std::string& name = "lock", Words words = {"run.dir", "run"});
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  const std::string& path() const noexcept { return path_; }
  const std::string& warning() const noexcept { return warning_; }  // "": the folder is locked

 private:
  bool TryLock();
  [[noreturn]] void Refuse();
  void Sign();

  std::string folder_, path_, warning_;
  Words words_;
  bool made_folder_ = false;
  int fd_ = -1;
};

}  // namespace millrace
