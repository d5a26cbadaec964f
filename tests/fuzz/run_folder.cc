// A run's folder as report and compare read it: metrics.jsonl, summary.json, config.json,
// restarts.jsonl and timeline.json, with lines "%%" between them.
#include "runtime/record/run_folder.h"

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "runtime/picture/page.h"
#include "runtime/record/compare_runs.h"
#include "runtime/record/report/report_html.h"
#include "runtime/record/report/run_record.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/html_check.h"
#include "tests/runtime/data/temp_dir.h"

using namespace millrace;

namespace {

constexpr std::array<const char*, 5> kFiles = {"metrics.jsonl", "summary.json", "config.json",
                                               "restarts.jsonl", "timeline.json"};

void CheckHistory(std::string_view text) {
  RunHistory history;
  if (!fuzz::Accepts({ErrorCode::kData}, [&] { history = ParseRunHistory(text, "config.json"); }))
    return;
  const std::string written = RunHistoryJson(history);
  const RunHistory again = ParseRunHistory(written, "again.json");
  FUZZ_REQUIRE(again.size() == history.size());
  for (size_t i = 0; i < again.size(); ++i) {
    FUZZ_REQUIRE(again[i].step == history[i].step && again[i].world == history[i].world);
    FUZZ_REQUIRE(again[i].backend == history[i].backend);
    FUZZ_REQUIRE(again[i].environment == history[i].environment);
  }
  FUZZ_REQUIRE(RunHistoryJson(again) == written);
  for (const RecordedCall& call : history)
    fuzz::Accepts({ErrorCode::kData}, [&] { ConfigOf(call); });
}

void CheckFolder(const std::string& folder) {
  std::optional<RecordedRun> run;
  if (!fuzz::Accepts({ErrorCode::kData}, [&] { run = ReadRunFolder(folder); })) return;
  FUZZ_REQUIRE(run->metrics.steps.empty() || CompareRuns(*run, *run).same());
  std::optional<RunRecord> record;
  if (!fuzz::Accepts({ErrorCode::kData}, [&] { record = ReadRunRecord(folder); })) return;
  FUZZ_REQUIRE(record->rows.size() == run->metrics.steps.size());
  const std::string problem = fuzz::HtmlProblem(ReportHtml(*record, std::nullopt), PictureScript());
  if (!problem.empty()) fuzz::Fail(__FILE__, __LINE__, "the page is well-formed: " + problem);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TempDir folder;
  const std::vector<std::string_view> parts =
      fuzz::Parts({reinterpret_cast<const char*>(data), size}, kFiles.size());
  for (size_t i = 0; i < kFiles.size(); ++i) {
    if (parts[i].empty())
      std::filesystem::remove(folder / kFiles[i]);
    else
      WriteBytes(folder / kFiles[i], std::string(parts[i]));
  }
  const fuzz::MemoryLimit limit(size);
  CheckHistory(parts[2]);
  CheckFolder(folder.path());
  return 0;
}
