// What a rank is doing, in a form that another thread may read at any moment,
// also while the rank hangs.
//
// Host     The thread that works stores one word per op that it issues (relaxed: no order is
//          promised between marks and memory), and the name of the phase around it.
// Device   Where work is captured, a replayed step passes no host code: the device itself writes
//          words into host memory, in stream order, around each collective and where the compute
//          stream comes to another unit. They are reset when a run begins, so that (run, word) only
//          grows. Progress Any of these changing. On a host device an op that computes also makes
//          progress by using CPU time (one product of a large model may take minutes); a rank that
//          waits in a collective uses CPU, too, but makes none.
#pragma once

#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "runtime/base/profiler_ranges.h"
#include "runtime/base/stream_id.h"

namespace millrace {

enum class RunPhase : uint8_t {
  kCaller,  // outside the library: what an embedder does between calls is its own business
  kSettingUp,
  kInitializing,
  kLoading,
  kTraining,
  kReadingTokens,
  kEvaluating,
  kGenerating,
  kSaving,
  kSyncing,
  kTidying,
  kReporting,
  kEnding,
};
inline constexpr int kPhases = 13;
std::string_view Name(RunPhase phase);  // "saving a checkpoint"

// How long a phase may pass without progress. In work that was issued and is not
// done it is always kLimit.
enum class Patience : uint8_t {
  kLimit,  // execution.watchdog_s: the phase marks each of its parts
  // Ten minutes, as host transports wait for a peer: a part cannot be cut (a sync of a file).
  kLong,
  kUnlimited,  // not ours to judge: the caller's time, or a terminal that somebody has paused
};
Patience PatienceOf(RunPhase phase);

// What a run of a schedule is. Runs are numbered from 1 in the same order on every rank.
struct RunInfo {
  int32_t plan = 0;  // of the engine's list
  bool prologue = false;
  int64_t step = 0;  // 0-based
  bool operator==(const RunInfo&) const = default;
};

// The ops of a schedule are numbered in the order of issue: entry by entry, op by op.
// Words of the device, one per cache line: the last run begun, the last one
// done, then one per stream.
inline constexpr int kRunBegunWord = 0, kRunDoneWord = 1, kFirstStreamWord = 2;
inline constexpr int kDeviceWords = kFirstStreamWord + kStreams;
inline constexpr int64_t kDeviceWordStride = 64;
enum class StreamMark : uint8_t { kNone, kInCollective, kPassedCollective, kComputing };
constexpr uint64_t StreamWord(int64_t index, StreamMark mark) {
  return static_cast<uint64_t>(index) << 2 | static_cast<uint64_t>(mark);
}

// All marks at one moment. Plain bytes: published to other processes as they are.
struct ProgressReading {
  uint64_t changes = 0;  // phases entered and left, ticks
  RunPhase phase = RunPhase::kCaller;
  int64_t detail = 0;  // the step, batch or token of the phase; 0: none
  uint64_t runs = 0;   // issued, the one being issued included
  bool issuing = false;
  bool in_collective = false;  // issuing: the op at `index` is one
  int64_t index = 0;           // of the op that was issued last
  RunInfo host_run;            // of the run that was issued last
  bool has_device = false;
  uint64_t device[kDeviceWords] = {};
  RunInfo device_run;  // of run device[kRunBegunWord]
  int64_t cpu_ms = 0;  // of the working thread

  // Work was issued that is not done.
  bool busy() const {
    return issuing || (has_device && device[kRunBegunWord] != device[kRunDoneWord]) ||
           (has_device && device[kRunDoneWord] != runs);
  }
  // Equal as long as no progress is made.
  bool SameAs(const ProgressReading& other) const;
};

class ProgressMarks {
 public:
  // Made by the thread that works: its CPU time is what counts.
  ProgressMarks();
  ProgressMarks(const ProgressMarks&) = delete;
  ProgressMarks& operator=(const ProgressMarks&) = delete;

  // The working thread.
  uint64_t BeginRun(const RunInfo& run);  // its number
  void At(int64_t index, bool collective) {
    host_.store(static_cast<uint64_t>(index) << 2 | static_cast<uint64_t>(collective) << 1 | 1,
                std::memory_order_relaxed);
  }
  void EndIssue() {
    host_.store(host_.load(std::memory_order_relaxed) & ~uint64_t{1}, std::memory_order_relaxed);
  }
  void Tick() {
    changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void Enter(RunPhase phase, int64_t detail);
  RunPhase phase() const { return static_cast<RunPhase>(phase_.load(std::memory_order_relaxed)); }
  int64_t detail() const { return detail_.load(std::memory_order_relaxed); }

  // Words that the device writes; null when they go.
  void AttachDevice(const std::byte* words);

  // Any thread.
  ProgressReading Read() const;

 private:
  static constexpr uint64_t kKeptRuns = 16;  // more than are ever in flight

  std::atomic<uint64_t> changes_ = 0, host_ = 0, runs_ = 0;
  std::atomic<uint8_t> phase_ = 0;
  std::atomic<int64_t> detail_ = 0;
  std::atomic<uint64_t> kept_[kKeptRuns] = {};  // packed RunInfo, by number % kKeptRuns
  mutable std::mutex device_mutex_;
  const std::byte* device_ = nullptr;
  clockid_t cpu_clock_;
};

// The phase of a scope; the one around it is in force again after it. Null marks: nothing is
// marked. Where a profiler listens, also a range with the phase's name.
class PhaseScope {
 public:
  PhaseScope(ProgressMarks* marks, RunPhase phase, int64_t detail = 0,
             ProfilerRanges* ranges = nullptr)
      : marks_(marks), range_(ranges, [&] { return Name(phase); }) {
    if (marks_ == nullptr) return;
    outer_ = marks_->phase();
    outer_detail_ = marks_->detail();
    marks_->Enter(phase, detail);
  }
  ~PhaseScope() {
    if (marks_ != nullptr) marks_->Enter(outer_, outer_detail_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  ProgressMarks* marks_;
  const RangeScope range_;
  RunPhase outer_ = RunPhase::kCaller;
  int64_t outer_detail_ = 0;
};

}  // namespace millrace
