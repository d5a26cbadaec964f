// What lies beside ids: masks of targets, documents of Megatron's indices.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/data/tokens/token_source.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/megatron_files.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

using Bytes = std::vector<uint8_t>;

TokenSourceOptions Options(const std::string& path, int64_t seq_len) {
  return {.kind = DataKind::kTokens, .path = path, .seq_len = seq_len, .vocab = 65536};
}

TokenSourceOptions Masked(const std::string& path, int64_t seq_len) {
  TokenSourceOptions options = Options(path, seq_len);
  options.loss_mask = true;
  return options;
}

std::string Ids(int64_t n) {
  std::vector<uint16_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<uint16_t>(i));
  return AsBytes(ids);
}

// The marks of all windows, end to end; those that two windows share are equal.
Bytes AllMarks(const TokenSource& source) {
  Bytes all;
  for (int64_t w = 0; w < source.windows(); ++w) {
    Bytes marks(static_cast<size_t>(source.seq_len()) + 3, 77);  // with canaries
    source.ReadMarks(w, marks.data() + 1);
    REQUIRE(marks.front() == 77);
    REQUIRE(marks.back() == 77);
    if (!all.empty()) {
      REQUIRE(all.back() == marks[1]);
      all.pop_back();
    }
    all.insert(all.end(), marks.begin() + 1, marks.end() - 1);
  }
  return all;
}

TEST_CASE("a mask is a byte for each token, over all files of a path", "[data][tokens]") {
  const TempDir dir;
  Bytes expected, a, b;
  for (int i = 0; i < 70; ++i) {
    const bool counts = i * i % 5 == 1;
    (i < 33 ? a : b).push_back(counts ? 1 : 0);
    expected.push_back(counts ? 0 : kNoTarget);
  }
  WriteBytes(dir / "a.bin", Ids(33));
  WriteBytes(dir / "b.bin", Ids(37));
  WriteBytes(dir / "a.mask", AsBytes(a));
  WriteBytes(dir / "b.mask", AsBytes(b));
  for (const int64_t seq_len : {1, 7, 23, 69}) {
    const auto source = OpenTokenSource(Masked(dir.path(), seq_len));
    CHECK(source->has_loss_mask());
    const Bytes marks = AllMarks(*source);
    CHECK(marks == Bytes(expected.begin(), expected.begin() + std::ssize(marks)));
  }
  // What is held out has the rest.
  const DataSplit split = OpenDataSplit(Masked(dir.path(), 7), std::nullopt);
  CHECK(split.held_out->has_loss_mask());
  CHECK(AllMarks(*split.held_out) == Bytes(expected.begin() + 56, expected.begin() + 64));
  // Not asked for.
  const auto plain = OpenTokenSource(Options(dir.path(), 7));
  CHECK_FALSE(plain->has_loss_mask());
  CHECK(AllMarks(*plain) == Bytes(64, 0));
}

TEST_CASE("a mask changes the fingerprint, whether or not it is read", "[data][tokens]") {
  const TempDir dir;
  WriteBytes(dir / "a.bin", Ids(33));
  const auto print = [&](TokenSourceOptions options) {
    return OpenTokenSource(options)->Fingerprint();
  };
  const std::string none = print(Options(dir / "a.bin", 4));
  Bytes mask(33, 1);
  WriteBytes(dir / "a.mask", AsBytes(mask));
  const std::string with = print(Masked(dir / "a.bin", 4));
  CHECK(with != none);
  CHECK(print(Options(dir / "a.bin", 4)) == with);
  mask[9] = 0;
  WriteBytes(dir / "a.mask", AsBytes(mask));
  CHECK(print(Masked(dir / "a.bin", 4)) != with);
}

