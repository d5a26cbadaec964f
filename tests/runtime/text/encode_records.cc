// A tokenizer as a filter, for tests/runtime/text/differential.py: encode_records TOKENIZER.json.
//
//   stdin   records: u32 length, u32 flags, `length` bytes
//   stdout  for each: u32 count, `count` ids, i32; count ~0: the text is not UTF-8
//   flags   1 special tokens as plain text, 2 none around the text, 4 ids to text: the record is
//           i32 ids, the answer u32 length and bytes; 8 no record, write all answers so far;
//           from bit 8 on: text in chunks of that size
//
// All numbers are little-endian.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/text/tokenizer/text_encoder.h"
#include "runtime/text/tokenizer/token_stream.h"
#include "runtime/text/tokenizer/tokenizer.h"

using namespace millrace;

namespace {

bool Read(void* out, size_t bytes) { return std::fread(out, 1, bytes, stdin) == bytes; }
void Write(const void* data, size_t bytes) { std::fwrite(data, 1, bytes, stdout); }

template <typename T>
void Answer(const std::vector<T>& values) {
  const auto count = static_cast<uint32_t>(values.size());
  Write(&count, sizeof(count));
  Write(values.data(), values.size() * sizeof(T));
}

void EncodeRecord(TextEncoder& encoder, const std::string& text, uint32_t flags) {
  const EncodeOptions options = {
      .special = flags & 1 ? SpecialText::kPlain : SpecialText::kToken,
      .around = flags & 2 ? AroundText::kNothing : AroundText::kTemplate};
  std::vector<int32_t> ids;
  try {
    if (const size_t chunk = flags >> 8) {
      StreamEncoder stream(encoder, options);
      for (size_t at = 0; at < text.size(); at += chunk)
        stream.Push(std::string_view(text).substr(at, chunk), ids);
      stream.Finish(ids);
    } else {
      encoder.Encode(text, options, ids);
    }
  } catch (const Error&) {
    const uint32_t none = ~0u;
    return Write(&none, sizeof(none));
  }
  Answer(ids);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const Tokenizer tokenizer = Tokenizer::Load(argv[1]);
  TextEncoder encoder(tokenizer);
  uint32_t head[2];
  std::string record;
  while (Read(head, sizeof(head))) {
    record.resize(head[0]);
    if (!Read(record.data(), record.size())) return 1;
    if (head[1] & 8) {
      std::fflush(stdout);
    } else if (head[1] & 4) {
      const std::string text = tokenizer.Decode(
          {reinterpret_cast<const int32_t*>(record.data()), record.size() / sizeof(int32_t)},
          head[1] & 1 ? SpecialTokens::kSkip : SpecialTokens::kKeep);
      Answer(std::vector<char>(text.begin(), text.end()));
    } else {
      EncodeRecord(encoder, record, head[1]);
    }
  }
  return 0;
}
