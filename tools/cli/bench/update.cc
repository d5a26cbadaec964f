#include "tools/cli/bench/update.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/ops/cost.h"
#include "runtime/base/error.h"
#include "runtime/base/quantile.h"
#include "runtime/base/step_scalars.h"
#include "runtime/exec/bound_op.h"
#include "runtime/exec/engine.h"
#include "tools/cli/bench/stopwatch.h"

namespace millrace {
namespace {

constexpr int kSamples = 30, kFirst = 3;

// Norm, clip factor and update of some flat parameters, or of parts of them.
struct UpdateOps {
  std::vector<SumSquaresOp<TensorView>> norms;
  StepStatsOp<TensorView> stats;
  std::vector<AdamWOp<TensorView>> updates;
  int64_t kernels() const { return static_cast<int64_t>(norms.size() + 1 + updates.size()); }
};

TensorView Part(const TensorView& view, int64_t begin, int64_t numel) {
  if (!view) return {};
  return {view.data + begin * Bytes(view.dtype()), DenseLayout(view.dtype(), {numel})};
}

// The AdamW ops of the training plan where they run, with the flat parameter of each.
struct FlatUpdate {
  const FlatParam* flat = nullptr;
  AdamWOp<TensorView> op;
};
std::vector<FlatUpdate> FlatUpdates(Session& session) {
  const StepPlan& plan = session.run().plans.Of("train");
  const Binding binding = session.engine().BindingOf(plan);
  std::vector<FlatUpdate> found;
  const Body& body = plan.body(plan.schedule.back());
  for (size_t i = 0; i < body.ops.size(); ++i) {
    const auto* adamw = std::get_if<AdamWOp<View>>(&body.ops[i].op);
    if (adamw == nullptr) continue;
    const FlatId flat = session.run().plans.states.tensor(adamw->master.buffer).flat;
    MR_CHECK(flat, "{} updates no flat parameter", body.ops[i].label);
    const BoundOp bound = BindOp(binding, body.ops[i].op, body.begin + static_cast<int64_t>(i), 0);
    found.push_back({&session.run().layout.flat(flat), std::get<AdamWOp<TensorView>>(bound)});
  }
  return found;
}

// The parts of `flats` that belong to one parameter each, on this rank.
std::vector<AdamWOp<TensorView>> PerTensor(const std::vector<FlatUpdate>& flats,
                                           const ShardLayout& layout) {
  std::vector<AdamWOp<TensorView>> parts;
  for (const FlatUpdate& flat : flats)
    for (const ParamId id : flat.flat->params) {
      const ParamPlacement& param = layout.param(id);
      const int64_t begin = std::max<int64_t>(param.begin - flat.op.flat_begin.value(), 0);
      const int64_t end = std::min(param.end - flat.op.flat_begin.value(), flat.flat->shard_numel);
      if (begin >= end) continue;  // another rank's
      AdamWOp<TensorView> part = flat.op;
      for (TensorView* view : {&part.master, &part.m, &part.v, &part.grad, &part.compute})
        *view = Part(*view, begin, end - begin);
      part.flat_begin.base += begin;
      parts.push_back(part);
    }
  return parts;
}

// The memory of norms, scalars and workspace: their own, so that the step's stay as they are.
class Scratch {
 public:
  Scratch(Session& session, size_t parts, int64_t workspace)
      : width_(2 * static_cast<int64_t>(parts) + 1),
        rows_bytes_((width_ * 8 + 255) / 256 * 256),
        buffer_(
            session.device().Allocate(rows_bytes_ + 256 + workspace, "norms of bench --update")),
        workspace_(workspace) {
    Stream& stream = session.engine().stream(StreamId::kCompute);
    const std::vector<double> zeros(static_cast<size_t>(width_));  // no loss, nothing bad
    session.device().CopyFromHost(buffer_->data(), zeros.data(), width_ * 8, stream);
    StepScalars scalars{};
    scalars.inv_valid_tokens = 1;
    scalars.inject_grad_unit = -1;
    scalars.lr = 1e-4;
    session.device().CopyFromHost(buffer_->data() + rows_bytes_,
                                  reinterpret_cast<const std::byte*>(&scalars), sizeof scalars,
                                  stream);
  }

  TensorView norm(size_t part) const {
    return {buffer_->data() + 8 * part, DenseLayout(DType::kF64, {1})};
  }
  TensorView rows() const { return {buffer_->data(), DenseLayout(DType::kF64, {1, width_})}; }
  TensorView scalars() const {
    return {buffer_->data() + rows_bytes_,
            DenseLayout(DType::kU8, {static_cast<int64_t>(sizeof(StepScalars))})};
  }
  TensorView workspace() const {
    if (workspace_ == 0) return {};
    return {buffer_->data() + rows_bytes_ + 256, DenseLayout(DType::kU8, {workspace_})};
  }

 private:
  static_assert(sizeof(StepScalars) <= 256);
  int64_t width_, rows_bytes_;
  std::unique_ptr<DeviceBuffer> buffer_;
  int64_t workspace_;
};

UpdateOps UpdateOf(std::vector<AdamWOp<TensorView>> parts, const Scratch& scratch, double clip) {
  UpdateOps update;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].scalars = scratch.scalars();
    SumSquaresOp<TensorView> norm;
    norm.x = parts[i].grad;
    norm.out = scratch.norm(i);
    norm.scratch = scratch.workspace();
    update.norms.push_back(norm);
  }
  update.stats.rows = scratch.rows();
  update.stats.scalars = scratch.scalars();
  update.stats.units = static_cast<int64_t>(parts.size());
  update.stats.clip = clip;
  update.updates = std::move(parts);
  return update;
}

