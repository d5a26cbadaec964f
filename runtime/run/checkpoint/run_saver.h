// Saves a run's state into run.dir/checkpoints while training goes on. Reading it back is
// run_checkpoint.h's, the folder format and its crash safety
// runtime/data/checkpoint/checkpoint_writer.h's.
//
// Order    Begin copies the state into host memory: that is all that steps wait for. A thread of
//          each writing rank then hashes, writes and syncs its file. Once every rank's is durable,
//          rank 0's thread publishes the checkpoint and removes older ones. From one stage to the
//          next all ranks go together, by votes that the caller exchanges: threads of saves never
//          communicate.
// Memory   4 bytes for each number of this rank's shards, whatever its dtype (master weights, and
//          two moments of AdamW's or one of Muon's), from the first save that is copied for as long
//          as the saver lives: a run that saves only at its end needs none, nor do ranks that write
//          nothing (replicas but the first).
// Bits     What is saved is the state at Begin, whatever is trained meanwhile.
// Watchdog See background_job.h.
// Errors   Of the disk: SaveOutcome::error, the same on every rank; earlier checkpoints are as they
//          were, and what was written of this one is removed. Thrown: the communicator's and the
//          device's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/device.h"
#include "runtime/base/error.h"
#include "runtime/base/step_scalars.h"
#include "runtime/data/checkpoint/checkpoint_store.h"
#include "runtime/data/checkpoint/checkpoint_writer.h"
#include "runtime/data/file_system.h"
#include "runtime/run/checkpoint/background_job.h"
#include "runtime/run/checkpoint/run_checkpoint.h"

namespace millrace {

// Checkpoints that stay: see Retention. `best` goes by the held-out loss.
struct KeptCheckpoints {
  int64_t newest = 1;
  std::optional<int64_t> every = {};
  int64_t best = 0;
};

struct SaverOptions {
  bool asynchronous = true;  // false: every save is as with SaveMode::kNow
  KeptCheckpoints keep = {};
  FileSystem* files = &FileSystem::Posix();  // used by one thread at a time
  // On rank 0 before a checkpoint gets its name, on the thread of the save: what must not be newer
  // than it on the disk. May throw.
  std::function<void()> before_publishing = {};
};

enum class SaveMode {
  kAsConfigured,
  // By Begin and Settle, on the caller's thread, without a copy: nothing is trained meanwhile.
  kNow,
};

struct SaveOutcome {
  int64_t step = 0;
  std::string folder;          // "" when it failed
  double ms = 0;               // from Begin to its publication, or its failure
  std::optional<Error> error;  // why there is no checkpoint
  std::string warning;         // rank 0: published, but ...
};

class RunSaver {
 public:
  RunSaver(Engine& engine, const std::string& run_dir, RunIdentity identity, SaverOptions options);
  ~RunSaver();  // a save in flight is given up; what it wrote goes with RemoveLeftovers

  bool in_flight() const { return stage_ != Stage::kIdle; }
  int64_t copy_bytes() const { return copy_ ? copy_->bytes() : 0; }  // of host memory that it holds

  // Collective; none is in flight. `eval_loss`: held-out, of this step, where there is one.
  void Begin(const RunProgress& progress, std::optional<double> eval_loss = {},
             SaveMode mode = SaveMode::kAsConfigured);

  // How this rank's part is doing: to be exchanged between all ranks at the same point of the
  // loop, and then told to each, in the order of ranks. Returns the outcome once there is
  // one, on all ranks at once.
  char Vote() const;
  std::optional<SaveOutcome> Hear(std::string_view votes);

  // Collective: waits until none is in flight. The outcome of the one that was.
  std::optional<SaveOutcome> Settle();

 private:
  enum class Stage { kIdle, kWriting, kPublishing, kAbandoning };

  int rank() const;
  bool writes() const;
  void Start(Stage stage, BackgroundJob::Work work);
  void CopyShards();
  void WriteShards(JobMarks& marks);
  void Publish(JobMarks& marks);
  std::string ManifestUser() const;
  void ShareError();

  Engine& engine_;
  const std::string run_dir_;
  const RunIdentity identity_;
  const SaverOptions options_;
  std::unique_ptr<HostBuffer> copy_;

  // Of the save in flight.
  Stage stage_ = Stage::kIdle;
  bool beside_ = false;  // it is copied, and written beside training
  CheckpointPlace place_;
  RunProgress progress_;
  std::optional<double> eval_loss_;
  StepScalars scalars_;
  std::string counters_;  // JSON: of each rank
  std::chrono::steady_clock::time_point begun_;
  SaveOutcome outcome_;
  std::string thinning_;  // why older checkpoints were not removed
  BackgroundJob job_;     // last: its thread uses the others
};

struct SavedRun {
  std::string folder;
  std::string warning;  // rank 0: saved, but ...
};
// Collective: a whole save on the caller's thread, where RequirePlaceFor lets it; keeps the newest
// `keep`. Its error is thrown. Progress for a watchdog: each piece of some MiB that was written.
SavedRun SaveRun(Engine& engine, const std::string& run_dir, const RunProgress& progress,
                 const RunIdentity& identity, int64_t keep,
                 FileSystem& files = FileSystem::Posix());

}  // namespace millrace
