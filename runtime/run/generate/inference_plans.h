// The plans of inference: "prefill_32" takes up to 32 tokens of one sequence, "decode_8" a token of
// each of up to 8 sequences. Both are the same forward over rows of sequences that keep caches
// (kernels/ops/cache_ops.h); they differ in how many of their last rows they give logits of: one,
// or all.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/cost.h"
#include "runtime/config/config.h"
#include "runtime/plan/graph/semantic_graph.h"
#include "runtime/plan/layout/model_shape.h"

namespace millrace {

inline constexpr std::string_view kInferencePlans = "inference";  // of a PlanSelection

struct InferencePlan {
  std::string name;
  int64_t rows = 0;
  CacheShape cache;
};

std::string PrefillPlan(int64_t rows);
std::string DecodePlan(int64_t rows);

// What stands between this run and inference.exact=true, with the key, its value and what is
// allowed; "": nothing, or it is not asked for. On GPUs training and scoring are under it, too.
std::string WhyNotExact(const Config& config, const ModelShape& model, Backend backend);

// What stands between this run and caches, with the key, its value and what is allowed; "":
// nothing.
std::string WhyNoCaches(const Config& config, const ModelShape& model, Backend backend);

// All that `config.inference` asks for. Error(kConfig) naming key and value: a model or mesh that
// cannot generate with caches, bits that this backend does not give.
std::vector<InferencePlan> InferencePlansOf(const Config& config, const ModelShape& model,
                                            Backend backend);

}  // namespace millrace
