// Weights of targets that are further on than the next token: of blocks that predict these (MTP).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace {

// "mtp.1.weights": of depth 1, 2, ..., the input that weighs its targets, and the source that gives
// it.
std::string FurtherWeightsName(int64_t depth);

// What the host gives there. A token has one weight, whichever depth predicts it.
struct FurtherWeights {
  std::string source;
  std::vector<float> values;  // [sequences, T]: those of the next token, rolled left by the depth
  double sum = 0;             // of values
};

// Of the next token's weights, [sequences, seq_len]: of the depths 1 to `depth`. What has no target
// any more, a sequence's last columns, weighs 0.
std::vector<FurtherWeights> RolledWeights(std::span<const float> weights, int64_t seq_len,
                                          int64_t depth);

}  // namespace millrace
