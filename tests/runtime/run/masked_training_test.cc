// Training on documents and on targets that a mask chooses, on in-process ranks: what a run says
// when it goes on with other masks.
#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/runtime/run/training_run.h"

namespace millrace {
namespace {

using Words = std::vector<std::string>;

// A warning of `words` that has all of `parts`.
bool HasWarning(const Words& words, const std::vector<std::string>& parts) {
  for (const std::string& text : words) {
    bool all = true;
    for (const std::string& part : parts) all &= text.find(part) != std::string::npos;
    if (all) return true;
  }
  return false;
}

TEST_CASE("a run that goes on with other document masks says which they were", "[training]") {
  // Lines of text are documents.
  test::TrainingRun run(1,
                        {"data.document_mask=true", "data.end_of_document=10", "train.steps=24"});
  std::atomic<bool> stop = false;
  const auto train_to = [&](int64_t step) {
    stop = false;
    return run.Train(
        {}, [&](const StepReport& report) { stop = report.step >= step; }, &stop);
  };
  CHECK(train_to(4).empty());
  CHECK(train_to(6).empty());
  run.Set("data.end_of_document=46");
  CHECK(HasWarning(train_to(8), {"data.end_of_document was 10 when", "and is 46 now"}));
  run.Set("data.document_mask=false");
  run.Set("data.end_of_document=null");
  const Words off = train_to(10);
  CHECK(HasWarning(off, {"data.document_mask was true when", "and is false now"}));
  CHECK_FALSE(HasWarning(off, {"data.end_of_document"}));
  CHECK(train_to(11).empty());
  run.Set("data.document_mask=true");
  run.Set("data.end_of_document=46");
  CHECK(HasWarning(run.Train(), {"data.document_mask was false when", "and is true now"}));
}

}  // namespace
}  // namespace millrace
