#include "runtime/api/c/handles.h"

#include <exception>
#include <utility>

#include "runtime/api/c/handle_table.h"
#include "runtime/api/c/status.h"

namespace millrace {

struct RunCall::Entry {
  std::shared_ptr<LinkedRun> run;
  std::mutex one_call;
};

mr_run* NewHandle(std::shared_ptr<LinkedRun> run) {
  auto entry = std::make_shared<RunCall::Entry>();
  entry->run = std::move(run);
  return HandleTable<mr_run, RunCall::Entry>::Get().Add(std::move(entry));
}

RunCall::RunCall(mr_run* handle, Purpose purpose) : handle_(handle) {
  entry_ = HandleTable<mr_run, Entry>::Get().Require(handle, "run");
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
  HandleTable<mr_run, Entry>::Get().Remove(handle_);
  entry_->run.reset();
  run_.reset();
}

}  // namespace millrace
