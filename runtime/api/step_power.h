// Clocks and energy of the ranks' GPUs while steps are timed, by NVML's counters. A thread of each
// rank reads them every kReadEvery; steps do not wait for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "runtime/base/energy_ticks.h"
#include "runtime/base/nvml.h"

namespace millrace {

inline constexpr std::chrono::milliseconds kReadEvery{20};
// A counter's ticks are up to 0.1 s apart: what shorter steps take it does not tell.
inline constexpr double kLeastSeconds = 0.5;

// Of one GPU, over the timed steps.
struct GpuPower {
  std::vector<double> sm_mhz;  // readings; none: no_clock says why
  std::string no_clock;
  // Mean power; none: no_watts says why.
  std::optional<double> watts;
  std::string no_watts;
  double off = 0;      // share by which watts may be off: when ticks were seen
  double tick_ms = 0;  // between ticks of the counter
  double seconds = 0;  // that the steps took
};

// Of all ranks, each a GPU; what is none has its reason.
struct StepPower {
  std::vector<GpuPower> gpus;  // by rank; none: the ranks run on the CPU
  double tokens = 0;           // of all timed steps and ranks

  // Of the first rank that has no figure: "rank 3: ..."; "" where all have.
  std::string no_clock() const;
  std::string no_watts() const;
  double watts() const;   // of all GPUs
  double joules() const;  // that all GPUs took
};

class PowerMeter {
 public:
  // Of the GPU `uuid` (UuidOf of runtime/api/backend.h); "": of a rank on the CPU.
  explicit PowerMeter(const std::string& uuid, const std::string& library = kNvmlLibrary);
  ~PowerMeter();
  PowerMeter(const PowerMeter&) = delete;
  PowerMeter& operator=(const PowerMeter&) = delete;

  void Begin();
  // Of the time since Begin; none on the CPU.
  std::optional<GpuPower> End();

 private:
  void ReadEnergy();
  void ReadUntilStopped();
  void Stop();

  std::optional<NvmlGpu> gpu_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  // While the thread runs they are its own.
  EnergyTicks ticks_;
  GpuPower power_;
  double begin_ = 0;
};

// Collective over `world`. tokens: of all timed steps and all ranks.
StepPower GatherPower(const std::optional<GpuPower>& own, double tokens, Communicator& world);

// What was not measured is left out, and `not_measured` says why.
nlohmann::ordered_json PowerJson(const StepPower& power);
std::string PowerText(const StepPower& power);  // a line; "" on the CPU

}  // namespace millrace
