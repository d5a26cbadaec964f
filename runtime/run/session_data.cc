// What a session reads, and how well it predicts what it has held out.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/exec/engine.h"
#include "runtime/run/data/token_rows.h"
#include "runtime/run/session.h"

namespace millrace {

const Batcher& Session::batcher() const {
  MR_CHECK(batcher_ != nullptr,
           "batches of a Session that was made without data (SessionParts::data)");
  return *batcher_;
}
const RunData& Session::data() const {
  MR_CHECK(batcher_ != nullptr, "data of a Session that was made without (SessionParts::data)");
  return data_;
}

std::string Session::DataState(int64_t data_step) const {
  if (!data().is_blend) return "null";
  const BlendState state = batcher().StateBefore(data_step);
  return DumpJson(nlohmann::ordered_json{{"sample", state.sample}, {"taken", state.taken}});
}

void Session::GoOnWithData(const std::string& state) {
  const nlohmann::json saved = ParseJson(state);
  if (!data().is_blend || !saved.is_object()) return;
  BlendState before;
  try {
    before = {saved.at("sample").get<int64_t>(), saved.at("taken").get<std::vector<int64_t>>()};
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kCheckpoint,
                fmt::format("the checkpoint's state of data.sources is of another version of "
                            "Millrace: {}",
                            error.what()));
  }
  batcher_->GoOnFrom(before);
}

std::vector<SourceFigures> Session::SourcesAfter(int64_t data_step) const {
  std::vector<SourceFigures> figures;
  if (!data().is_blend) return figures;
  const BlendState state = batcher().StateBefore(data_step);
  for (size_t i = 0; i < data_.train.size(); ++i)
    figures.push_back({data_.train[i].name, state.taken[i],
                       static_cast<double>(state.taken[i]) /
                           static_cast<double>(data_.train[i].source->windows())});
  return figures;
}

Session::MeanLoss Session::EvaluateOn(int64_t count,
                                      const std::function<HeldOutBatch(int64_t)>& batches) {
  const PhaseScope phase = Phase(RunPhase::kEvaluating);
  std::array<double, 2> sums = {};  // of losses, of weights
  for (int64_t i = 0; i < count; ++i) {
    if (marks_) marks_->Enter(RunPhase::kEvaluating, i);
    const HeldOutBatch batch = batches(i);
    sums[0] += engine_->EvalLossSum(batch.inputs);
    sums[1] += batch.weight;
  }
  // Summed in rank order, so that every rank has the same bits.
  std::array<double, 2> totals = {};
  for (const std::string& part :
       comms_->world().HostAllGather({reinterpret_cast<const char*>(&sums), sizeof sums})) {
    std::array<double, 2> of_rank;
    MR_CHECK_EQ(part.size(), sizeof of_rank, "evaluation sums of a rank");
    std::copy(part.begin(), part.end(), reinterpret_cast<char*>(&of_rank));
    for (size_t i = 0; i < totals.size(); ++i) totals[i] += of_rank[i];
  }
  // Ranks of a data rank have parts of the losses of the same targets.
  const double targets = totals[1] / static_cast<double>(world() / run_.layout.mesh.data_ranks());
  MR_REQUIRE(ErrorCode::kData, targets > 0,
             "no target of {} held-out batches counts: every token is data.end_of_document, or "
             "masks leave all out; more batches (data.eval_batches) may have some",
             count);
  return {totals[0] / targets, static_cast<int64_t>(targets)};
}

Session::MeanLoss Session::EvaluateOn(const TokenSource& held_out) {
  const StepLayout& layout = batcher().layout();
  std::optional<TokenRows> rows;
  return EvaluateOn(EvalBatches(held_out, config_.data.eval_batches, layout), [&](int64_t i) {
    rows.emplace(EvalRows(config_, held_out, i, data_rank(), layout));
    return HeldOutBatch{rows->inputs(), rows->weight()};
  });
}

Session::HeldOutLoss Session::EvaluateHeldOut() {
  const std::vector<NamedSource>& held_out = data().held_out;
  if (held_out.size() == 1 && held_out.front().name.empty())
    return {EvaluateOn(*held_out.front().source)};
  HeldOutLoss result;
  double weights = 0;
  for (const NamedSource& one : held_out) {
    const MeanLoss mean = EvaluateOn(*one.source);
    result.sources.push_back({one.name, mean.loss});
    result.loss += one.weight * mean.loss;
    result.targets += mean.targets;
    weights += one.weight;
  }
  result.loss /= weights;
  return result;
}

}  // namespace millrace
