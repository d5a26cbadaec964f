#include "runtime/data/tokens/token_source.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <vector>

#include "runtime/data/tokens/token_files.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/megatron_files.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

using Kind = TokenSourceOptions::Kind;
using Ids = std::vector<int32_t>;

TokenSourceOptions Options(Kind kind, const std::string& path, int64_t seq_len, int64_t vocab) {
  return {.kind = kind, .path = path, .seq_len = seq_len, .vocab = vocab};
}

Ids ReadWindow(const TokenSource& source, int64_t window) {
  // Canaries on both sides: Read writes T + 1 ids and nothing else.
  Ids ids(source.seq_len() + 3, -7);
  source.Read(window, ids.data() + 1);
  REQUIRE(ids.front() == -7);
  REQUIRE(ids.back() == -7);
  return {ids.begin() + 1, ids.end() - 1};
}

// The windows' ids joined, overlaps removed: what the sequence starts with.
Ids Sequence(const TokenSource& source) {
  Ids all;
  for (int64_t w = 0; w < source.windows(); ++w) {
    const Ids ids = ReadWindow(source, w);
    if (!all.empty()) {
      REQUIRE(all.back() == ids.front());
      all.pop_back();
    }
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

std::vector<uint16_t> Counting(int64_t n, int64_t start = 0) {
  std::vector<uint16_t> ids(n);
  for (int64_t i = 0; i < n; ++i) ids[i] = static_cast<uint16_t>((start + i) % 50000);
  return ids;
}

std::string LlmcHeader(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return AsBytes(header);
}

TEST_CASE("text: windows of bytes, one separator between files in name order", "[data][tokens]") {
  const TempDir dir;
  WriteBytes(dir / "b.txt", "\xff!");
  WriteBytes(dir / "a.txt", "hello");
  WriteBytes(dir / "B", "up");  // byte order: capitals first
  WriteBytes(dir / "empty", "");
  WriteBytes(dir / ".hidden", "no");
  std::filesystem::create_directory(dir / "folder");
  WriteBytes(dir / "folder/inner", "no");
  const Ids expected = {'u', 'p', 0, 'h', 'e', 'l', 'l', 'o', 0, 0xff, '!'};
  for (const int64_t seq_len : {1, 2, 3, 4, 5, 7, 10}) {
    const auto source = OpenTokenSource(Options(Kind::kText, dir.path(), seq_len, 256));
    CAPTURE(seq_len);
    REQUIRE(source->windows() == 10 / seq_len);
    REQUIRE(Sequence(*source) ==
            Ids(expected.begin(), expected.begin() + 10 / seq_len * seq_len + 1));
  }
  REQUIRE(OpenTokenSource(Options(Kind::kText, dir.path(), 3, 256))->Describe() ==
          "3 text files, 11 tokens");
  RequireError(ErrorCode::kData, {dir.path(), "11 tokens", "seq_len = 11 needs 12"},
               [&] { OpenTokenSource(Options(Kind::kText, dir.path(), 11, 256)); });
}

TEST_CASE(
    "text: a folder's links are followed, each file is read once, other things are passed over",
    "[data][tokens]") {
  const TempDir dir, elsewhere;
  WriteBytes(dir / "GPL-3", "three");
  WriteBytes(elsewhere / "blob", "outside");
  std::filesystem::create_symlink("GPL-3",
                                  dir / "GPL");  // the same text again, before its own name
  std::filesystem::create_symlink(elsewhere / "blob",
                                  dir / "model");  // the only way to reach the file
  std::filesystem::create_symlink(elsewhere / "blob", dir / "again");
  std::filesystem::create_hard_link(dir / "GPL-3", dir / "ZZZ");
  std::filesystem::create_symlink(elsewhere.path(), dir / "linked_folder");
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  REQUIRE(ListTokenFiles(dir.path(), TokenFileKind::kText) ==
          std::vector<std::string>{dir / "GPL-3", dir / "again"});

  std::filesystem::create_symlink("nowhere", dir / "dangling");
  RequireError(ErrorCode::kData, {"dangling", "leads nowhere"},
               [&] { ListTokenFiles(dir.path(), TokenFileKind::kText); });
}

TEST_CASE("text: a path that is a link, a missing path, a pipe, an empty file, an empty folder",
          "[data][tokens]") {
  const TempDir dir;
  WriteBytes(dir / "text", "abcdef");
  std::filesystem::create_symlink(dir / "text", dir / "link");
  REQUIRE(ReadWindow(*OpenTokenSource(Options(Kind::kText, dir / "link", 2, 256)), 1) ==
          Ids{'c', 'd', 'e'});

  RequireError(ErrorCode::kData, {dir / "absent", "does not exist"},
               [&] { OpenTokenSource(Options(Kind::kText, dir / "absent", 2, 256)); });
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  RequireError(ErrorCode::kData, {dir / "pipe", "neither a file nor a folder"},
               [&] { OpenTokenSource(Options(Kind::kText, dir / "pipe", 2, 256)); });
  WriteBytes(dir / "empty", "");
  RequireError(ErrorCode::kData, {dir / "empty", "is empty"},
               [&] { OpenTokenSource(Options(Kind::kText, dir / "empty", 2, 256)); });
  std::filesystem::create_directory(dir / "folder");
  RequireError(ErrorCode::kData, {dir / "folder", "no non-empty file directly in it"},
               [&] { OpenTokenSource(Options(Kind::kText, dir / "folder", 2, 256)); });
  std::filesystem::create_directory(dir / "tokens");
  WriteBytes(dir / "tokens/tokens.json", "{}");
  WriteBytes(dir / "tokens/tokens_0.bin", "0123");
  RequireError(ErrorCode::kData, {dir / "tokens", "data.kind=tokens"},
               [&] { OpenTokenSource(Options(Kind::kText, dir / "tokens", 2, 256)); });
  RequireError(ErrorCode::kData, {dir / "folder", "*.bin"},
               [&] { OpenTokenSource(Options(Kind::kTokens, dir / "folder", 2, 256)); });
  RequireError(ErrorCode::kData, {"data.path is missing"},
               [&] { OpenTokenSource(Options(Kind::kText, "", 2, 256)); });
}

TEST_CASE("tokens: an empty file of a folder is damage, not passed over", "[data][tokens]") {
  const TempDir dir;
  WriteBytes(dir / "a.bin", AsBytes(Counting(50)));
  WriteBytes(dir / "b.bin", "");
  WriteBytes(dir / "notes", "");  // no *.bin
  RequireError(ErrorCode::kData, {dir / "b.bin", "is empty"},
               [&] { OpenTokenSource(Options(Kind::kTokens, dir.path(), 4, 50)); });
  RequireError(ErrorCode::kData, {dir / "b.bin", "is empty"},
               [&] { OpenDataSplit(Options(Kind::kTokens, dir.path(), 4, 50), std::nullopt); });
}

TEST_CASE("tokens: a folder whose maker has not ended is refused, its files by name are not",
          "[data][tokens]") {
  const TempDir dir;
  const std::string state = dir / "tokens.json", folder = dir.path();
  WriteBytes(dir / "a.bin", AsBytes(Counting(50)));
  const auto open = [&] { OpenTokenSource(Options(Kind::kTokens, folder, 4, 50)); };
  const auto split = [&] { OpenDataSplit(Options(Kind::kTokens, folder, 4, 50), std::nullopt); };
  WriteBytes(state, R"({"files": [{"name": "a.bin"}], "done": false})");
  const std::vector<std::string> said = {state, "millrace tokenize", "has not ended"};
  RequireError(ErrorCode::kData, said, open);
  RequireError(ErrorCode::kData, said, split);
  RequireError(ErrorCode::kData, said, [&] {
    OpenDataSplit(Options(Kind::kTokens, dir / "a.bin", 4, 50), folder);  // held out
  });
  REQUIRE(OpenTokenSource(Options(Kind::kTokens, dir / "a.bin", 4, 50))->windows() == 12);
  WriteBytes(state, R"({"done": fal)");
  RequireError(ErrorCode::kData, {state}, open);
  for (const char* whole : {R"({"done": true})", R"({"of": "another maker"})", "[]"}) {
    WriteBytes(state, whole);
    REQUIRE_NOTHROW(open());
    REQUIRE_NOTHROW(split());
  }
}

TEST_CASE("text: the bytes of compressed files are not taken for it", "[data][tokens]") {
  using namespace std::string_literals;
  const TempDir dir;
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"PK\x03\x04"s, "a zip archive"},
      {"\x1f\x8b"s, "a gzip file"},
      {"\x28\xb5\x2f\xfd"s, "a zstd file"},
      {"BZh91AY&SY"s, "a bzip2 file"},
      {"\xfd"
       "7zXZ\0"s,
       "an xz file"}};
  const std::string path = dir / "some.txt";
  const auto open = [&] { return OpenTokenSource(Options(Kind::kText, path, 4, 256)); };
  for (const auto& [start, name] : rows) {
    WriteBytes(path, start + "and so on");
    RequireError(ErrorCode::kData, {path, name, "millrace tokenize"}, open);
    WriteBytes(path, " " + start + "and so on");
    REQUIRE(open()->windows() >= 2);
  }
  for (const std::string& words : {"BZhou and so on"s, "PK, a name"s}) {
    WriteBytes(path, words);
    REQUIRE(open()->windows() >= 2);
  }
}

