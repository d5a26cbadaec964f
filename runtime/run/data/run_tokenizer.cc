#include "runtime/run/data/run_tokenizer.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/data/hash.h"
#include "runtime/data/input_file.h"

namespace millrace {

std::shared_ptr<const Tokenizer> TokenizerOf(const Config& config) {
  if (config.data.tokenizer == "bytes") return nullptr;
  auto tokenizer = std::make_shared<const Tokenizer>(Tokenizer::Load(config.data.tokenizer));
  const int64_t vocab = config.model.Vocab();
  MR_REQUIRE(ErrorCode::kConfig, tokenizer->vocab_size() <= vocab,
             "data.tokenizer {} has ids up to {}, but model.vocab is {}", config.data.tokenizer,
             tokenizer->vocab_size() - 1, vocab);
  return tokenizer;
}

bool TextIsBytes(const Config& config) {
  const DataConfig& data = config.data;
  if (data.tokenizer != "bytes") return false;
  if (!data.sources) return data.kind != DataConfig::Kind::kTokens;
  return std::none_of(data.sources->begin(), data.sources->end(), [&](const DataSource& source) {
    return data.KindOf(source) == DataConfig::Kind::kTokens;
  });
}

std::string TokenizerHash(const Config& config) {
  if (config.data.tokenizer == "bytes") return "";
  return Hash128(ReadWholeFile(config.data.tokenizer, Tokenizer::kMostFileBytes, ErrorCode::kData));
}

}  // namespace millrace
