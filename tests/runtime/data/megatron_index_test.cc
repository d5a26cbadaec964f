#include "runtime/data/tokens/megatron_index.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "runtime/base/json.h"
#include "runtime/data/tokens/token_files.h"
#include "runtime/data/tokens/token_source.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/megatron_files.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

using Ids = std::vector<int32_t>;

// Five sequences, one of them empty, in three documents.
MegatronParts Sound(uint8_t dtype = 8, int64_t bytes = 2) {
  return {.dtype = dtype, .lengths = {3, 1, 0, 4, 2}, .documents = {0, 2, 4, 5}, .bytes = bytes};
}

template <typename Id>
std::string Bin(const std::vector<int64_t>& ids) {
  return AsBytes(std::vector<Id>(ids.begin(), ids.end()));
}

TokenSourceOptions Options(const std::string& path, int64_t vocab = 50257) {
  return {.kind = DataKind::kTokens, .path = path, .seq_len = 9, .vocab = vocab};
}

Ids ReadFirst(const std::string& path, int64_t vocab = 50257) {
  const auto source = OpenTokenSource(Options(path, vocab));
  Ids ids(10);
  source->Read(0, ids.data());
  return ids;
}

void WriteDataset(const TempDir& dir, const std::string& name, const MegatronParts& parts,
                  const std::string& bin) {
  WriteBytes(dir / (name + ".idx"), parts.Index());
  WriteBytes(dir / (name + ".bin"), bin);
}

TEST_CASE("a Megatron dataset is read by any of its names, in each integer type",
          "[data][megatron]") {
  const TempDir dir;
  const std::vector<int64_t> small = {100, 7, 0, 3, 127, 5, 64, 2, 1, 99};
  std::vector<int64_t> large = small;
  large[4] = 30001;
  WriteDataset(dir, "u8", Sound(1, 1), Bin<uint8_t>(small));
  WriteDataset(dir, "i8", Sound(2, 1), Bin<int8_t>(small));
  WriteDataset(dir, "i16", Sound(3, 2), Bin<int16_t>(large));
  WriteDataset(dir, "u16", Sound(8, 2), Bin<uint16_t>(large));
  WriteDataset(dir, "i32", Sound(4, 4), Bin<int32_t>(large));
  WriteDataset(dir, "i64", Sound(5, 8), Bin<int64_t>(large));
  for (const std::string name : {"u8", "i8", "i16", "u16", "i32", "i64"}) {
    CAPTURE(name);
    const std::vector<int64_t>& ids = name.ends_with("8") ? small : large;
    for (const char* end : {".bin", ".idx", ""})
      REQUIRE(ReadFirst(dir / (name + end)) == Ids(ids.begin(), ids.end()));
  }
  const InputFile index(dir / "i32.idx", ErrorCode::kData);
  const MegatronIndex read = ReadMegatronIndex(index, dir / "i32.bin", 40);
  REQUIRE(read.sequences == 5);
  REQUIRE(read.documents == 3);
  REQUIRE(read.tokens == 10);
}

TEST_CASE("datasets that Megatron's builder wrote hold the ids that it was given",
          "[data][megatron]") {
  const std::string folder = "tests/golden/megatron/";
  const nlohmann::json golden = ParseJson(ReadBytes(folder + "golden.json"));
  for (const auto& [name, theirs] : golden.at("datasets").items()) {
    CAPTURE(name);
    const auto segments = OpenTokenFiles(ListTokenFiles(folder + name, TokenFileKind::kTokens),
                                         TokenFileKind::kTokens);
    REQUIRE(segments.size() == 1);
    Ids ids(static_cast<size_t>(segments[0].count));
    ReadTokens(segments[0], 0, segments[0].count, 128256, ids.data());
    REQUIRE(ids == theirs.at("ids").get<Ids>());
    REQUIRE(segments[0].megatron->sequences == theirs.at("sequences").get<int64_t>());
    REQUIRE(segments[0].megatron->documents == theirs.at("documents").get<int64_t>());
  }
}

