#include "runtime/data/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/data/hash.h"
#include "runtime/data/safetensors/safetensors.h"
#include "tests/runtime/data/checkpoint_fixture.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

std::vector<int64_t> Steps(const std::string& root) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : ListCheckpoints(root))
    steps.push_back(entry.usable() ? entry.step : -entry.step);
  return steps;
}

std::set<std::string> Names(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

TEST_CASE("a checkpoint comes back byte for byte, and its folder holds nothing else",
          "[data][checkpoint]") {
  const TempDir dir;
  const std::string root = dir / "run/checkpoints";
  REQUIRE(ListCheckpoints(root).empty());
  SaveFixture(root, 123, 3, FileSystem::Posix());
  REQUIRE(Names(root) == std::set<std::string>{"step_00000123"});
  REQUIRE(Names(root + "/step_00000123") ==
          std::set<std::string>{"manifest.json", "rank_00000.safetensors", "rank_00001.safetensors",
                                "rank_00002.safetensors"});
  REQUIRE(CheckFixture(root + "/step_00000123", 123, 3) == "");
}

TEST_CASE("rank files are safetensors files, readable by any tool", "[data][checkpoint]") {
  const TempDir dir;
  SaveFixture(dir.path(), 5, 2);
  const SafetensorsFile file(dir / "step_00000005/rank_00001.safetensors");
  REQUIRE(file.tensors().size() == 5);
  REQUIRE(file.Tensor("unit0.m").spec == TensorSpec{"unit0.m", "F32", {41}});
  std::string bytes(41 * 4, '\0');
  file.ReadBytes(file.Tensor("unit0.m"), 0, 41 * 4, bytes.data());
  REQUIRE(bytes == FixtureBytes(5, 1, 2));
}

TEST_CASE("another world reads any slice of any rank's blob", "[data][checkpoint]") {
  const TempDir dir;
  SaveFixture(dir.path(), 9, 4);
  CheckpointReader reader(dir / "step_00000009");
  for (int64_t rank = 3; rank >= 0; --rank) {
    const std::string whole = FixtureBytes(9, rank, 0);
    REQUIRE(reader.Blob(rank, "unit0.master").numel == 40 + rank);
    for (int64_t begin = 0; begin <= int64_t(whole.size()); begin += 13) {
      const int64_t bytes = std::min<int64_t>(29, int64_t(whole.size()) - begin);
      std::string slice(bytes + 1, '?');
      reader.Read(rank, "unit0.master", begin, slice.data(), bytes);
      REQUIRE(slice == whole.substr(begin, bytes) + "?");
    }
    REQUIRE_THROWS_AS(reader.Read(rank, "unit0.master", 0, nullptr, int64_t(whole.size()) + 1),
                      Error);
    REQUIRE_THROWS_AS(reader.Read(rank, "unit0.master", -1, nullptr, 1), Error);
  }
  REQUIRE_FALSE(reader.Has(4, "unit0.m"));
  RequireError(ErrorCode::kCheckpoint, {"step_00000009", "\"unit1.m\" of rank 2"},
               [&] { reader.Blob(2, "unit1.m"); });
  RequireError(ErrorCode::kCheckpoint, {"of rank 4"}, [&] { reader.Blob(4, "unit0.m"); });
  RequireError(ErrorCode::kCheckpoint, {"step_00000010", "manifest.json"},
               [&] { CheckpointReader gone(dir / "step_00000010"); });
}

TEST_CASE("a flip of any single byte is found, and named by file and blob", "[data][checkpoint]") {
  const TempDir dir;
  SaveFixture(dir.path(), 7, 2);
  const std::string folder = dir / "step_00000007";
  const CheckpointManifest manifest = ReadManifest(folder);
  for (const CheckpointFile& file : manifest.files) {
    const std::string path = folder + "/" + CheckpointFileName(file.rank);
    const std::string whole = ReadBytes(path);
    REQUIRE(int64_t(whole.size()) == file.bytes);
    for (size_t i = 0; i < whole.size(); ++i) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 8));
      WriteBytes(path, bytes);
      std::string where = "the header";
      for (const CheckpointBlob& blob : file.blobs)
        if (int64_t(i) >= blob.offset && int64_t(i) < blob.offset + blob.bytes)
          where = "blob \"" + blob.name + "\"";
      const std::vector<std::string> problems = VerifyCheckpoint(folder);
      if (problems.size() != 1 || problems[0].find(path + ": " + where) != 0)
        FAIL("byte " << i << " of " << path << ": "
                     << (problems.empty() ? "unnoticed" : problems[0]));
    }
    WriteBytes(path, whole);
  }
  const std::string path = folder + "/manifest.json";
  const std::string whole = ReadBytes(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 8));
    WriteBytes(path, bytes);
    const std::vector<std::string> problems = VerifyCheckpoint(folder);
    if (problems.size() != 1 || problems[0].find(path) != 0)
      FAIL("byte " << i << " of the manifest");
    REQUIRE(Steps(dir.path()) == std::vector<int64_t>{-7});
  }
  WriteBytes(path, whole);
  REQUIRE(CheckFixture(folder, 7, 2) == "");
}