TEST_CASE("every way a mask can be wrong is named", "[data][tokens]") {
  const TempDir dir;
  const auto refuses = [&](const TokenSourceOptions& options, ErrorCode code,
                           const std::vector<std::string>& parts) {
    RequireError(code, parts, [&] { OpenTokenSource(options); });
  };
  WriteBytes(dir / "a.bin", Ids(33));
  WriteBytes(dir / "a.mask", std::string(32, '\1'));
  refuses(Masked(dir / "a.bin", 4), ErrorCode::kData,
          {"a.mask", "32 bytes", "33 tokens", "truncated?"});
  WriteBytes(dir / "a.mask", std::string(34, '\1'));
  refuses(Masked(dir / "a.bin", 4), ErrorCode::kData, {"a.mask", "34 bytes", "trailing bytes"});
  for (const int64_t at : {0, 19, 32}) {
    std::string bytes(33, '\1');
    bytes[static_cast<size_t>(at)] = '1';  // the letter
    WriteBytes(dir / "a.mask", bytes);
    refuses(Masked(dir / "a.bin", 4), ErrorCode::kData,
            {"a.mask", "byte offset " + std::to_string(at) + " is 49", "1 (", "0"});
  }
  // Nobody has said what to do with it.
  TokenSourceOptions unsaid = Options(dir / "a.bin", 4);
  unsaid.loss_mask = std::nullopt;
  refuses(unsaid, ErrorCode::kConfig, {"a.mask", "data.loss_mask is null", "true", "false"});
  // One file of two.
  WriteBytes(dir / "a.mask", std::string(33, '\1'));
  WriteBytes(dir / "b.bin", Ids(33));
  refuses(Masked(dir.path(), 4), ErrorCode::kData, {"b.bin has no mask", "a.bin has one"});
  WriteBytes(dir / "b.mask", std::string(33, '\0'));
  CHECK(OpenTokenSource(Masked(dir.path(), 4))->has_loss_mask());
  std::filesystem::remove(dir / "a.mask");
  refuses(Masked(dir.path(), 4), ErrorCode::kData, {"b.bin has a mask", "a.bin has none"});
}

// Documents of 0 to 4 sequences, and those of 0 to 3 ids: more than a kept entry of the index is
// apart from the next.
MegatronParts ManyDocuments(int64_t documents, Bytes& begins) {
  MegatronParts parts{.dtype = 8, .bytes = 2};
  parts.documents = {0};
  for (int64_t d = 0; d < documents; ++d) {
    const size_t first = begins.size();
    for (int64_t s = 0; s < d * 7 % 5; ++s) {
      parts.lengths.push_back(static_cast<int32_t>((d + s * s) % 4));
      begins.resize(begins.size() + static_cast<size_t>(parts.lengths.back()), 0);
    }
    if (begins.size() > first) begins[first] = kBeginsDocument;
    parts.documents.push_back(static_cast<int64_t>(parts.lengths.size()));
  }
  return parts;
}

TEST_CASE("documents begin where Megatron's index says, over all files of a path",
          "[data][megatron]") {
  const TempDir dir;
  Bytes expected;
  const std::vector<std::pair<std::string, int64_t>> files = {{"a", 3000}, {"b", 256}, {"c", 257}};
  for (const auto& [name, documents] : files) {
    Bytes begins;
    const MegatronParts parts = ManyDocuments(documents, begins);
    WriteBytes(dir / (name + ".idx"), parts.Index());
    WriteBytes(dir / (name + ".bin"), Ids(std::ssize(begins)));
    expected.insert(expected.end(), begins.begin(), begins.end());
  }
  REQUIRE(std::count(expected.begin(), expected.end(), kBeginsDocument) > 1500);
  for (const int64_t seq_len : {1, 5, 64, 2000}) {
    CAPTURE(seq_len);
    TokenSourceOptions options = Options(dir.path(), seq_len);
    options.index_documents = true;
    const Bytes marks = AllMarks(*OpenTokenSource(options));
    REQUIRE(marks == Bytes(expected.begin(), expected.begin() + std::ssize(marks)));
  }
}

TEST_CASE("where no index says where documents begin, an id has to", "[data][megatron]") {
  const TempDir dir;
  WriteBytes(dir / "a.bin", Ids(33));
  TokenSourceOptions options = Options(dir / "a.bin", 4);
  options.index_documents = true;
  const auto refuses = [&](const std::string& what) {
    RequireError(ErrorCode::kConfig, {"data.end_of_document null", what},
                 [&] { OpenDataSplit(options, std::nullopt); });
  };
  refuses("a.bin has no index of Megatron");
  options.kind = DataKind::kText;
  refuses("documents in " + options.path);
  options.kind = DataKind::kSynthetic;
  options.path = "";
  refuses("synthetic data");
}

}  // namespace
}  // namespace millrace