TEST_CASE("text: a byte beyond a small vocabulary is named", "[data][tokens]") {
  const TempDir dir;
  WriteBytes(dir / "text", std::string(70000, 'a') + "\x80" + "b");
  RequireError(ErrorCode::kData,
               {dir / "text", "token 70000 (byte offset 70000)", "id 128", "0 to 127"},
               [&] { OpenTokenSource(Options(Kind::kText, dir / "text", 2, 128)); });
}

TEST_CASE("tokens: nanoGPT's raw uint16 and llm.c's two headers hold the same ids",
          "[data][tokens]") {
  const TempDir dir;
  const std::vector<uint16_t> ids = Counting(1000, 49500);
  WriteBytes(dir / "raw.bin", AsBytes(ids));
  WriteBytes(dir / "u16.bin", LlmcHeader(20240520, 1, 1000) + AsBytes(ids));
  WriteBytes(dir / "u32.bin", LlmcHeader(20240801, 7, 1000) +
                                  AsBytes(std::vector<uint32_t>(ids.begin(), ids.end())));
  for (const char* name : {"raw.bin", "u16.bin", "u32.bin"}) {
    CAPTURE(name);
    const auto source = OpenTokenSource(Options(Kind::kTokens, dir / name, 333, 50257));
    REQUIRE(source->windows() == 3);
    REQUIRE(Sequence(*source) == Ids(ids.begin(), ids.end()));
    REQUIRE(OpenTokenSource(Options(Kind::kTokens, dir / name, 334, 50257))->windows() == 2);
  }
}