TEST_CASE("every truncation, extension or loss of a file is found by listing alone",
          "[data][checkpoint]") {
  const TempDir dir;
  SaveFixture(dir.path(), 7, 2);
  const std::string folder = dir / "step_00000007";
  for (const char* name : {"rank_00001.safetensors", "manifest.json"}) {
    const std::string path = folder + "/" + name;
    const std::string whole = ReadBytes(path);
    for (size_t size = 0; size <= whole.size() + 1; ++size) {
      if (size == whole.size()) continue;
      WriteBytes(path, size < whole.size() ? whole.substr(0, size) : whole + "x");
      const std::vector<CheckpointEntry> list = ListCheckpoints(dir.path());
      if (list.size() != 1 || list[0].usable() || list[0].problem.find(path) != 0)
        FAIL(name << " of " << size << " bytes");
      if (VerifyCheckpoint(folder).empty()) FAIL(name << " of " << size << " bytes verifies");
    }
    std::filesystem::remove(path);
    REQUIRE_THAT(ListCheckpoints(dir.path()).at(0).problem, Catch::Contains(path));
    REQUIRE_THAT(VerifyCheckpoint(folder).at(0), Catch::Contains(path));
    WriteBytes(path, whole);
  }
  // A truncated file names the blobs that it lost.
  std::filesystem::resize_file(folder + "/rank_00001.safetensors",
                               ReadManifest(folder).files[1].blobs.back().offset + 1);
  const std::vector<std::string> problems = VerifyCheckpoint(folder);
  REQUIRE(problems.size() == 2);
  REQUIRE_THAT(problems[1], Catch::Contains("\"unit0.shadow\"") && Catch::Contains("cut off"));
  CheckpointReader reader(folder);
  char byte;
  RequireError(ErrorCode::kCheckpoint, {"rank_00001.safetensors", "truncated"},
               [&] { reader.Read(1, "unit0.m", 0, &byte, 1); });
}

TEST_CASE("the list is newest first and knows its own names only", "[data][checkpoint]") {
  const TempDir dir;
  for (const int64_t step : {3, 123456789, 20}) SaveFixture(dir.path(), step, 1);
  SaveFixture(dir.path(), 0, 1);
  for (const char* name :
       {"step_3", "step_0000003x", "step_", "steps_00000004", "tmp.5.x", "damaged.step_00000006",
        "step_-0000001", "step_99999999999999999999", "step_000000020"})
    std::filesystem::create_directory(dir / name);
  WriteBytes(dir / "step_00000077", "a file");
  REQUIRE(Steps(dir.path()) == std::vector<int64_t>{123456789, 20, 3, 0});
  std::filesystem::rename(dir / "step_00000020", dir / "step_00000021");
  REQUIRE(Steps(dir.path()) == std::vector<int64_t>{123456789, -21, 3, 0});
  REQUIRE_THAT(ListCheckpoints(dir.path())[1].problem,
               Catch::Contains("is the checkpoint of step 20"));
  RequireError(ErrorCode::kIo, {dir / "step_00000077"},
               [&] { ListCheckpoints(dir / "step_00000077"); });
}

TEST_CASE("quarantine keeps everything and hides it", "[data][checkpoint]") {
  const TempDir dir;
  for (int attempt = 0; attempt < 3; ++attempt) {
    SaveFixture(dir.path(), 4, 1);
    const std::string moved = QuarantineCheckpoint(dir / "step_00000004");
    REQUIRE(moved == dir / (attempt == 0 ? "damaged.step_00000004"
                                         : "damaged.step_00000004." + std::to_string(attempt + 1)));
    REQUIRE(CheckFixture(moved, 4, 1) == "");
    REQUIRE(ListCheckpoints(dir.path()).empty());
  }
  RequireError(ErrorCode::kIo, {"step_00000004"},
               [&] { QuarantineCheckpoint(dir / "step_00000004"); });
}

