#include "runtime/exec/observe/progress.h"

#include <pthread.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int kStepShift = 17;  // the plan has 16 bits of a word

uint64_t Pack(const RunInfo& run) {
  return static_cast<uint64_t>(run.step) << kStepShift | static_cast<uint64_t>(run.plan) << 1 |
         static_cast<uint64_t>(run.prologue);
}
RunInfo Unpack(uint64_t word) {
  return {static_cast<int32_t>(word >> 1 & ((1u << (kStepShift - 1)) - 1)), (word & 1) != 0,
          static_cast<int64_t>(word >> kStepShift)};
}

// A word of host memory that a device writes.
uint64_t Load(const std::byte* word) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(word), __ATOMIC_ACQUIRE);
}

// CPU time that counts as progress: more than what answering a signal or two takes.
constexpr int64_t kCpuStepMs = 50;

}  // namespace

std::string_view Name(RunPhase phase) {
  static constexpr std::string_view kNames[] = {
      "outside the library",
      "setting up",
      "making the initial weights",
      "loading a checkpoint",
      "training",
      "reading tokens",
      "evaluating",
      "generating text",
      "saving a checkpoint",
      "saving a checkpoint: waiting for the disk",
      "saving a checkpoint: publishing it, verifying and removing older ones",
      "writing messages and metrics",
      "ending",
  };
  static_assert(std::size(kNames) == kPhases);
  return kNames[static_cast<size_t>(phase)];
}

Patience PatienceOf(RunPhase phase) {
  switch (phase) {
    case RunPhase::kTraining:
    case RunPhase::kReadingTokens:
    case RunPhase::kEvaluating:
    case RunPhase::kGenerating:
    case RunPhase::kSaving:
      return Patience::kLimit;
    case RunPhase::kSettingUp:
    case RunPhase::kInitializing:
    case RunPhase::kLoading:
    case RunPhase::kSyncing:
    case RunPhase::kTidying:
    case RunPhase::kEnding:
      return Patience::kLong;
    case RunPhase::kCaller:
    case RunPhase::kReporting:
      return Patience::kUnlimited;
  }
  return Patience::kUnlimited;
}

bool ProgressReading::SameAs(const ProgressReading& other) const {
  if (changes != other.changes || runs != other.runs || issuing != other.issuing ||
      index != other.index ||
      !std::equal(std::begin(device), std::end(device), std::begin(other.device)))
    return false;
  const bool computes = issuing && !in_collective && !has_device;
  return !computes || cpu_ms < other.cpu_ms + kCpuStepMs;
}

ProgressMarks::ProgressMarks() {
  MR_CHECK(pthread_getcpuclockid(pthread_self(), &cpu_clock_) == 0, "this thread has no CPU clock");
}

uint64_t ProgressMarks::BeginRun(const RunInfo& run) {
  const uint64_t number = runs_.load(std::memory_order_relaxed) + 1;
  kept_[number % kKeptRuns].store(Pack(run), std::memory_order_relaxed);
  runs_.store(number, std::memory_order_release);
  At(0, false);
  return number;
}

void ProgressMarks::Enter(RunPhase phase, int64_t detail) {
  phase_.store(static_cast<uint8_t>(phase), std::memory_order_relaxed);
  detail_.store(detail, std::memory_order_relaxed);
  Tick();
}

void ProgressMarks::AttachDevice(const std::byte* words) {
  const std::lock_guard lock(device_mutex_);
  device_ = words;
}

ProgressReading ProgressMarks::Read() const {
  ProgressReading reading;
  reading.changes = changes_.load(std::memory_order_relaxed);
  reading.phase = phase();
  reading.detail = detail();
  reading.runs = runs_.load(std::memory_order_acquire);
  const uint64_t host = host_.load(std::memory_order_relaxed);
  reading.issuing = (host & 1) != 0;
  reading.in_collective = (host & 2) != 0;
  reading.index = static_cast<int64_t>(host >> 2);
  reading.host_run = Unpack(kept_[reading.runs % kKeptRuns].load(std::memory_order_relaxed));
  {
    const std::lock_guard lock(device_mutex_);
    reading.has_device = device_ != nullptr;
    for (int i = 0; reading.has_device && i < kDeviceWords; ++i)
      reading.device[i] = Load(device_ + i * kDeviceWordStride);
  }
  if (reading.has_device)
    reading.device_run =
        Unpack(kept_[reading.device[kRunBegunWord] % kKeptRuns].load(std::memory_order_relaxed));
  timespec used = {};
  if (clock_gettime(cpu_clock_, &used) == 0)
    reading.cpu_ms = used.tv_sec * 1000 + used.tv_nsec / 1000000;
  return reading;
}

}  // namespace millrace