TEST_CASE("tokens: 32-bit ids survive, and the largest allowed is vocab - 1", "[data][tokens]") {
  const TempDir dir;
  const std::vector<uint32_t> ids = {0, 65535, 65536, 128255, 7};
  WriteBytes(dir / "a.bin", LlmcHeader(20240801, 7, 5) + AsBytes(ids));
  REQUIRE(ReadWindow(*OpenTokenSource(Options(Kind::kTokens, dir / "a.bin", 4, 128256)), 0) ==
          Ids{0, 65535, 65536, 128255, 7});
  RequireError(ErrorCode::kData,
               {dir / "a.bin", "token 3 (byte offset 1036)", "id 128255", "0 to 128254"},
               [&] { OpenTokenSource(Options(Kind::kTokens, dir / "a.bin", 4, 128255)); });
  WriteBytes(dir / "b.bin",
             LlmcHeader(20240801, 7, 2) + AsBytes(std::vector<uint32_t>{0, 0xffffffffu}));
  RequireError(ErrorCode::kData, {"id 4294967295"}, [&] {
    OpenTokenSource(Options(Kind::kTokens, dir / "b.bin", 1, int64_t{1} << 31));
  });
}

TEST_CASE("tokens: a file's stamp says whose ids they are", "[data][tokens]") {
  const TempDir dir;
  const std::string hash(32, 'a'), other(32, 'b');
  const std::vector<uint16_t> ids = Counting(100);
  const auto header = TokenFileHeader(2, 100, {.tokenizer = hash, .vocab = 50000});
  WriteBytes(dir / "t.bin", std::string(reinterpret_cast<const char*>(header.data()),
                                        header.size() * sizeof(header[0])) +
                                AsBytes(ids));
  const TokenSegment segment = OpenTokenFiles({dir / "t.bin"}, TokenFileKind::kTokens)[0];
  REQUIRE(segment.stamp.tokenizer == hash);
  REQUIRE(segment.stamp.vocab == 50000);
  TokenSourceOptions options = Options(Kind::kTokens, dir / "t.bin", 99, 50000);
  REQUIRE(Sequence(*OpenTokenSource(options)) == Ids(ids.begin(), ids.end()));  // anyone may read
  options.tokenizer = {"its.json", hash};
  OpenTokenSource(options);
  options.tokenizer = {"other.json", other};
  RequireError(ErrorCode::kData, {"t.bin", hash, "50000 ids", "other.json", other},
               [&] { OpenTokenSource(options); });
  options.tokenizer = {"bytes", ""};
  RequireError(ErrorCode::kData, {"t.bin", hash, "data.tokenizer is bytes", "tokenizer.json"},
               [&] { OpenTokenSource(options); });
  // A file without a stamp says nothing.
  WriteBytes(dir / "u.bin", LlmcHeader(20240520, 1, 100) + AsBytes(ids));
  options.path = dir / "u.bin";
  REQUIRE(OpenTokenFiles({options.path}, TokenFileKind::kTokens)[0].stamp.tokenizer.empty());
  OpenTokenSource(options);
  options.tokenizer = {"other.json", other};
  OpenTokenSource(options);
}

