#include "runtime/run/eval/tokenizer_codec.h"

#include <memory>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/text/tokenizer/text_encoder.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace millrace {
namespace {

struct Held {
  explicit Held(const std::string& path) : tokenizer(Tokenizer::Load(path)), encoder(tokenizer) {}
  const Tokenizer tokenizer;
  TextEncoder encoder;  // of it
};

int32_t PrefixOf(const Tokenizer& tokenizer) {
  if (!tokenizer.prefix().empty()) return tokenizer.prefix().front();
  for (const std::string_view name :
       {"<|begin_of_text|>", "<s>", "<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (const std::optional<int32_t> id = tokenizer.AddedTokenId(name)) return *id;
  throw Error(ErrorCode::kData,
              fmt::format("{} has no token that stands before a text: no template, and none of "
                          "<|begin_of_text|>, <s>, <|endoftext|>, <|end_of_text|>, </s>",
                          tokenizer.name()));
}

}  // namespace

TaskCodec TokenizerTaskCodec(const std::string& path) {
  const auto held = std::make_shared<Held>(path);
  const EncodeOptions options = {.special = SpecialText::kToken, .around = AroundText::kNothing};
  return {[held, options](std::string_view text) { return held->encoder.Encode(text, options); },
          PrefixOf(held->tokenizer), held->tokenizer.hash()};
}

}  // namespace millrace
