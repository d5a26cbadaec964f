// A file of text or tokens. The first four bytes choose how it is read: vocabulary (2), length of a
// window (1), kind (1).
#include "runtime/data/tokens/token_files.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/tokens/token_source.h"
#include "tests/fuzz/fuzz.h"

using namespace millrace;

namespace {

// Every token is in the file, and reading it in two pieces gives what reading it whole gives.
void CheckSegment(const TokenSegment& segment, std::string_view content, int64_t vocab) {
  FUZZ_REQUIRE(segment.count >= 1 && segment.data_offset >= 0);
  FUZZ_REQUIRE(segment.data_offset + segment.count * segment.bytes_per_token ==
               static_cast<int64_t>(content.size()));
  std::vector<int32_t> whole(static_cast<size_t>(segment.count), -1), pieces = whole;
  const auto read = [&](int64_t first, int64_t n, std::vector<int32_t>& out) {
    ReadTokens(segment, first, n, vocab, out.data() + first);
  };
  if (!fuzz::Accepts({ErrorCode::kData}, [&] { read(0, segment.count, whole); })) return;
  const int64_t half = segment.count / 2;
  read(half, segment.count - half, pieces);
  read(0, half, pieces);
  FUZZ_REQUIRE(pieces == whole);
  for (size_t i = 0; i < whole.size(); ++i) {
    FUZZ_REQUIRE(whole[i] >= 0 && whole[i] < vocab);
    const size_t at =
        static_cast<size_t>(segment.data_offset) + i * static_cast<size_t>(segment.bytes_per_token);
    FUZZ_REQUIRE((whole[i] & 0xff) == static_cast<unsigned char>(content[at]));
  }
}

void CheckSource(const TokenSourceOptions& options, int64_t tokens) {
  const DataSplit split = OpenDataSplit(options, std::nullopt);
  for (const auto& source : {split.train, split.held_out}) {
    FUZZ_REQUIRE(source->windows() >= 1 && source->windows() * source->seq_len() < tokens);
    FUZZ_REQUIRE(!source->Describe().empty() && source->Fingerprint().size() == 32);
    std::vector<int32_t> window(static_cast<size_t>(source->seq_len()) + 1, -1);
    for (int64_t w : {int64_t{0}, source->windows() - 1}) {
      source->Read(w, window.data());
      for (const int32_t id : window) FUZZ_REQUIRE(id >= 0 && id < options.vocab);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile file;
  fuzz::ByteSource choices({reinterpret_cast<const char*>(data), size});
  const int64_t vocab = 1 + choices.Below(1 << 16), seq_len = 1 + choices.Below(256);
  const TokenFileKind kind =
      choices.Integer(1) % 2 == 0 ? TokenFileKind::kText : TokenFileKind::kTokens;
  const std::string_view content = choices.Rest();
  file.Set(content);
  const fuzz::MemoryLimit limit(size);
  std::vector<TokenSegment> segments;
  const bool opened = fuzz::Accepts({ErrorCode::kData}, [&] {
    segments = OpenTokenFiles(ListTokenFiles(file.path(), kind), kind);
  });
  if (opened) {
    FUZZ_REQUIRE(segments.size() == 1);
    CheckSegment(segments[0], content, vocab);
  }
  TokenSourceOptions options;
  options.kind = kind == TokenFileKind::kText ? TokenSourceOptions::Kind::kText
                                              : TokenSourceOptions::Kind::kTokens;
  options.path = file.path();
  options.seq_len = seq_len;
  options.vocab = vocab;
  fuzz::Accepts({ErrorCode::kData},
                [&] { CheckSource(options, segments.empty() ? 0 : segments[0].count); });
  return 0;
}
