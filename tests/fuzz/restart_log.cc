// restarts.jsonl: what is read from any text reads back when it is logged again.
#include "runtime/data/restart_log.h"

#include <filesystem>
#include <string>

#include "tests/fuzz/fuzz.h"
#include "tests/runtime/data/temp_dir.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TempDir folder;
  const fuzz::MemoryLimit limit(size);
  const std::vector<RecordedFailure> read =
      ParseRestarts({reinterpret_cast<const char*>(data), size});
  constexpr size_t kMost = 8;
  if (read.size() > kMost) return 0;  // each line that is logged is a few system calls
  for (const RecordedFailure& recorded : read) {
    LogFailure(folder.path(), recorded.failure);
    if (recorded.resumed_step && recorded.seconds)
      LogResumed(folder.path(), *recorded.resumed_step, *recorded.seconds);
  }
  const std::vector<RecordedFailure> again = ReadRestarts(folder.path());
  std::filesystem::remove(folder / "restarts.jsonl");
  FUZZ_REQUIRE(again.size() == read.size());
  for (size_t i = 0; i < read.size(); ++i) {
    const Failure &a = read[i].failure, &b = again[i].failure;
    FUZZ_REQUIRE(a.time == b.time && a.reason == b.reason && a.exit_code == b.exit_code &&
                 a.step == b.step);
    FUZZ_REQUIRE(a.checkpoint == b.checkpoint && a.restarts == b.restarts);
    if (!read[i].resumed_step || !read[i].seconds) continue;
    FUZZ_REQUIRE(again[i].resumed_step == read[i].resumed_step &&
                 again[i].seconds == read[i].seconds);
  }
  return 0;
}
