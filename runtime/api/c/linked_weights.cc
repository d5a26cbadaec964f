// Weights of a linked run, in and out.
#include <fmt/core.h>

#include <exception>
#include <optional>

#include "comm/agree.h"
#include "runtime/api/c/linked_run.h"
#include "runtime/api/c/status.h"
#include "runtime/base/error.h"
#include "runtime/data/run_lock.h"
#include "runtime/run/checkpoint/run_checkpoint.h"
#include "runtime/run/checkpoint/run_saver.h"
#include "runtime/run/huggingface/exchange.h"
#include "runtime/run/training/training.h"

namespace millrace {
namespace {

void RequireFolder(const char* folder) {
  if (folder == nullptr || *folder == 0)
    throw CallError(MR_INVALID_ARGUMENT, "folder is NULL or empty");
}

}  // namespace

void LinkedRun::WriteWeights(const std::function<void()>& check,
                             const std::function<void()>& write) {
  Agree([&] {
    check();
    RequireUsable();
    RequireStates();
    RequireNothingLent();
  });
  has_weights_ = false;
  std::optional<RankFailure> failure;
  Touch([&] {
    std::exception_ptr own;
    failure = FirstFailure(*meeting_, [&] {
      try {
        AwaitReaders();
        write();
      } catch (...) {
        own = std::current_exception();
        throw;
      }
    });
    if (own) std::rethrow_exception(own);
    if (failure) throw failure->error;
  });
  has_weights_ = true;
  ++version_;
}

void LinkedRun::Init() {
  WriteWeights([] {}, [&] { session_->InitWeights(); });
  step_ = samples_ = 0;
}

void LinkedRun::Import(const char* folder) {
  WriteWeights([&] { RequireFolder(folder); },
               [&] {
                 LoadHuggingFaceWeights(session_->engine(), session_->run().spec,
                                        loaded_.config.model, folder);
               });
  step_ = samples_ = 0;
}

std::string LinkedRun::FolderOr(const std::string& folder) const {
  return folder.empty() ? loaded_.config.run.dir : folder;
}

void LinkedRun::Load(const std::string& run_dir) {
  ResumedRun loaded;
  WriteWeights([] {},
               [&] {
                 loaded =
                     LoadForUse(session_->engine(), FolderOr(run_dir), "", IdentityOf(*session_));
               });
  step_ = loaded.progress.step;
  samples_ = loaded.progress.samples;
  for (const std::string& change : loaded.changes)
    log_.Write(LogLevel::kWarning, LogScope::kAllRanks, change);
}

void LinkedRun::Save(const std::string& run_dir) {
  Agree([&] {
    RequireWeights();
    RequireStates();
  });
  const std::string folder = FolderOr(run_dir);
  Touch([&] {
    std::optional<RunLock> lock;
    OnLeader(*meeting_, [&] { lock.emplace(folder); });
    if (lock && !lock->warning().empty()) log_.Warning(LogScope::kAllRanks, lock->warning());
    const std::string saved =
        SaveRun(session_->engine(), folder, {.step = step_, .samples = samples_},
                IdentityOf(*session_), loaded_.config.checkpoint.keep);
    log_.Info(LogScope::kAllRanks, fmt::format("saved step {} to {}", step_, saved));
  });
}

void LinkedRun::Export(const char* folder) {
  Agree([&] {
    RequireFolder(folder);
    RequireWeights();
    RequireStates();
  });
  Touch([&] {
    ExportHuggingFace(session_->engine(), session_->run().spec, loaded_.config.model, folder);
  });
}

}  // namespace millrace