TEST_CASE("a folder of Megatron datasets is a folder of token files", "[data][megatron]") {
  const TempDir dir;
  WriteDataset(dir, "b_document", Sound(4, 4),
               Bin<int32_t>({10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
  WriteBytes(dir / "a.bin", Bin<uint16_t>({7, 8}));
  const auto source = OpenTokenSource({DataKind::kTokens, dir.path(), 11, 50257});
  REQUIRE(source->Describe() == "2 token files, 12 tokens");
  Ids ids(12);
  source->Read(0, ids.data());
  REQUIRE(ids == Ids{7, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19});
}

TEST_CASE("ids outside the vocabulary are named with their place in the .bin", "[data][megatron]") {
  const TempDir dir;
  WriteDataset(dir, "x", Sound(4, 4), Bin<int32_t>({1, 2, 3, 4, 5, -6, 7, 8, 9, 10}));
  RequireError(ErrorCode::kData, {dir / "x.bin", "token 5 (byte offset 20)", "id -6", "0 to 50256"},
               [&] { OpenTokenSource(Options(dir / "x")); });
  WriteDataset(dir, "x", Sound(2, 1), Bin<int8_t>({1, 2, 3, 4, 5, 6, 7, 8, -128, 10}));
  RequireError(ErrorCode::kData, {dir / "x.bin", "token 8 (byte offset 8)", "id -128"},
               [&] { OpenTokenSource(Options(dir / "x")); });
  WriteDataset(dir, "x", Sound(5, 8), Bin<int64_t>({1, 2, int64_t{1} << 32, 4, 5, 6, 7, 8, 9, 10}));
  RequireError(ErrorCode::kData, {dir / "x.bin", "token 2 (byte offset 16)", "id 4294967296"},
               [&] { OpenTokenSource(Options(dir / "x")); });
}

TEST_CASE("every way a Megatron index can be wrong is named with its offset", "[data][megatron]") {
  const TempDir dir;
  using namespace std::string_literals;
  const auto with = [](auto change) {
    MegatronParts parts = Sound();
    change(parts);
    return parts;
  };
  struct Row {
    MegatronParts parts;
    std::vector<std::string> message;
  };
  const std::vector<Row> rows = {
      {with([](auto& p) { p.magic = "MMIDIDX\0\1"s; }), {"no Megatron index", "MMIDIDX"}},
      {with([](auto& p) { p.version = 2; }), {"offset 9", "version 2"}},
      {with([](auto& p) { p.dtype = 0; }), {"offset 17", "dtype 0"}},
      {with([](auto& p) { p.dtype = 9; }), {"offset 17", "dtype 9"}},
      {with([](auto& p) { p.dtype = 6; }), {"offset 17", "float64", "integers"}},
      {with([](auto& p) { p.dtype = 7; }), {"offset 17", "float32", "integers"}},
      {with([](auto& p) { p.dtype = 4; }), {"10 ids of 4 bytes", "40 bytes", "has 20"}},
      {with([](auto& p) { p.dtype = 1; }), {"10 ids of 1 byte,", "10 bytes", "has 20"}},
      {with([](auto& p) { p.lengths[1] = -1; }), {"offset 38", "sequence 1 has -1"}},
      {with([](auto& p) { p.lengths[3] = 0x7fffffff; }), {"offset 46", "0 to 3 have 2147483651"}},
      {with([](auto& p) { p.lengths[4] = 3; }), {"11 ids", "22 bytes", "truncated"}},
      {with([](auto& p) { p.lengths[4] = 1; }), {"9 ids", "18 bytes", "trailing"}},
      {with([](auto& p) {
         p.offsets = {0, 6, 8, 10, 16};
       }),
       {"offset 78", "sequence 3 begins at byte 10", "8 is expected"}},
      {with([](auto& p) {
         p.offsets = {2, 6, 8, 8, 16};
       }),
       {"offset 54", "sequence 0"}},
      {with([](auto& p) {
         p.documents = {1, 2, 4, 5};
       }),
       {"offset 94", "0 is expected"}},
      {with([](auto& p) {
         p.documents = {0, 4, 2, 5};
       }),
       {"offset 110", "document 2 begins with sequence 2", "4 to 5"}},
      {with([](auto& p) {
         p.documents = {0, 2, 6, 5};
       }),
       {"offset 110", "sequence 6"}},
      {with([](auto& p) {
         p.documents = {0, 2, 4, 4};
       }),
       {"offset 118", "end before sequence 4"}},
      {with([](auto& p) { p.documents = {0}; }), {"offset 26", "1 marks"}},
      {with([](auto& p) { p.lengths = {}; }), {"offset 18", "0 sequences"}},
      {with([](auto& p) { p.tail = std::string(5, '\0'); }), {"multimodal"}},
      {with([](auto& p) { p.tail = "x"; }), {"has 127 bytes", "makes 126"}},
      {with([](auto& p) {
         p.lengths = {0, 0, 0, 0, 0};
       }),
       {"20"}},
  };
  for (const Row& row : rows) {
    WriteDataset(dir, "x", row.parts, Bin<uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
    std::vector<std::string> parts = row.message;
    parts.push_back(dir / "x.");
    RequireError(ErrorCode::kData, parts, [&] { OpenTokenSource(Options(dir / "x.bin")); });
  }
  std::filesystem::remove(dir / "x.bin");
  WriteBytes(dir / "x.idx", Sound().Index());
  for (const char* name : {"x", "x.idx"})
    RequireError(ErrorCode::kData, {dir / "x.bin"}, [&] { OpenTokenSource(Options(dir / name)); });
}

TEST_CASE("every truncation of a Megatron index or its ids is an error", "[data][megatron]") {
  const TempDir dir;
  const std::string index = Sound().Index(), bin = Bin<uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  WriteBytes(dir / "x.bin", bin);
  for (size_t size = 0; size < index.size(); ++size) {
    WriteBytes(dir / "x.idx", index.substr(0, size));
    RequireError(ErrorCode::kData, {dir / "x.idx"}, [&] { OpenTokenSource(Options(dir / "x")); });
  }
  WriteBytes(dir / "x.idx", index);
  for (size_t size = 0; size < bin.size(); ++size) {
    WriteBytes(dir / "x.bin", bin.substr(0, size));
    RequireError(ErrorCode::kData, {dir / "x."}, [&] { OpenTokenSource(Options(dir / "x")); });
  }
}

TEST_CASE("a fingerprint tells two indices of one .bin apart", "[data][megatron]") {
  const TempDir dir;
  const std::string bin = Bin<uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  WriteDataset(dir, "x", Sound(), bin);
  const std::string first = OpenTokenSource(Options(dir / "x"))->Fingerprint();
  MegatronParts other = Sound();
  other.documents = {0, 5};
  WriteDataset(dir, "x", other, bin);
  REQUIRE(OpenTokenSource(Options(dir / "x"))->Fingerprint() != first);
  other = Sound(3);  // the same ids, signed
  WriteDataset(dir, "x", other, bin);
  REQUIRE(OpenTokenSource(Options(dir / "x"))->Fingerprint() != first);
}

}  // namespace
}  // namespace millrace
