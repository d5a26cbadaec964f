// A run's page from a record with any numbers and names in it, beyond what the readers of its files
// would let through.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "runtime/picture/page.h"
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
StepPicture Step(fuzz::ByteSource& in) {
  StepPicture step;
  step.bodies.push_back({in.Text(), 0, {}});
  step.schedule.push_back({0, 0, {}, {}});
  for (int64_t i = in.Below(8); i > 0; --i) {
    const auto begin = static_cast<double>(in.Integer(4)) / 1e6;
    step.bodies[0].ops.push_back(
        {in.Text(), in.Text(), static_cast<StreamId>(in.Below(kStreams)), 1, 0, 0, 0, {}, {}});
    step.schedule[0].times.insert(step.schedule[0].times.end(),
                                  {begin, begin + static_cast<double>(in.Integer(4)) / 1e6});
  }
  return step;
}

PlannedStep Planned(fuzz::ByteSource& in) {
  PlannedStep planned;
  planned.hash = in.Text();
  planned.machine = in.Text();
  planned.arena = in.Below(2) << 16;
  planned.picture = Step(in);
  for (int64_t i = 0; i < 7; ++i) {
    planned.classes.push_back({in.Text(), in.Below(256) << 20, in.Below(256) << 20});
    planned.picture.classes.push_back(planned.classes.back().name);
  }
  for (int64_t i = in.Below(8); i > 0; --i)
    planned.picture.buffers.push_back({in.Text(),
                                       in.Below(1 << 16),
                                       static_cast<int>(in.Below(7)),
                                       {0, 1 + in.Below(255)},
                                       {in.Below(1 << 16)}});
  return planned;
}

RecordedTimeline Measured(fuzz::ByteSource& in) {
  RecordedTimeline line{in.Text(), in.Text(), in.Text(), std::nullopt, 1 + in.Below(6), {}};
  for (int64_t rank = 0; rank < line.ranks; ++rank) line.steps[rank] = Step(in);
  return line;
}

RunRecord Record(fuzz::ByteSource& in) {
  RunRecord record;
  record.dir = in.Text();
  record.torn = in.Below(2) == 1;
  if (record.torn) record.scores.push_back({in.Text(), in.Text(), in.Number(), in.Below(9)});
  if (record.torn) record.sources.push_back({in.Text(), in.Number(), in.Number(), in.Number()});
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
    const std::string problem = fuzz::HtmlProblem(ReportHtml(record, memory), PictureScript());
    if (!problem.empty()) fuzz::Fail(__FILE__, __LINE__, "the page is well-formed: " + problem);
  }
  return 0;
}
