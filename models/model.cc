#include "models/model.h"

#include <numeric>
#include <utility>

#include "models/gpt2.h"
#include "models/llama.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

void Validate(const ModelOptions& o) {
  const std::pair<const char*, int64_t> sizes[] = {{"model.layers", o.layers},
                                                   {"model.d_model", o.d_model},
                                                   {"model.heads", o.heads},
                                                   {"model.kv_heads", o.kv_heads},
                                                   {"model.head_dim", o.head_dim},
                                                   {"model.ffn", o.ffn},
                                                   {"model.vocab", o.vocab},
                                                   {"model.seq_len", o.seq_len},
                                                   {"sharding.blocks_per_unit", o.blocks_per_unit}};
  for (const auto& [key, value] : sizes)
    MR_REQUIRE(ErrorCode::kConfig, value >= 1, "{} is {}; at least 1 is needed", key, value);
  if (!o.blocks_of_units.empty()) {
    for (const int64_t blocks : o.blocks_of_units)
      MR_REQUIRE(ErrorCode::kConfig, blocks >= 1,
                 "sharding.blocks_per_unit has a unit of {} blocks; at least 1 is needed", blocks);
    const int64_t sum =
        std::accumulate(o.blocks_of_units.begin(), o.blocks_of_units.end(), int64_t{0});
    MR_REQUIRE(ErrorCode::kConfig, sum == o.layers,
               "sharding.blocks_per_unit lists {} blocks, model.layers is {}; they must be equal",
               sum, o.layers);
  }
  MR_REQUIRE(ErrorCode::kConfig, o.heads % o.kv_heads == 0,
             "model.kv_heads is {}; it must divide model.heads, which is {}", o.kv_heads, o.heads);
  MR_REQUIRE(ErrorCode::kConfig, o.init_std >= 0, "model.init_std is {}; it may not be negative",
             o.init_std);
  MR_REQUIRE(ErrorCode::kConfig, o.norm_eps > 0, "model.norm_eps is {}; it must be positive",
             o.norm_eps);
  if (o.family == ModelFamily::kGpt2) {
    MR_REQUIRE(ErrorCode::kConfig, o.activation == ActivationKind::kGelu,
               "model.activation is swiglu; model.family gpt2 has gelu");
  } else {
    MR_REQUIRE(ErrorCode::kConfig, o.activation == ActivationKind::kSwiglu,
               "model.activation is gelu; model.family llama has swiglu");
    MR_REQUIRE(ErrorCode::kConfig, o.head_dim % 2 == 0,
               "model.head_dim is {}; rotary positions need an even number", o.head_dim);
    MR_REQUIRE(ErrorCode::kConfig, o.rope_theta > 0, "model.rope_theta is {}; it must be positive",
               o.rope_theta);
  }
}

}  // namespace

std::unique_ptr<Model> MakeModel(const ModelOptions& options) {
  Validate(options);
  switch (options.family) {
    case ModelFamily::kGpt2:
      return std::make_unique<Gpt2>(options);
    case ModelFamily::kLlama:
      return std::make_unique<Llama>(options);
  }
  MR_FAIL("unknown model family");
}

}  // namespace millrace
