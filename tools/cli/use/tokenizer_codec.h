// Text by a tokenizer, as verbs need it.
#pragma once

#include <memory>

#include "runtime/config/config.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tools/cli/text.h"

namespace millrace {

// Prompts get what the tokenizer puts around a text, and special tokens in them are such; what
// comes out has none.
class TokenizerCodec final : public TextCodec {
 public:
  explicit TokenizerCodec(std::shared_ptr<const Tokenizer> tokenizer);
  std::vector<int32_t> Encode(std::string_view text) const override;
  std::string Decode(std::span<const int32_t> tokens) const override;
  std::string Shown(std::string_view bytes) const override;
  std::optional<int32_t> StopToken(std::string_view stop) const override;

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// That of data.tokenizer.
std::unique_ptr<TextCodec> CodecOf(const Config& config);

}  // namespace millrace