TEST_CASE("tokens: a folder's files follow each other with no separator, whatever their formats",
          "[data][tokens]") {
  const TempDir dir;
  WriteBytes(dir / "s_01.bin", AsBytes(Counting(7, 5)));
  WriteBytes(dir / "s_00.bin", LlmcHeader(20240520, 1, 5) + AsBytes(Counting(5, 0)));
  WriteBytes(dir / "s_02.bin", LlmcHeader(20240801, 7, 1) + AsBytes(std::vector<uint32_t>{12}));
  WriteBytes(dir / "meta.pkl", "not tokens");
  const auto source = OpenTokenSource(Options(Kind::kTokens, dir.path(), 4, 100));
  Ids expected(13);
  std::iota(expected.begin(), expected.end(), 0);
  REQUIRE(Sequence(*source) == expected);
  REQUIRE(source->Describe() == "3 token files, 13 tokens");
}

TEST_CASE("tokens: every way a file can be wrong is named", "[data][tokens]") {
  const TempDir dir;
  const std::string path = dir / "bad.bin";
  const std::string payload = AsBytes(Counting(10));
  struct Row {
    std::string bytes;
    std::vector<std::string> message;
  };
  using namespace std::string_literals;
  const std::vector<Row> rows = {
      {payload + "x", {"21 bytes", "even number"}},
      {payload.substr(0, 7), {"7 bytes", "even number"}},
      {"x", {"1 bytes", "even number"}},
      {LlmcHeader(20240520, 1, 10) + payload.substr(0, 19),
       {"byte offset 8", "10 tokens", "1044 bytes", "has 1043", "truncated"}},
      {LlmcHeader(20240520, 1, 10) + payload.substr(0, 18),
       {"10 tokens", "1044 bytes", "has 1042", "truncated"}},
      {LlmcHeader(20240520, 1, 9) + payload, {"9 tokens", "1042 bytes", "has 1044", "trailing"}},
      {LlmcHeader(20240801, 7, 10) + payload, {"10 tokens", "1064 bytes", "has 1044", "truncated"}},
      {LlmcHeader(20240520, 1, 0), {"byte offset 8 says 0 tokens"}},
      {LlmcHeader(20240520, 1, -1) + payload, {"byte offset 8 says -1 tokens"}},
      {LlmcHeader(20240520, 1, 0x7fffffff) + payload,
       {"2147483647 tokens", "4294968318 bytes", "truncated"}},
      {LlmcHeader(20240520, 2, 10) + payload, {"byte offset 4", "version 2", "version 1 is known"}},
      {LlmcHeader(20240801, 1, 10) + payload, {"byte offset 4", "version 1", "version 7 is known"}},
      {LlmcHeader(20240520, 1, 10).substr(0, 1000), {"20240520", "only 1000 bytes", "1024"}},
      {LlmcHeader(20240326, 3, 10) + payload, {"20240326", "another kind of llm.c file"}},
      {LlmcHeader(20240522, 1, 10) + payload, {"20240522", "another kind of llm.c file"}},
      {"\x93NUMPY\x01\x00"s + payload, {"NumPy"}},
      {"PK\x03\x04"s + payload, {"zip"}},
      {"\x1f\x8b"s + payload, {"gzip"}},
      {"BZh1"s + payload, {"bzip2"}},
      {"MMIDIDX\0\0"s + payload, {"Megatron"}},
      {"PAR1"s + payload, {"Parquet"}},
  };
  for (const Row& row : rows) {
    WriteBytes(path, row.bytes);
    std::vector<std::string> parts = row.message;
    parts.push_back(path);
    RequireError(ErrorCode::kData, parts,
                 [&] { OpenTokenSource(Options(Kind::kTokens, path, 4, 65536)); });
  }
}

