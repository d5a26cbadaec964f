// Tokens per second of a TokenModel, by the number of sequences that it steps at a time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/api/step_power.h"
#include "runtime/infer/token_model.h"
#include "tools/cli/verbs.h"

namespace millrace {

// Steps of `batch` sequences at a time.
struct DecodeRate {
  int64_t batch = 0;
  std::vector<double> step_ms;
  std::vector<double> prefill_ms;     // of a prompt each
  std::optional<GpuPower> own_power;  // of this rank, over the timed steps
};

// For each of `batches`, at most limits().slots, prompts of `prompt` tokens one after the other,
// then warmup and `steps` timed steps: top-p 0.95, log-probabilities of what is drawn. Ranks that
// compute together make the call together. Error(kConfig): a batch, or so many tokens, that the
// model has no room for.
std::vector<DecodeRate> TimeDecode(TokenModel& model, const std::vector<int64_t>& batches,
                                   int64_t prompt, int64_t warmup, int64_t steps,
                                   PowerMeter& meter);

// `power`: of the rates, one by one.
nlohmann::ordered_json DecodeJson(const std::vector<DecodeRate>& rates,
                                  const std::vector<StepPower>& power);
// A line each, and one of its power.
std::string DecodeText(const std::vector<DecodeRate>& rates, const std::vector<StepPower>& power);

// bench --decode, with fresh weights: what a token costs does not depend on which it is.
int BenchDecode(const BenchArguments& arguments, const ConfigArguments& config);

}  // namespace millrace