TEST_CASE("the newest stay, unusable ones neither count nor go", "[data][checkpoint]") {
  const TempDir dir;
  for (int64_t step = 1; step <= 6; ++step) SaveFixture(dir.path(), step, 1);
  std::filesystem::remove(dir / "step_00000005/manifest.json");
  REQUIRE(ThinCheckpoints(dir.path(), {.newest = 9}).empty());
  const std::vector<std::string> removed = ThinCheckpoints(dir.path(), {.newest = 2});
  REQUIRE(
      std::set<std::string>(removed.begin(), removed.end()) ==
      std::set<std::string>{dir / "step_00000001", dir / "step_00000002", dir / "step_00000003"});
  REQUIRE(Steps(dir.path()) == std::vector<int64_t>{6, -5, 4});
  REQUIRE(Names(dir.path()).size() == 3);
  RequireError(ErrorCode::kInvalidArgument, {"not 0"},
               [&] { ThinCheckpoints(dir.path(), {.newest = 0}); });
}

TEST_CASE("the newest sound checkpoint is never removed", "[data][checkpoint]") {
  const TempDir dir;
  const auto damage = [&](int64_t step) {
    const std::string path = dir / CheckpointFolderName(step) + "/rank_00000.safetensors";
    std::string bytes = ReadBytes(path);
    bytes.back() ^= 1;
    WriteBytes(path, bytes);
  };
  for (int64_t step = 1; step <= 5; ++step) SaveFixture(dir.path(), step, 1);
  damage(5);
  damage(4);  // the sizes are right: listing calls both usable
  ThinCheckpoints(dir.path(), {.newest = 2});
  REQUIRE(Steps(dir.path()) == std::vector<int64_t>{5, 4, 3});
  damage(3);
  REQUIRE(
      ThinCheckpoints(dir.path(), {.newest = 1}).empty());  // nothing sound is left: nothing goes
  SaveFixture(dir.path(), 6, 1);
  ThinCheckpoints(dir.path(), {.newest = 1});
  REQUIRE(Steps(dir.path()) == std::vector<int64_t>{6});
}

TEST_CASE("multiples and the best by score stay beside the newest, whatever comes after",
          "[data][checkpoint]") {
  const TempDir dir;
  const std::map<int64_t, double> scores = {{1, 5}, {2, 1}, {3, NAN},      {4, 0.5},
                                            {5, 1}, {6, 9}, {7, -INFINITY}};
  Retention retention{.newest = 1, .every = 3, .best = 2, .score = {}};
  retention.score = [&](const CheckpointManifest& manifest) -> std::optional<double> {
    const auto it = scores.find(manifest.step);
    return it == scores.end() ? std::nullopt : std::optional(it->second);
  };
  const auto save = [&](int64_t step) {
    SaveFixture(dir.path(), step, 1);
    ThinCheckpoints(dir.path(), retention);
    return Steps(dir.path());
  };
  using List = std::vector<int64_t>;
  CHECK(save(1) == List{1});
  CHECK(save(2) == List{2, 1});
  CHECK(save(3) == List{3, 2, 1});
  CHECK(save(4) == List{4, 3, 2});        // 1 was third
  CHECK(save(5) == List{5, 4, 3});        // as good as 2, and newer
  CHECK(save(6) == List{6, 5, 4, 3});     // 5 and 4 by score, 3 and 6 as multiples
  CHECK(save(7) == List{7, 6, 4, 3});     // beats them all: 5 is third
  CHECK(save(8) == List{8, 7, 6, 4, 3});  // has none
  CHECK(save(9) == List{9, 7, 6, 4, 3});
  CHECK(save(10) == List{10, 9, 7, 6, 4, 3});
  // The best may be damaged: it is not what a run could go on from, so the
  // newest sound one stays as well.
  for (const int64_t step : {10, 9, 7}) {
    const std::string path = dir / CheckpointFolderName(step) + "/rank_00000.safetensors";
    std::string bytes = ReadBytes(path);
    bytes.back() ^= 1;
    WriteBytes(path, bytes);
  }
  retention.every.reset();
  CHECK(ThinCheckpoints(dir.path(), retention).size() == 2);  // 9 and 3
  CHECK(Steps(dir.path()) == List{10, 7, 6, 4});
}

