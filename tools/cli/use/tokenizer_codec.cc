#include "tools/cli/use/tokenizer_codec.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/run/data/run_tokenizer.h"
#include "runtime/text/tokenizer/text_encoder.h"

namespace millrace {

TokenizerCodec::TokenizerCodec(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {}

std::vector<int32_t> TokenizerCodec::Encode(std::string_view text) const {
  constexpr int64_t kCacheBytes = 1 << 16;  // a prompt has few pieces
  return TextEncoder(*tokenizer_, kCacheBytes).Encode(text);
}

std::string TokenizerCodec::Decode(std::span<const int32_t> tokens) const {
  return tokenizer_->Decode(tokens, SpecialTokens::kSkip);
}

// A character's bytes may come one by one, and a terminal puts them together.
std::string TokenizerCodec::Shown(std::string_view bytes) const {
  std::string shown;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
    shown += control ? '?' : c;
  }
  return shown;
}

namespace {

// The first special tokens, for a message.
std::vector<std::string_view> SpecialTokensOf(const Tokenizer& tokenizer) {
  constexpr size_t kShown = 8;
  std::vector<std::string_view> found;
  for (int64_t id = 0; id < tokenizer.vocab_size() && found.size() < kShown; ++id)
    if (const auto token = static_cast<int32_t>(id); tokenizer.IsSpecial(token))
      found.push_back(tokenizer.Bytes(token));
  return found;
}

}  // namespace

std::optional<int32_t> TokenizerCodec::StopToken(std::string_view stop) const {
  const auto id = tokenizer_->AddedTokenId(stop);
  MR_REQUIRE(ErrorCode::kConfig, id || !stop.starts_with("<|") || !stop.ends_with("|>"),
             "stop is {}, which is no token of {}; its special tokens are {}", stop,
             tokenizer_->name(), fmt::join(SpecialTokensOf(*tokenizer_), ", "));
  return id;
}

namespace {

// Of a model of token files whose tokenizer is not known.
class UnknownCodec final : public TextCodec {
 public:
  std::vector<int32_t> Encode(std::string_view) const override {
    MR_REQUIRE(ErrorCode::kConfig, false,
               "data.tokenizer is bytes, and the model is trained on token files: a text needs the "
               "tokenizer.json that they were made with; lists of tokens are allowed");
    return {};
  }
  std::string Decode(std::span<const int32_t> tokens) const override {
    return bytes_.Decode(tokens);
  }
  std::string Shown(std::string_view bytes) const override { return bytes_.Shown(bytes); }

 private:
  ByteCodec bytes_;
};

}  // namespace

std::unique_ptr<TextCodec> CodecOf(const Config& config) {
  if (auto tokenizer = TokenizerOf(config))
    return std::make_unique<TokenizerCodec>(std::move(tokenizer));
  if (TextIsBytes(config)) return std::make_unique<ByteCodec>();
  return std::make_unique<UnknownCodec>();
}

}  // namespace millrace
