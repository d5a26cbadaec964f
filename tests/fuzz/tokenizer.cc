// A tokenizer.json and a text: two parts of an input. What is refused is refused by name; what is
// accepted encodes any text, in one piece or in several, to ids of the vocabulary.
#include "runtime/text/tokenizer/tokenizer.h"

#include <string>
#include <vector>

#include "runtime/text/tokenizer/token_stream.h"
#include "runtime/text/unicode/nfc.h"
#include "runtime/text/unicode/unicode.h"
#include "tests/fuzz/fuzz.h"

using namespace millrace;

namespace {

std::vector<int32_t> InChunks(TextEncoder& encoder, std::string_view text, size_t chunk,
                              const EncodeOptions& options) {
  StreamEncoder stream(encoder, options);
  std::vector<int32_t> ids;
  for (size_t at = 0; at < text.size(); at += chunk) stream.Push(text.substr(at, chunk), ids);
  stream.Finish(ids);
  return ids;
}

void CheckText(const Tokenizer& tokenizer, std::string_view text) {
  TextEncoder encoder(tokenizer);
  for (const EncodeOptions& options :
       {EncodeOptions{}, EncodeOptions{SpecialText::kPlain, AroundText::kNothing}}) {
    std::vector<int32_t> ids;
    const bool valid =
        fuzz::Accepts({ErrorCode::kData}, [&] { encoder.Encode(text, options, ids); });
    FUZZ_REQUIRE(valid == (FindInvalidUtf8(text) < 0));
    if (!valid) return;
    for (const int32_t id : ids) FUZZ_REQUIRE(id >= 0 && id < tokenizer.vocab_size());
    FUZZ_REQUIRE(encoder.Encode(text, options) == ids);  // out of the caches
    for (const size_t chunk : {1, 5}) FUZZ_REQUIRE(InChunks(encoder, text, chunk, options) == ids);
    // Where nothing changes the text, it comes back.
    const bool kept = options.special == SpecialText::kPlain && !tokenizer.add_prefix_space() &&
                      (!tokenizer.nfc() || ToNfc(text) == text);
    bool strips = false;
    for (const auto* added : {&tokenizer.raw_added(), &tokenizer.normalized_added()})
      for (const AddedToken& token : added->tokens())
        strips |= token.lstrip || token.rstrip || token.normalized ||
                  tokenizer.Bytes(token.id) != token.content;
    if (kept && !strips) FUZZ_REQUIRE(tokenizer.Decode(ids, SpecialTokens::kKeep) == text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = fuzz::Parts({reinterpret_cast<const char*>(data), size}, 2);
  FUZZ_REQUIRE(ToNfc("") == "");
  if (FindInvalidUtf8(parts[1]) < 0) {
    const std::string normal = ToNfc(parts[1]);
    FUZZ_REQUIRE(FindInvalidUtf8(normal) < 0);
    FUZZ_REQUIRE(ToNfc(normal) == normal);
    FUZZ_REQUIRE(!IsSurelyNfc(parts[1]) || normal == parts[1]);
  }
  fuzz::Accepts({ErrorCode::kData}, [&] {
    const Tokenizer tokenizer(parts[0], "fuzz.json");
    CheckText(tokenizer, parts[1]);
  });
  return 0;
}