TEST_CASE("leftovers of a killed run go, other things stay", "[data][checkpoint]") {
  const TempDir dir;
  SaveFixture(dir.path(), 1, 1);
  PrepareCheckpoint(FixturePlace(dir.path(), 2));
  WriteRank(FixturePlace(dir.path(), 2), 0, FileSystem::Posix());
  std::filesystem::create_directories(dir / "tmp.removed.step_00000000/deep");
  std::filesystem::create_directory(dir / "notes");
  WriteBytes(dir / "tmp.file", "a file");
  REQUIRE(RemoveLeftovers(dir.path()) ==
          std::vector<std::string>{dir / "tmp.2.try-1", dir / "tmp.removed.step_00000000"});
  REQUIRE(Names(dir.path()) == std::set<std::string>{"step_00000001", "notes", "tmp.file"});
  REQUIRE(RemoveLeftovers(dir / "absent").empty());
}

TEST_CASE("mistakes in writing are errors, and nothing is published", "[data][checkpoint]") {
  const TempDir dir;
  const CheckpointPlace place = FixturePlace(dir.path(), 8);
  FileSystem& files = FileSystem::Posix();
  PrepareCheckpoint(place);
  CheckpointWriter writer(place, 0, {{"a", DType::kF32, 2}});
  const float values[3] = {1, 2, 3};
  REQUIRE_THROWS_AS(writer.Write(0, values, 12), Error);
  REQUIRE_THROWS_AS(writer.Write(1, values, 4), Error);
  writer.Write(0, values, 4);
  RequireError(ErrorCode::kInternal, {"\"a\" is not complete"}, [&] { writer.Finish(); });
  CheckpointManifest manifest;
  manifest.world = 2;
  RequireError(ErrorCode::kCheckpoint, {"rank_00000.json"}, [&] {
    PublishCheckpoint(place, manifest, {0, 1});
  });
  writer.Write(0, values + 1, 4);
  writer.Finish();
  RequireError(ErrorCode::kCheckpoint, {"rank_00001.json"}, [&] {
    PublishCheckpoint(place, manifest, {0, 1});
  });
  WriteRank(place, 1, files);
  manifest.user = "[1]";
  RequireError(ErrorCode::kInvalidArgument, {"JSON object"}, [&] {
    PublishCheckpoint(place, manifest, {0, 1});
  });
  manifest.user = "{}";
  manifest.world = 1;
  RequireError(ErrorCode::kCheckpoint, {"rank 1", "world of 1"}, [&] {
    PublishCheckpoint(place, manifest, {0, 1});
  });
  manifest.world = 2;
  RequireError(ErrorCode::kCheckpoint, {"files must be a non-empty"},
               [&] { PublishCheckpoint(place, manifest, {}); });
  std::filesystem::resize_file(place.TemporaryFolder() + "/rank_00001.safetensors", 10);
  RequireError(ErrorCode::kCheckpoint, {"rank_00001.safetensors", "has 10 bytes"}, [&] {
    PublishCheckpoint(place, manifest, {0, 1});
  });
  REQUIRE(ListCheckpoints(dir.path()).empty());
  AbandonCheckpoint(place);
  REQUIRE(Names(dir.path()).empty());

  SaveFixture(dir.path(), 8, 1);
  RequireError(ErrorCode::kCheckpoint, {"step_00000008 exists already"},
               [&] { PrepareCheckpoint(place); });
  for (const char* id : {"", "../x", "a/b", "a b", "."})
    RequireError(ErrorCode::kInvalidArgument, {"letters, digits"},
                 [&] { PrepareCheckpoint({.root = dir.path(), .step = 9, .id = id}); });
  RequireError(ErrorCode::kInvalidArgument, {"given twice"}, [&] {
    CheckpointWriter twice({.root = dir.path(), .step = 9, .id = "x"}, 0,
                           {{"a", DType::kF32, 1}, {"a", DType::kF32, 1}});
  });
}

TEST_CASE("only some ranks may have files: replicas save once", "[data][checkpoint]") {
  const TempDir dir;
  const CheckpointPlace place = FixturePlace(dir.path(), 1);
  PrepareCheckpoint(place);
  for (const int64_t rank : {2, 5}) WriteRank(place, rank, FileSystem::Posix());
  CheckpointManifest manifest;
  manifest.world = 8;
  PublishCheckpoint(place, manifest, {2, 5});
  CheckpointReader reader(place.Folder());
  REQUIRE(reader.Has(5, "unit0.m"));
  REQUIRE_FALSE(reader.Has(0, "unit0.m"));
  REQUIRE(VerifyCheckpoint(place.Folder()).empty());
}

