// Examples of evaluations. The first byte is the task, the next five are the window: seq_len (1),
// vocabulary (4).
#include <cmath>

#include "runtime/run/eval/eval_tasks.h"
#include "tests/fuzz/fuzz.h"
#include "tests/runtime/data/temp_dir.h"

using namespace millrace;

namespace {

void CheckTask(const EvalTask& task, const TaskWindow& window) {
  FUZZ_REQUIRE(!task.rows().empty());
  for (const ScoreRow& row : task.rows()) {
    const auto n = static_cast<int64_t>(row.ids.size());
    FUZZ_REQUIRE(row.first >= 1 && row.first < n && n <= window.seq_len + 1);
    for (const int32_t id : row.ids) FUZZ_REQUIRE(id >= 0 && id < window.vocab);
  }
  std::vector<double> sums;
  for (size_t i = 0; i < task.rows().size(); ++i) sums.push_back(-static_cast<double>(i % 7) - 1);
  const EvalScores scores = task.Judge(sums);
  FUZZ_REQUIRE(scores.examples >= 1 && scores.hash.size() == 32 && !scores.values.empty());
  FUZZ_REQUIRE(task.Examples(sums).size() == static_cast<size_t>(scores.examples));
  for (const auto& [name, value] : scores.values)
    FUZZ_REQUIRE(name.starts_with("acc") ? value >= 0 && value <= 1 : value > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TempDir dir;
  fuzz::ByteSource choices({reinterpret_cast<const char*>(data), size});
  constexpr const char* kTasks[] = {"hellaswag:", "hellaswag:", "hellaswag-llmc:", "ppl:", "ppl:"};
  constexpr const char* kNames[] = {"x.bin", "x.jsonl", "x.jsonl", "x.jsonl", "x.txt"};
  const auto kind = static_cast<size_t>(choices.Below(5));
  TaskWindow window;
  window.seq_len = 1 + choices.Below(256);
  window.vocab = 1 + choices.Below(1 << 16);
  const std::string path = dir / kNames[kind];
  WriteBytes(path, std::string(choices.Rest()));
  const fuzz::MemoryLimit limit(size);
  fuzz::Accepts({ErrorCode::kData}, [&] {
    CheckTask(*OpenEvalTask(kTasks[kind] + path, ByteTaskCodec(), window, 0), window);
  });
  return 0;
}