TEST_CASE("tokens: every truncation of a file with a header is an error", "[data][tokens]") {
  const TempDir dir;
  const std::string whole = LlmcHeader(20240520, 1, 20) + AsBytes(Counting(20, 300));
  for (size_t size = 4; size < whole.size(); ++size) {  // below, the magic itself is cut
    WriteBytes(dir / "t.bin", whole.substr(0, size));
    RequireError(ErrorCode::kData, {dir / "t.bin"},
                 [&] { OpenTokenSource(Options(Kind::kTokens, dir / "t.bin", 4, 65536)); });
  }
}

TEST_CASE("tokens: a file that shrinks or turns bad while open is an error at the next read",
          "[data][tokens]") {
  const TempDir dir;
  WriteBytes(dir / "a.bin", AsBytes(Counting(1000)));
  const auto source = OpenTokenSource(Options(Kind::kTokens, dir / "a.bin", 99, 1000));
  REQUIRE(ReadWindow(*source, 9)[0] == 891);
  std::filesystem::resize_file(dir / "a.bin", 1900);
  RequireError(ErrorCode::kData, {dir / "a.bin", "ends at byte 1900"},
               [&] { ReadWindow(*source, 9); });
  REQUIRE(ReadWindow(*source, 8)[0] == 792);
  RequireError(ErrorCode::kInternal, {"window 10"}, [&] { ReadWindow(*source, 10); });
  RequireError(ErrorCode::kInternal, {"window -1"}, [&] { ReadWindow(*source, -1); });
}

// What a check says of a file that turned bad, at each place, is what the next read says.
template <typename Id>
void CheckEachPlace(const std::string& path, const std::string& index, std::vector<Id> bad) {
  constexpr int64_t kTokens = 23, kT = 4;  // five windows; the last two tokens are in none
  if (!index.empty()) WriteBytes(path.substr(0, path.size() - 4) + ".idx", index);
  std::vector<Id> ids(kTokens);
  std::iota(ids.begin(), ids.end(), Id{90});
  WriteBytes(path, AsBytes(ids));
  const auto source = OpenTokenSource(Options(Kind::kTokens, path, kT, 113));
  REQUIRE(source->checked_windows() == 5);
  source->CheckWindows(0, 5);
  for (int64_t place = 0; place < kTokens; ++place) {
    for (const Id id : bad) {
      std::vector<Id> damaged = ids;
      damaged[size_t(place)] = id;
      std::ofstream(path, std::ios::binary | std::ios::in)  // the open file, not a new one
          .write(AsBytes(damaged).data(), std::ssize(damaged) * int64_t{sizeof(Id)});
      const std::string offset = fmt::format("byte offset {})", place * int64_t{sizeof(Id)});
      for (int64_t w = 0; w < 5; ++w) {
        CAPTURE(place, int64_t{id}, w);
        const bool within = place >= w * kT && (place <= w * kT + kT || w == 4);
        if (!within) {
          REQUIRE_NOTHROW(source->CheckWindows(w, 1));
        } else {
          RequireError(ErrorCode::kData, {path, offset, fmt::format("has id {}", int64_t{id})},
                       [&] { source->CheckWindows(w, 1); });
        }
      }
    }
  }
}

