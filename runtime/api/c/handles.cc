#include "runtime/api/c/handles.h"

#include <exception>
#include <map>
#include <utility>

#include "runtime/api/c/run_functions.h"
#include "runtime/api/c/status.h"

namespace millrace {

struct RunCall::Entry {
  std::shared_ptr<LinkedRun> run;
  std::mutex one_call;
};

class HandleTable {
 public:
  using Entry = RunCall::Entry;

  mr_run* Add(std::shared_ptr<Entry> entry) {
    const std::lock_guard lock(mutex_);
    const HandleKind kind = CudaBuiltIn() ? HandleKind::kCuda : HandleKind::kCpu;
    const uintptr_t number = ++last_ << kHandleKindBits | static_cast<uintptr_t>(kind);
    auto* const handle = reinterpret_cast<mr_run*>(number);
    entries_[handle] = std::move(entry);
    return handle;
  }
  std::shared_ptr<Entry> Find(mr_run* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(handle);
    return found == entries_.end() ? nullptr : found->second;
  }
  void Remove(mr_run* handle) {
    const std::lock_guard lock(mutex_);
    entries_.erase(handle);
  }

  static HandleTable& Get() {
    static HandleTable* const table = new HandleTable;  // threads may outlive static objects
    return *table;
  }

 private:
  std::mutex mutex_;
  std::map<mr_run*, std::shared_ptr<Entry>> entries_;
  uintptr_t last_ = 0;
};

mr_run* NewHandle(std::shared_ptr<LinkedRun> run) {
  auto entry = std::make_shared<RunCall::Entry>();
  entry->run = std::move(run);
  return HandleTable::Get().Add(std::move(entry));
}

RunCall::RunCall(mr_run* handle, Purpose purpose) : handle_(handle) {
  if (handle == nullptr) throw CallError(MR_INVALID_ARGUMENT, "run is NULL");
  entry_ = HandleTable::Get().Find(handle);
  if (!entry_)
    throw CallError(MR_INVALID_ARGUMENT, "run is no handle, or was destroyed before this call");
  lock_ = std::unique_lock(entry_->one_call, std::try_to_lock);
  if (!lock_)
    throw CallError(MR_BUSY,
                    "the run serves another call, of another thread or around this callback");
  if (!entry_->run) throw CallError(MR_INVALID_ARGUMENT, "run was destroyed while this call began");
  run_ = entry_->run;
  try {
    thread_.Use(run_->session().device());
  } catch (const std::exception&) {
    if (purpose == Purpose::kUse) throw;
  }
  call_ = std::make_unique<CallbackLog::Call>(run_->log());
}

void RunCall::Destroy() {
  run_->log().Detach();
  call_.reset();
  HandleTable::Get().Remove(handle_);
  entry_->run.reset();
  run_.reset();
}

}  // namespace millrace
