// Weights of a linked run, in and out.
#include <fmt/core.h>

#include <exception>
#include <filesystem>
#include <optional>
#include <system_error>

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

// A call whose folder all ranks name alike.
std::string CallOn(const char* call, const char* folder) {
  return fmt::format("{} of {}", call, folder == nullptr ? "NULL" : folder);
}

}  // namespace

void LinkedRun::WriteWeights(const std::string& call, const std::function<void()>& check,
                             const std::function<void()>& find,
                             const std::function<void()>& write) {
  Agree(call, [&] {
    check();
    RequireUsable();
    RequireStates();
    RequireNothingLent();
  });
  Touch(find);
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
  WriteWeights(
      "mr_init", [] {}, [] {}, [&] { session_->InitWeights(); });
  step_ = samples_ = 0;
}

void LinkedRun::Import(const char* folder) {
  WriteWeights(
      CallOn("mr_import", folder), [&] { RequireFolder(folder); }, [] {},
      [&] {
        LoadHuggingFaceWeights(session_->engine(), session_->run().spec, loaded_.config.model,
                               folder);
      });
  step_ = samples_ = 0;
}

std::string LinkedRun::FolderOr(const std::string& folder) const {
  return folder.empty() ? loaded_.config.run.dir : folder;
}

void LinkedRun::Load(const std::string& run_dir) {
  const std::string folder = FolderOr(run_dir);
  const RunIdentity identity = IdentityOf(*session_);
  CheckpointToUse checkpoint;
  ResumedRun loaded;
  WriteWeights(
      CallOn("mr_load", folder.c_str()), [] {},
      [&] { checkpoint = CheckpointForUse(session_->engine(), folder, "", identity); },
      [&] { loaded = LoadVerified(session_->engine(), checkpoint, identity); });
  step_ = loaded.progress.step;
  samples_ = loaded.progress.samples;
  saved_ = {folder, checkpoint.folder, version_, step_};
  for (const auto* const said : {&loaded.warnings, &loaded.changes})
    for (const std::string& text : *said) log_.Write(LogLevel::kWarning, LogScope::kAllRanks, text);
}

void LinkedRun::Save(const std::string& run_dir) {
  const std::string folder = FolderOr(run_dir);
  Agree(CallOn("mr_save", folder.c_str()), [&] {
    RequireWeights();
    RequireStates();
  });
  Touch([&] {
    std::optional<RunLock> lock;
    OnLeader(*meeting_, [&] { lock.emplace(folder); });
    if (lock && !lock->warning().empty()) log_.Warning(LogScope::kAllRanks, lock->warning());
    if (IsSaved(folder)) return;
    const SavedRun saved = SaveRun(session_->engine(), folder, {.step = step_, .samples = samples_},
                                   IdentityOf(*session_), loaded_.config.checkpoint.keep);
    if (!saved.warning.empty()) log_.Warning(LogScope::kAllRanks, saved.warning);
    saved_ = {folder, saved.folder, version_, step_};
    log_.Info(LogScope::kAllRanks, fmt::format("saved step {} to {}", step_, saved.folder));
  });
}

// Whether this very state is what was saved last, there. Collective.
bool LinkedRun::IsSaved(const std::string& folder) {
  std::string there;
  if (meeting_->rank() == 0 && saved_.folder == folder && saved_.version == version_ &&
      saved_.step == step_) {
    std::error_code ignored;
    if (std::filesystem::exists(saved_.checkpoint, ignored)) there = saved_.checkpoint;
  }
  return !meeting_->HostBroadcast(there, 0).empty();
}

void LinkedRun::Export(const char* folder) {
  Agree(CallOn("mr_export", folder), [&] {
    RequireFolder(folder);
    RequireWeights();
    RequireStates();
  });
  Touch([&] {
    ExportHuggingFace(session_->engine(), session_->run().spec, loaded_.config.model, folder);
  });
}

}  // namespace millrace
