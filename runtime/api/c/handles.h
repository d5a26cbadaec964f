// The handles of millrace.h that are runs (handle_table.h), and which call a run serves. Any
// thread.
#pragma once

#include <memory>
#include <mutex>

#include "runtime/api/backend.h"
#include "runtime/api/c/linked_run.h"

namespace millrace {

mr_run* NewHandle(std::shared_ptr<LinkedRun> run);

// The run behind a handle, for one call of the program: its log speaks on this thread meanwhile,
// and its device is the thread's.
// CallError MR_INVALID_ARGUMENT: none, or no more. MR_BUSY: it serves another call.
class RunCall {
 public:
  enum class Purpose { kUse, kDestroy };
  // To destroy a run, a device that has failed may not be there to be used.
  explicit RunCall(mr_run* handle, Purpose purpose = Purpose::kUse);
  LinkedRun* operator->() const { return run_.get(); }
  LinkedRun& operator*() const { return *run_; }
  const std::shared_ptr<LinkedRun>& shared() const { return run_; }
  // The handle is no run any more.
  void Destroy();

 private:
  struct Entry;
  friend mr_run* NewHandle(std::shared_ptr<LinkedRun> run);

  mr_run* handle_;
  std::shared_ptr<Entry> entry_;
  std::unique_lock<std::mutex> lock_;  // after what it locks
  DeviceOfThread thread_;              // what a run destroys is on its device
  std::shared_ptr<LinkedRun> run_;
  std::unique_ptr<CallbackLog::Call> call_;  // ends first
};

}  // namespace millrace
