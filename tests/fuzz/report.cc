// A run's page from a record with any numbers and names in it, beyond what the readers of its files would let
// through.
#include <cmath>
#include <optional>
#include <string>

#include "runtime/api/report/report_html.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/html_check.h"

using namespace millrace;

namespace {

StepRow Row(fuzz::ByteSource& in, int64_t step) {
  StepRow row;
  row.step = step;
  row.loss = in.Number();
  switch (in.Below(4)) {
    case 0:
      row.offender = in.Text();
      break;
    case 1:
      row.eval_loss = in.Number();
      break;
    case 2:
      for (double StepRow::*column : {&StepRow::grad_norm, &StepRow::lr, &StepRow::tokens, &StepRow::step_ms,
                                      &StepRow::tokens_per_s, &StepRow::mfu, &StepRow::peak_bytes})
        row.*column = in.Number();
      break;
    default:
      break;
  }
  return row;
}

RunRecord Record(fuzz::ByteSource& in) {
  RunRecord record;
  record.dir = in.Text();
  record.torn = in.Below(2) == 1;
  record.history_problem = in.Text();
  record.checkpoints_problem = in.Text();
  // As a summary is read: from JSON text.
  if (auto summary = nlohmann::json::parse(in.Text(), nullptr, /*allow_exceptions=*/false);
      !summary.is_discarded())
    record.summary = std::move(summary);
  for (int64_t i = in.Below(3), step = 0; i > 0; --i) {
    RecordedCall call;
    call.step = step += in.Below(256);
    call.backend = in.Text();
    for (int64_t keys = in.Below(3); keys > 0; --keys) call.keys[in.Text()] = {in.Text(), in.Text()};
    call.plan_stages[in.Text()] = in.Text();
    record.history.push_back(std::move(call));
  }
  for (int64_t i = in.Below(3); i > 0; --i)
    record.failures.push_back(
        {{in.Text(), in.Text(), static_cast<int>(in.Integer(4)), static_cast<int64_t>(in.Integer(8)),
          static_cast<int64_t>(in.Integer(8)), in.Below(2) == 1},
         std::nullopt,
         in.Number()});
  for (int64_t i = in.Below(3); i > 0; --i) {
    CheckpointEntry entry;
    entry.step = static_cast<int64_t>(in.Integer(8));
    entry.problem = in.Text();
    record.checkpoints.push_back(std::move(entry));
  }
  for (int64_t step = 0; !in.empty();) {
    const int bytes = in.Below(8) == 7 ? 7 : 1;  // now and then a long way
    if (__builtin_add_overflow(step, 1 + static_cast<int64_t>(in.Integer(bytes)), &step)) break;
    record.rows.push_back(Row(in, step));
  }
  return record;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::ByteSource in({reinterpret_cast<const char*>(data), size});
  const fuzz::MemoryLimit limit(size);
  PlannedMemory planned;
  for (int64_t& bytes : planned.by_class) bytes = in.Below(256) << 20;
  const RunRecord record = Record(in);
  for (const auto& memory : {std::optional<PlannedMemory>(planned), std::optional<PlannedMemory>()}) {
    const std::string problem = fuzz::HtmlProblem(ReportHtml(record, memory));
    if (!problem.empty()) fuzz::Fail(__FILE__, __LINE__, "the page is well-formed: " + problem);
  }
  return 0;
}
