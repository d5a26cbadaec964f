#include "runtime/plan/check/checker_shards.h"

#include <fmt/core.h>

#include <initializer_list>
#include <optional>
#include <utility>

#include "runtime/plan/check/access_table.h"

namespace millrace {
namespace {

class Shards {
 public:
  Shards(const StepPlan& plan, const Mesh& mesh, ShardAxes states)
      : plan_(plan), mesh_(mesh), axes_(std::move(states)) {
    ForEachOp([&](const KernelOp& op, int, int) {
      ForEachShard(op, [&](const View& shard, AxisSet along) {
        axes_.try_emplace(shard.buffer, mesh_.Wide(along));
      });
    });
    ForEachOp([&](const KernelOp& op, int, int) {
      if (const auto* momentum = std::get_if<MuonMomentumOp<View>>(&op))
        split_.try_emplace(momentum->out.buffer, mesh_.Wide(momentum->split_axes));
      else if (const auto* muon = std::get_if<MuonUpdateOp<View>>(&op))
        split_.try_emplace(muon->ortho.buffer, mesh_.Wide(muon->split_axes));
    });
    // A copy is followed at each pass; few are copied twice.
    while (FollowCopies()) continue;
  }

  void Find(Violations* found) {
    found_ = found;
    ForEachOp([&](const KernelOp& op, int body, int index) { Check(op, body, index); });
  }

 private:
  template <class F>
  void ForEachOp(F f) const {
    for (size_t b = 0; b < plan_.bodies.size(); ++b)
      for (size_t o = 0; o < plan_.bodies[b].ops.size(); ++o)
        f(plan_.bodies[b].ops[o].op, static_cast<int>(b), static_cast<int>(o));
  }

  // What an update says of the shards that it is about: f(shard, axes).
  template <class F>
  static void ForEachShard(const KernelOp& op, F f) {
    const auto all = [&](std::initializer_list<View> shards, AxisSet axes) {
      for (const View& shard : shards)
        if (shard) f(shard, axes);
    };
    if (const auto* adamw = std::get_if<AdamWOp<View>>(&op))
      all({adamw->master, adamw->grad, adamw->compute}, adamw->flat_begin.axes);
    else if (const auto* balance = std::get_if<RouterBiasOp<View>>(&op))
      all({balance->bias, balance->load}, balance->flat_begin.axes);
    else if (const auto* momentum = std::get_if<MuonMomentumOp<View>>(&op))
      all({momentum->grad, momentum->m, momentum->out}, momentum->shard_axes);
    else if (const auto* magnitudes = std::get_if<ShardMagnitudesOp<View>>(&op))
      all({magnitudes->master, magnitudes->row}, magnitudes->flat_begin.axes);
    else if (const auto* quantize = std::get_if<ShardQuantizeOp<View>>(&op))
      all({quantize->master, quantize->payload}, quantize->flat_begin.axes);
    else if (const auto* muon = std::get_if<MuonUpdateOp<View>>(&op))
      all({muon->ortho, muon->master, muon->compute}, muon->shard_axes);
  }

  bool FollowCopies() {
    const size_t before = axes_.size() + split_.size();
    ForEachOp([&](const KernelOp& op, int, int) {
      if (const auto* cast = std::get_if<CastOp<View>>(&op))
        Join(cast->x, cast->out);
      else if (const auto* sum = std::get_if<AccumulateOp<View>>(&op))
        Join(sum->x, sum->out);
      else if (const auto* exchange = std::get_if<AllToAllOp<View>>(&op))
        FollowParts(*exchange);
    });
    return axes_.size() + split_.size() > before;
  }
  // On the other side of an exchange over the axes that shard a flat it is whole, but for what
  // splits its parameters.
  void FollowParts(const AllToAllOp<View>& op) {
    for (const auto& [shards, whole] :
         {std::pair{op.sent.buffer, op.received.buffer}, {op.received.buffer, op.sent.buffer}})
      if (const auto split = split_.find(shards); split != split_.end())
        if (const auto along = axes_.find(shards);
            along != axes_.end() && along->second == mesh_.Wide(op.axes))
          split_.try_emplace(whole, split->second);
  }
  void Join(const View& a, const View& b) {
    if (const auto known = axes_.find(a.buffer); known != axes_.end())
      axes_.try_emplace(b.buffer, known->second);
    else if (const auto other = axes_.find(b.buffer); other != axes_.end())
      axes_.try_emplace(a.buffer, other->second);
  }