TEST_CASE("tokens: a check finds what a read would, in every type", "[data][tokens]") {
  const TempDir dir;
  const auto megatron = [](uint8_t dtype, int64_t bytes) {
    return MegatronParts{.dtype = dtype, .lengths = {23}, .documents = {0, 1}, .bytes = bytes}
        .Index();
  };
  CheckEachPlace<uint16_t>(dir / "raw.bin", "", {113, 65535});
  CheckEachPlace<uint8_t>(dir / "u8.bin", megatron(1, 1), {113, 255});
  CheckEachPlace<int8_t>(dir / "i8.bin", megatron(2, 1), {113, 127, -1, -128});
  CheckEachPlace<int16_t>(dir / "i16.bin", megatron(3, 2), {113, 32767, -1, -32768});
  CheckEachPlace<int32_t>(dir / "i32.bin", megatron(4, 4), {113, INT32_MAX, -1, INT32_MIN});
  CheckEachPlace<int64_t>(dir / "i64.bin", megatron(5, 8), {113, INT64_MAX, -1, INT64_MIN});
  CheckEachPlace<uint16_t>(dir / "u16.bin", megatron(8, 2), {113, 65535});
}

TEST_CASE("held out: the last tenth of the windows, at least one, never trained on",
          "[data][tokens]") {
  const TempDir dir;
  for (const int64_t windows : {2, 3, 9, 10, 19, 20, 105}) {
    WriteBytes(dir / "a.bin", AsBytes(Counting(windows * 8 + 1)));
    const DataSplit split =
        OpenDataSplit(Options(Kind::kTokens, dir / "a.bin", 8, 50000), std::nullopt);
    const int64_t held = std::max<int64_t>(1, windows / 10);
    CAPTURE(windows);
    REQUIRE(split.held_out->windows() == held);
    REQUIRE(split.train->windows() == windows - held);
    REQUIRE(ReadWindow(*split.train, 0)[0] == 0);
    REQUIRE(ReadWindow(*split.held_out, 0)[0] == (windows - held) * 8);
    // ids count up, so an id is a position: targets of the two parts share none.
    std::set<int32_t> trained;
    for (int64_t w = 0; w < windows - held; ++w)
      for (int64_t i = 1; i <= 8; ++i) trained.insert(ReadWindow(*split.train, w)[i]);
    for (int64_t w = 0; w < held; ++w)
      for (int64_t i = 1; i <= 8; ++i)
        REQUIRE(trained.count(ReadWindow(*split.held_out, w)[i]) == 0);
    REQUIRE_THROWS_AS(ReadWindow(*split.train, windows - held), Error);
  }
  WriteBytes(dir / "a.bin", AsBytes(Counting(9)));
  RequireError(ErrorCode::kData, {dir / "a.bin", "one window", "val_path"}, [&] {
    OpenDataSplit(Options(Kind::kTokens, dir / "a.bin", 8, 50000), std::nullopt);
  });
}

TEST_CASE("held out: val_path, or the files called val in a folder of tokens", "[data][tokens]") {
  const TempDir dir;
  WriteBytes(dir / "train.bin", AsBytes(Counting(101)));
  WriteBytes(dir / "val.bin", AsBytes(Counting(31, 1000)));
  WriteBytes(dir / "other", AsBytes(Counting(21, 2000)));
  const TokenSourceOptions folder = Options(Kind::kTokens, dir.path(), 10, 50000);

  const DataSplit by_name = OpenDataSplit(folder, std::nullopt);
  REQUIRE(by_name.train->windows() == 10);
  REQUIRE(by_name.held_out->windows() == 3);
  REQUIRE(ReadWindow(*by_name.held_out, 0)[0] == 1000);

  const DataSplit by_path = OpenDataSplit(folder, dir / "other");
  REQUIRE(by_path.train->windows() == 10);  // val.bin is still not trained on
  REQUIRE(ReadWindow(*by_path.held_out, 1)[0] == 2010);

  const DataSplit files =
      OpenDataSplit(Options(Kind::kTokens, dir / "train.bin", 10, 50000), dir / "val.bin");
  REQUIRE(files.train->windows() == 10);
  REQUIRE(files.held_out->windows() == 3);

  std::filesystem::remove(dir / "train.bin");
  RequireError(ErrorCode::kData, {dir.path(), "val", "none is left to train on"},
               [&] { OpenDataSplit(folder, std::nullopt); });
  RequireError(ErrorCode::kData, {dir / "gone"}, [&] {
    OpenDataSplit(Options(Kind::kTokens, dir / "other", 10, 50000), dir / "gone");
  });
}

