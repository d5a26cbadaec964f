#include "runtime/infer/token_model.h"

#include "runtime/base/error.h"

namespace millrace {

void TokenModel::Decode(std::span<const DecodeRow> rows, std::span<SampledToken> sampled) {
  MR_CHECK_EQ(rows.size(), sampled.size(), "rows and sampled tokens");
  std::vector<SampledToken*> drawn;
  for (SampledToken& token : sampled) drawn.push_back(&token);
  Launch(rows);
  Collect(drawn);
}

}  // namespace millrace