  void Check(const KernelOp& op, int body, int index) {
    ForEachShard(op, [&](const View& shard, AxisSet along) { Require(shard, along, body, index); });
    if (const auto* gather = std::get_if<AllGatherOp<View>>(&op))
      Require(gather->shard ? gather->shard : gather->full, gather->axes, body, index);
    else if (const auto* scatter = std::get_if<ReduceScatterOp<View>>(&op))
      Require(scatter->shard, scatter->axes, body, index);
    else if (const auto* sum = std::get_if<AllReduceOp<View>>(&op))
      RequireReplicas(*sum, body, index);
    else if (const auto* exchange = std::get_if<AllToAllOp<View>>(&op))
      CheckExchange(*exchange, body, index);
  }

  // Shards are exchanged over the axes that they lie along; whole flats, and those whose shards are
  // whole matrices, over those that split these.
  void CheckExchange(const AllToAllOp<View>& op, int body, int index) {
    const AxisSet axes = mesh_.Wide(op.axes);
    const auto parts = [&](const View& view) -> const AxisSet* {
      const auto split = split_.find(view.buffer);
      return split == split_.end() || split->second.empty() ? nullptr : &split->second;
    };
    bool shards = false;
    for (const View& view : {op.sent, op.received}) {
      if (!axes_.contains(view.buffer)) continue;
      shards = true;
      if (const AxisSet* split = parts(view); split == nullptr || *split != axes)
        Require(view, op.axes, body, index);
    }
    if (shards) return;
    for (const View& view : {op.sent, op.received})
      if (const AxisSet* split = parts(view); split != nullptr && *split != axes)
        return Report(
            body, index,
            fmt::format("goes over {}, but the parts of {} lie along {}", ToString(op.axes),
                        plan_.buffer(view.buffer).name, ToString(*split)));
  }

  void Require(const View& shard, AxisSet axes, int body, int index) {
    const auto known = axes_.find(shard.buffer);
    if (known == axes_.end() || known->second == mesh_.Wide(axes)) return;
    Report(body, index,
           fmt::format("goes over {}, but the shards of {} lie along {}", ToString(axes),
                       plan_.buffer(shard.buffer).name, ToString(known->second)));
  }

  void RequireReplicas(const AllReduceOp<View>& op, int body, int index) {
    const auto known = axes_.find(op.buffer.buffer);
    if (known == axes_.end()) return;
    const AxisSet axes = mesh_.Wide(op.axes);
    if (!(axes & known->second).empty())
      Report(body, index,
             fmt::format("sums over {} what is sharded along {}", ToString(axes),
                         ToString(known->second)));
    if (!replicas_) replicas_ = axes;
    if (*replicas_ != axes)
      Report(body, index,
             fmt::format("sums a gradient over {}, where others are over {}", ToString(axes),
                         ToString(*replicas_)));
  }

  void Report(int body, int index, const std::string& what) {
    if (found_->empty())
      found_->push_back({ViolationKind::kCollective,
                         fmt::format("{}: {}", DescribeAt(plan_, body, index), what)});
  }

  const StepPlan& plan_;
  const Mesh& mesh_;
  ShardAxes axes_, split_;  // of buffers with shards; with parts of matrices that Muon updates
  Violations* found_ = nullptr;
  std::optional<AxisSet> replicas_;
};

}  // namespace

void FindShardViolations(const StepPlan& plan, const Mesh& mesh, const ShardAxes& states,
                         Violations* found) {
  Shards(plan, mesh, states).Find(found);
}

}  // namespace millrace