TEST_CASE("synthetic: ids depend on seed and position only, and fill the vocabulary evenly",
          "[data][tokens]") {
  TokenSourceOptions options = Options(Kind::kSynthetic, "", 100, 10);
  const auto source = OpenTokenSource(options);
  const Ids known = ReadWindow(*source, 0);
  REQUIRE(Ids(known.begin(), known.begin() + 8) == Ids{6, 7, 8, 4, 0, 4, 0, 6});
  std::vector<int64_t> counts(10, 0);
  for (int64_t w = 0; w < 200; ++w) {
    const Ids ids = ReadWindow(*source, w);
    for (int64_t i = 0; i < 100; ++i) ++counts.at(ids[i]);
    REQUIRE(ids.back() == ReadWindow(*source, w + 1)[0]);
  }
  for (const int64_t count : counts)
    REQUIRE(std::abs(count - 2000) < 5 * 43);  // deviation sqrt(20000 * 0.09)

  options.seq_len = 50;  // another cut of the same sequence
  const Ids half = ReadWindow(*OpenTokenSource(options), 1);
  REQUIRE(half == Ids(known.begin() + 50, known.end()));
  options.seed = 1;
  REQUIRE(ReadWindow(*OpenTokenSource(options), 1) != half);
  REQUIRE(ReadWindow(*source, source->windows() - 1).size() == 101);
  REQUIRE(OpenDataSplit(options, std::nullopt).held_out->windows() > 1);
}

TEST_CASE("the fingerprint follows the data, not where it lies", "[data][tokens]") {
  const TempDir dir, copy;
  const std::string text = std::string(5000, 'x') + std::string(5000, 'y');
  WriteBytes(dir / "a", text);
  WriteBytes(copy / "a", text);
  const auto fingerprint = [](const std::string& path, int64_t seq_len, int64_t vocab) {
    return OpenTokenSource(Options(Kind::kText, path, seq_len, vocab))->Fingerprint();
  };
  const std::string original = fingerprint(dir / "a", 16, 256);
  REQUIRE(original.size() == 32);
  REQUIRE(fingerprint(copy / "a", 16, 256) == original);
  REQUIRE(fingerprint(copy.path(), 16, 256) == original);
  std::set<std::string> all = {original, fingerprint(dir / "a", 32, 256),
                               fingerprint(dir / "a", 16, 300)};
  WriteBytes(copy / "a", text + "z");
  all.insert(fingerprint(copy / "a", 16, 256));
  std::string changed = text;
  changed.front() = 'q';
  WriteBytes(copy / "a", changed);
  all.insert(fingerprint(copy / "a", 16, 256));
  changed = text;
  changed.back() = 'q';
  WriteBytes(copy / "a", changed);
  all.insert(fingerprint(copy / "a", 16, 256));
  WriteBytes(copy / "a", text);
  WriteBytes(copy / "b", "more");
  all.insert(fingerprint(copy.path(), 16, 256));
  const DataSplit split = OpenDataSplit(Options(Kind::kText, dir / "a", 16, 256), std::nullopt);
  all.insert(split.train->Fingerprint());
  all.insert(split.held_out->Fingerprint());
  REQUIRE(all.size() == 9);
}

TEST_CASE("impossible lengths and vocabularies are errors", "[data][tokens]") {
  for (const auto& [seq_len, vocab] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 10}, {-1, 10}, {10, 0}, {1ll << 40, 10}})
    REQUIRE_THROWS_AS(OpenTokenSource(Options(Kind::kSynthetic, "", seq_len, vocab)), Error);
}

}  // namespace
}  // namespace millrace
