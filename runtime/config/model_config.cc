#include "runtime/config/model_config.h"

#include <array>

#include "runtime/base/arithmetic.h"

namespace millrace {

const FamilyTraits& TraitsOf(ModelFamily family) {
  static const std::array<FamilyTraits, NamesOf(ModelFamily{}).size()> kTraits = {{
      // gpt2
      {.tied = true, .rope = false, .activation = ActivationKind::kGelu, .one_attention = true},
      // llama
      {},
      // qwen3
      {.qk_norm = true},
      // qwen3_moe
      {.qk_norm = true, .blocks = "E-", .block = 'E'},
      // nemotron_h
      {.rope = false,
       .activation = ActivationKind::kRelu2,
       .one_activation = false,
       .blocks = "ME*-",
       .block = ' ',
       .branch_per_block = true,
       .router = RouterKind::kSigmoid,
       .router_bias = true},
  }};
  return kTraits.at(static_cast<size_t>(family));
}

std::string ModelConfig::Blocks() const {
  return pattern.value_or(std::string(static_cast<size_t>(layers), Traits().block));
}

bool ModelConfig::Has(char branch) const {
  if (branch == '*' && !Traits().branch_per_block) return true;
  if (!pattern && Traits().block == ' ') return true;
  return (Blocks() + (mtp.depth > 0 ? MtpBranches() : "")).find(branch) != std::string::npos;
}

int64_t ModelConfig::Ffn() const {
  if (ffn) return *ffn;
  if (!IsGated(ActivationKind())) return 4 * d_model;
  // Three matrices instead of two: 8/3 keeps GPT-2's parameter count.
  return RoundUp(8 * d_model / 3, 256);
}

}  // namespace millrace