TEST_CASE("the manifest is plain JSON, survives its text, and keeps the writer's own data",
          "[data][checkpoint]") {
  CheckpointManifest manifest{
      .step = 12,
      .world = 3,
      .identity = "abc",
      .user = R"({"deep":{"list":[1,2.5,"\u00e9\n\"quoted\""]},"n":9007199254740993})",
      .files = {}};
  manifest.files.push_back(
      {.rank = 1, .bytes = 108, .header_xxh3 = "h", .blobs = {{"x", "F32", 2, 100, 8, "c"}}});
  const std::string text = PrintManifest(manifest);
  CheckpointManifest back = ParseManifest(text, "m");
  REQUIRE(nlohmann::json::parse(back.user) == nlohmann::json::parse(manifest.user));
  back.user = manifest.user;
  REQUIRE(back == manifest);
  const nlohmann::json json = nlohmann::json::parse(text);
  REQUIRE(json["format"] == "millrace-checkpoint");
  REQUIRE(json["content"]["user"]["n"] == 9007199254740993);
}

TEST_CASE("a manifest with a right checksum and wrong content is refused too",
          "[data][checkpoint]") {
  const auto seal = [](const std::string& content) {
    return R"({"format":"millrace-checkpoint","version":1,"xxh3":")" + Hash128(content) +
           "\",\"content\":\n" + content + "\n}\n";
  };
  const auto refused = [&](const std::string& content, const std::vector<std::string>& parts) {
    RequireError(ErrorCode::kCheckpoint, parts,
                 [&] { ParseManifest(seal(content), "the manifest"); });
  };
  const auto with_file = [](const std::string& file) {
    return R"({"step":1,"world":2,"identity":"","user":{},"files":[)" + file + "]}";
  };
  const auto with_blob = [&](const std::string& blob) {
    return with_file(R"({"rank":0,"bytes":108,"header_xxh3":"","blobs":[)" + blob + "]}");
  };
  const std::string good =
      R"({"name":"x","dtype":"F32","numel":2,"offset":100,"bytes":8,"xxh3":""})";
  REQUIRE(ParseManifest(seal(with_blob(good)), "m").files[0].blobs[0].numel == 2);
  refused("[", {"the manifest", "not valid JSON"});
  refused("{}", {"\"step\" is missing"});
  refused(R"({"step":-1})", {"\"step\"", "integer from 0"});
  refused(R"({"step":1,"step":1})", {"given twice"});
  refused(R"({"step":1,"world":2,"identity":"","files":[],"user":{"a":)" + std::string(64, '[') +
              std::string(64, ']') + "}}",
          {"nested deeper than 64"});
  refused(with_file(""), {"non-empty"});
  refused(with_file(R"({"rank":2,"bytes":1,"header_xxh3":"","blobs":[]})"),
          {"rank 2", "world of 2"});
  refused(
      with_file(
          R"({"rank":0,"bytes":1,"header_xxh3":"","blobs":[]},{"rank":0,"bytes":1,"header_xxh3":"","blobs":[]})"),
      {"rank 0 after rank 0"});
  for (
      const char* blob :
      {R"({"name":"x","dtype":"F32","numel":2,"offset":100,"bytes":9,"xxh3":""})",
       R"({"name":"x","dtype":"F33","numel":2,"offset":100,"bytes":8,"xxh3":""})",
       R"({"name":"x","dtype":"F32","numel":2,"offset":101,"bytes":8,"xxh3":""})",
       R"({"name":"x","dtype":"F32","numel":2,"offset":9223372036854775807,"bytes":8,"xxh3":""})",
       R"({"name":"x","dtype":"F32","numel":4611686018427387904,"offset":100,"bytes":0,"xxh3":""})"})
    refused(with_blob(blob), {"blob \"x\"", "does not fit"});
  const std::string most = "9223372036854775807";  // and a sum that has no sign any more
  refused(with_blob(R"({"name":"x","dtype":"U8","numel":)" + most + R"(,"offset":100,"bytes":)" +
                    most + R"(,"xxh3":""})"),
          {"blob \"x\"", "does not fit"});
  refused(with_blob(R"({"name":"x","dtype":"F32","numel":1,"offset":100,"bytes":4,"xxh3":""})"),
          {"end at 104 of 108"});
  refused(
      with_blob(good + R"(,{"name":"y","dtype":"F32","numel":0,"offset":104,"bytes":0,"xxh3":""})"),
      {"\"y\"", "does not fit"});
  const std::string next = R"({"format":"millrace-checkpoint","version":2,"xxh3":")";
  RequireError(ErrorCode::kCheckpoint, {"another version", "reads version 1"},
               [&] { ParseManifest(next, "m"); });
  RequireError(ErrorCode::kCheckpoint, {"not a file of a checkpoint"},
               [&] { ParseManifest("{}", "m"); });
}

}  // namespace
}  // namespace millrace
