#include "tools/cli/text.h"

#include <fmt/format.h>

#include "runtime/plan/machine.h"
#include "runtime/plan/model_flops.h"

namespace millrace {

std::vector<int32_t> TokensOfText(std::string_view text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string PrintableText(std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    const bool printable = (token >= 0x20 && token < 0x7f) || token == '\n' || token == '\t';
    text += printable ? static_cast<char>(token) : '?';
  }
  return text;
}

MfuBasis MfuBasisOf(const Session& session) {
  const ModelSpec& spec = session.run().spec;
  const Machine machine = ShareOf(FindMachine("cpu"), session.world());
  const double peak = machine.peak(session.run().layout.precision.compute);
  return {TrainFlopsPerToken(spec, AttentionCount::kCausal), TrainFlopsPerToken(spec, AttentionCount::kFull), peak,
          fmt::format("6*N_matmul + 6*L*T*H*D (full attention: 12) per token; peak {:.0f} GFLOP/s per rank, {}", peak / 1e9, machine.title)};
}

}  // namespace millrace