int64_t WorkspaceOf(const std::vector<AdamWOp<TensorView>>& parts, Backend backend) {
  int64_t most = 0;
  for (const AdamWOp<TensorView>& part : parts) {
    SumSquaresOp<Shape> norm;
    norm.x = {part.grad.layout, true};
    norm.out = {DenseLayout(DType::kF64, {1}), true};
    most = std::max(most, WorkspaceBytes(norm, backend));
  }
  return most;
}

using Issue = std::function<void()>;

UpdateRow Time(Session& session, const std::string& name, int64_t kernels,
               const std::vector<Issue>& issues) {
  Stopwatch watch(session.device());
  Stream& stream = session.engine().stream(StreamId::kCompute);
  UpdateRow row{name, kernels, static_cast<int64_t>(issues.size()), {}, {}};
  for (int i = 0; i < kFirst + kSamples; ++i) {
    double host_us = 0;
    const double ms = watch.Time(stream, [&] {
      const auto begin = std::chrono::steady_clock::now();
      for (const Issue& issue : issues) issue();
      host_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                    .count();
    });
    if (i < kFirst) continue;
    row.us.push_back(1e3 * ms);
    row.host_us.push_back(host_us);
  }
  return row;
}

// `issues` as one graph each.
std::vector<std::unique_ptr<Graph>> Captured(Session& session, const std::vector<Issue>& issues) {
  Stream& stream = session.engine().stream(StreamId::kCompute);
  std::vector<std::unique_ptr<Graph>> graphs;
  for (const Issue& issue : issues) {
    session.device().BeginCapture(stream);
    issue();
    graphs.push_back(session.device().EndCapture(stream));
  }
  return graphs;
}

void TimeAll(Session& session, const KernelTable& kernels, const std::string& what,
             const UpdateOps& update, std::vector<UpdateRow>& rows) {
  Stream& stream = session.engine().stream(StreamId::kCompute);
  std::vector<Issue> single;
  for (const auto& norm : update.norms)
    single.push_back([&kernels, &stream, &norm] { kernels.sum_squares(norm, stream); });
  const size_t clip = single.size();
  single.push_back([&] { kernels.step_stats(update.stats, stream); });
  for (const auto& adamw : update.updates)
    single.push_back([&kernels, &stream, &adamw] { kernels.adamw(adamw, stream); });
  rows.push_back(Time(session, what + ", launches", update.kernels(), single));
  if (!session.device().captures()) return;

  const auto span = [&single](size_t begin, size_t end) {
    return [&single, begin, end] {
      for (size_t i = begin; i < end; ++i) single[i]();
    };
  };
  const auto time_graphs = [&](const std::string& name, const std::vector<Issue>& sections) {
    const std::vector<std::unique_ptr<Graph>> graphs = Captured(session, sections);
    std::vector<Issue> launches;
    for (const auto& graph : graphs) launches.push_back([&] { graph->Launch(stream); });
    rows.push_back(Time(session, what + ", " + name, update.kernels(), launches));
  };
  time_graphs("three graphs", {span(0, clip), span(clip, clip + 1), span(clip + 1, single.size())});
  time_graphs("one graph", {span(0, single.size())});
}

}  // namespace

std::vector<UpdateRow> TimeUpdates(Session& session, const Environment& environment) {
  const std::vector<FlatUpdate> flats = FlatUpdates(session);
  std::vector<AdamWOp<TensorView>> whole;
  for (const FlatUpdate& flat : flats) whole.push_back(flat.op);
  std::vector<AdamWOp<TensorView>> parts = PerTensor(flats, session.run().layout);
  const Backend backend = environment.traits.backend;
  Stream& stream = session.engine().stream(StreamId::kCompute);
  for (const AdamWOp<TensorView>& op : whole)
    FillWithNoise(session.device(), op.grad.data, op.grad.bytes(), stream);
  std::vector<UpdateRow> rows;
  for (const auto& [what, ops] : {std::pair{"per tensor", &parts}, std::pair{"per flat", &whole}}) {
    const Scratch scratch(session, ops->size(), WorkspaceOf(*ops, backend));
    const UpdateOps update = UpdateOf(*ops, scratch, session.config().optimizer.clip);
    TimeAll(session, *environment.kernels, what, update, rows);
    stream.Sync();  // nothing reads the scratch after it has gone
  }
  return rows;
}

nlohmann::ordered_json UpdatesJson(const std::vector<UpdateRow>& rows) {
  nlohmann::ordered_json updates = nlohmann::ordered_json::array();
  for (const UpdateRow& row : rows)
    updates.push_back({{"name", row.name},
                       {"kernels", row.kernels},
                       {"launches", row.launches},
                       {"us_samples", row.us},
                       {"host_us_samples", row.host_us}});
  return updates;
}

std::string UpdatesText(const std::vector<UpdateRow>& rows) {
  std::string text = fmt::format("{:<28}{:>9}{:>10}{:>12}{:>12}\n", "norm, clip and update",
                                 "kernels", "launches", "us", "host us");
  for (const UpdateRow& row : rows)
    text += fmt::format("{:<28}{:>9}{:>10}{:>12.1f}{:>12.1f}\n", row.name, row.kernels,
                        row.launches, Quantile(row.us, 0.5), Quantile(row.host_us, 0.5));
  return text;
}

}  // namespace millrace
