// Ids behind what is looked at when files are opened: found before the first step, by the rank
// whose share they are in, and not looked at twice. Large files are holes, which cost no disk.
#include "runtime/run/data/data_check.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "comm/local/run_ranks.h"
#include "runtime/base/error.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"
#include "tests/runtime/run/training_run.h"

namespace millrace {
namespace {

constexpr int64_t kBytes = int64_t{300} << 20, kTokens = kBytes / 2, kT = 16, kVocab = 509;
constexpr int64_t kOpened = int64_t{256} << 20;  // bytes that opening looks at

void MakeLarge(const std::string& path) {
  WriteBytes(path, "");
  std::filesystem::resize_file(path, kBytes);
}

void Put(const std::string& path, int64_t token, uint16_t id) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(token * 2);
  file.write(reinterpret_cast<const char*>(&id), sizeof(id));
}

RunData Open(const std::string& path) {
  const DataSplit split = OpenDataSplit(
      {.kind = DataKind::kTokens, .path = path, .seq_len = kT, .vocab = kVocab}, std::nullopt);
  return {{{"", 1, split.train}}, {{"", 1, split.held_out}}, false};
}

DataCheck Check(const std::string& path, const std::string& run_dir, int* ticks = nullptr) {
  DataCheck check;
  int ticked = 0;
  RunRanks(1, [&](Communicator& ranks) {
    check = CheckRunData(Open(path), run_dir, ranks, [&] { ++ticked; });
  });
  if (ticks != nullptr) *ticks = ticked;
  return check;
}

TEST_CASE(
    "an id outside the vocabulary at the end of a large file ends a run before its first step",
    "[training][data]") {
  const int world = GENERATE(1, 3);
  // Tokens: the first that opening passes over, one that is held out, and the last, which is in no
  // window.
  const int64_t token = GENERATE(kOpened / 2 + 1, kTokens - 1000, kTokens - 1);
  const TempDir dir;
  const std::string path = dir / "ids.bin";
  MakeLarge(path);
  Put(path, token, kVocab);
  test::TrainingRun run(world, {});
  for (const std::string& set :
       {std::string("data.kind=tokens"), std::string("model.vocab=509"), "data.path=" + path})
    run.Set(set);
  std::atomic<int> steps = 0;
  RequireError(ErrorCode::kData,
               {path, "token " + std::to_string(token), "byte offset " + std::to_string(2 * token),
                "has id 509"},
               [&] { run.Train({}, [&](const StepReport&) { ++steps; }); });
  CHECK(steps == 0);
  CHECK_FALSE(std::filesystem::exists(run.folder() + "/metrics.jsonl"));
  Put(path, token, kVocab - 1);
  run.Train({}, [&](const StepReport&) { ++steps; });
  CHECK(steps == 12);
  CHECK(std::filesystem::exists(run.folder() + "/data_checked"));
}

TEST_CASE("files that were found good are not read again until they change", "[training][data]") {
  const TempDir dir;
  const std::string path = dir / "ids.bin";
  MakeLarge(path);
  const DataCheck first = Check(path, dir.path());
  CHECK_FALSE(first.remembered);
  CHECK(first.bytes >= kBytes - kOpened - 4 * kT);
  CHECK(first.bytes <= kBytes - kOpened + 4 * kT);
  int ticks = 0;
  CHECK_FALSE(Check(path, dir.path(), &ticks).remembered);  // nobody said so
  CHECK(ticks > 0);
  Remember(first, dir.path(), FileSystem::Posix());
  CHECK(Check(path, dir.path(), &ticks).remembered);
  CHECK(ticks == 0);  // nothing is read
  CHECK_FALSE(Check(path, dir / "elsewhere").remembered);
  // Written in place under the same size and the old time, as rsync --inplace -t leaves files.
  const auto time = std::filesystem::last_write_time(path);
  Put(path, kTokens - 5000, 60000);
  std::filesystem::last_write_time(path, time);
  RequireError(ErrorCode::kData, {path, "has id 60000"}, [&] { Check(path, dir.path()); });
}

TEST_CASE("each token behind the first part is of one rank's share", "[training][data]") {
  const TempDir dir;
  const std::string path = dir / "ids.bin";
  MakeLarge(path);
  const RunData data = Open(path);
  const int world = 5;
  // The borders between the shares of what is trained on, and a token on both sides.
  const int64_t windows = (kTokens - 1) / kT, held = windows / 10, first = kOpened / 2 / kT;
  for (int rank = 0; rank <= world; ++rank) {
    const int64_t border = first + (windows - held - first) * rank / world;
    for (const int64_t token : {border * kT - kT, border * kT, border * kT + kT}) {
      if (token < kOpened / 2) continue;
      Put(path, token, 1000);
      RunRanks(world, [&](Communicator& ranks) {
        std::string said;
        try {
          CheckRunData(data, dir.path(), ranks, [] {});
        } catch (const Error& error) {
          said = error.what();
        }
        MR_CHECK(said.find("token " + std::to_string(token) + " ") != std::string::npos,
                 "rank {}: \"{}\"", ranks.rank(), said);
      });
      Put(path, token, 0);
    }
  }
}

TEST_CASE("where hosts have copies of their own each checks all of its own", "[training][data]") {
  const TempDir dir;
  for (const char* name : {"0.bin", "1.bin"}) MakeLarge(dir / name);
  Put(dir / "1.bin", kOpened / 2 + 100, 1000);  // in what would be rank 0's share
  RunRanks(2, [&](Communicator& ranks) {
    std::string said;
    try {
      CheckRunData(Open(dir / (std::to_string(ranks.rank()) + ".bin")), dir.path(), ranks, [] {});
    } catch (const Error& error) {
      said = error.what();
    }
    MR_CHECK(said.find("1.bin: token 134217828") != std::string::npos, "\"{}\"", said);
  });
}

TEST_CASE("small files are looked at when they are opened and leave nothing", "[training][data]") {
  const TempDir dir;
  WriteBytes(dir / "ids.bin", AsBytes(std::vector<uint16_t>(1000, 7)));
  const DataCheck check = Check(dir / "ids.bin", dir.path());
  CHECK(check.bytes == 0);
  CHECK(check.verdict.empty());
  Remember(check, dir.path(), FileSystem::Posix());
  CHECK_FALSE(std::filesystem::exists(dir / "data_checked"));
}

}  // namespace
}  // namespace millrace
