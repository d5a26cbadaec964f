// A run's page from a record with any numbers and names in it, beyond what the readers of its files
// would let through.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "runtime/record/report/report_html.h"
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
      for (double StepRow::*column :
           {&StepRow::grad_norm, &StepRow::lr, &StepRow::tokens, &StepRow::step_ms,
            &StepRow::tokens_per_s, &StepRow::mfu, &StepRow::peak_bytes})
        row.*column = in.Number();
      break;
    default:
      break;
  }
  return row;
}

// Times and places are what the reader of a timeline, and a plan, hold to; names are anything.
std::vector<TimelineOp> Ops(fuzz::ByteSource& in) {
  std::vector<TimelineOp> ops;
  for (int64_t i = in.Below(8); i > 0; --i) {
    const auto begin = static_cast<double>(in.Integer(4)) / 1e3;
    ops.push_back({in.Text(), in.Text(), static_cast<StreamId>(in.Below(kStreams)), begin,
                   begin + static_cast<double>(in.Integer(4)) / 1e3});
  }
  return ops;
}

PlannedStep Planned(fuzz::ByteSource& in) {
  PlannedStep planned;
  for (int64_t& bytes : planned.by_class) bytes = in.Below(256) << 20;
  planned.hash = in.Text();
  planned.machine = in.Text();
  planned.ops = Ops(in);
  planned.map = {1 << 16, 256, in.Below(256), {{in.Text(), 0, 256}}, {}};
  for (int64_t i = in.Below(8); i > 0; --i) {
    const int64_t begin = in.Below(255), offset = static_cast<int64_t>(in.Integer(2));
    planned.map.stays.push_back({in.Text(), static_cast<BufferClass>(in.Below(kBufferClasses)),
                                 in.Below((1 << 16) - offset) + 1, offset, begin,
                                 begin + 1 + in.Below(255 - begin)});
  }
  return planned;
}

RecordedTimeline Measured(fuzz::ByteSource& in) {
  RecordedTimeline line{in.Text(), in.Text(), in.Text(), std::nullopt, 1 + in.Below(6), {}};
  for (int64_t rank = 0; rank < line.ranks; ++rank) line.ops[rank] = Ops(in);
  return line;
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
    for (int64_t keys = in.Below(3); keys > 0; --keys)
      call.keys[in.Text()] = {in.Text(), in.Text()};
    call.plan_stages[in.Text()] = in.Text();
    for (int64_t entries = in.Below(3); entries > 0; --entries)
      call.environment.emplace_back(in.Text(), in.Text());
    record.history.push_back(std::move(call));
  }
  for (int64_t i = in.Below(3); i > 0; --i)
    record.failures.push_back({{in.Text(), in.Text(), static_cast<int>(in.Integer(4)),
                                static_cast<int64_t>(in.Integer(8)),
                                static_cast<int64_t>(in.Integer(8)), in.Below(2) == 1},
                               std::nullopt,
                               in.Number()});
  for (int64_t i = in.Below(3); i > 0; --i) {
    CheckpointEntry entry;
    entry.step = static_cast<int64_t>(in.Integer(8));
    entry.problem = in.Text();
    record.checkpoints.push_back(std::move(entry));
  }
  if (in.Below(2) == 1) record.timeline = Measured(in);
  record.timeline_problem = in.Text();
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
  const PlannedStep planned = Planned(in);
  const RunRecord record = Record(in);
  for (const auto& memory : {std::optional<PlannedStep>(planned), std::optional<PlannedStep>()}) {
    const std::string problem = fuzz::HtmlProblem(ReportHtml(record, memory));
    if (!problem.empty()) fuzz::Fail(__FILE__, __LINE__, "the page is well-formed: " + problem);
  }
  return 0;
}
