// Files that a run leaves: metrics.jsonl, a line per step, and summary.json at the end. Rank 0 writes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/api/training.h"
#include "runtime/data/jsonl_appender.h"

namespace millrace {

class MetricsFile {
 public:
  // Drops lines of steps after `resume_step` that a run left which did not save them.
  MetricsFile(const std::string& run_dir, int64_t resume_step);
  void Append(const StepReport& report);
  void AppendEval(int64_t step, double loss);
  void Sync();

 private:
  JsonlAppender lines_;
};

// Most resident bytes of this process so far (VmHWM); 0 where the system does not say.
int64_t PeakResidentBytes();

// "0x3f9d70a4": the bits of the float32 nearest to `value`.
std::string Float32Bits(double value);

struct Summary {
  TrainResult result;
  std::string param_hash, optimizer_hash, plan_hash;
  StepCounters counters;           // of rank 0
  int64_t arena_bytes = 0;         // allocated
  int64_t resident_before_arena = 0, resident_peak = 0;
  int64_t world = 1;
  double seconds = 0;
  double median_step_ms = 0, tokens_per_s = 0;
  std::map<std::string, double> predicted;  // of the plan: bytes, counts, times by name
};
void WriteSummary(const std::string& run_dir, const Summary& summary);

}  // namespace millrace
