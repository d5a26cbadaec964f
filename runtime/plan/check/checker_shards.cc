#include "runtime/plan/check/checker_shards.h"

#include <fmt/core.h>

#include <initializer_list>
#include <map>
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
        AddExchange(momentum->out, *momentum);
      else if (const auto* muon = std::get_if<MuonUpdateOp<View>>(&op))
        AddExchange(muon->ortho, *muon);
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
    const size_t before = axes_.size() + exchanges_.size();
    ForEachOp([&](const KernelOp& op, int, int) {
      if (const auto* cast = std::get_if<CastOp<View>>(&op))
        Join(cast->x, cast->out);
      else if (const auto* sum = std::get_if<AccumulateOp<View>>(&op))
        Join(sum->x, sum->out);
      else if (const auto* exchange = std::get_if<AllToAllOp<View>>(&op))
        FollowParts(*exchange);
    });
    return axes_.size() + exchanges_.size() > before;
  }

  // What a buffer of shards that Muon updates is exchanged over, and what is then left to do.
  struct NextExchange {
    AxisSet axes, then;
  };
  template <class Attrs>
  void AddExchange(const View& shards, const Attrs& of) {
    const AxisSet axes = mesh_.Wide(of.exchange_axes), split = mesh_.Wide(of.split_axes);
    exchanges_.try_emplace(shards.buffer, NextExchange{axes, axes == split ? AxisSet() : split});
  }
  void FollowParts(const AllToAllOp<View>& op) {
    for (const auto& [from, to] :
         {std::pair{op.sent.buffer, op.received.buffer}, {op.received.buffer, op.sent.buffer}})
      if (const auto next = exchanges_.find(from);
          next != exchanges_.end() && !next->second.then.empty())
        exchanges_.try_emplace(to, NextExchange{next->second.then, {}});
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

  // Shards are exchanged over the axes that they lie along, whole flats over those that split their
  // matrices. Between the two exchanges a buffer is on the other side of both.
  void CheckExchange(const AllToAllOp<View>& op, int body, int index) {
    const auto sent = exchanges_.find(op.sent.buffer),
               received = exchanges_.find(op.received.buffer);
    const bool both = sent != exchanges_.end() && received != exchanges_.end();
    for (const auto& [next, view] : {std::pair{sent, &op.sent}, {received, &op.received}}) {
      if (next == exchanges_.end()) {
        if (!both && (sent == received)) Require(*view, op.axes, body, index);
        continue;
      }
      const bool between = both && next->second.then.empty();
      if (!between && next->second.axes != mesh_.Wide(op.axes))
        Report(body, index,
               fmt::format("goes over {}, but the shards of {} are exchanged over {}",
                           ToString(op.axes), plan_.buffer(view->buffer).name,
                           ToString(next->second.axes)));
    }
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
  ShardAxes axes_;
  std::map<BufferId, NextExchange> exchanges_;
  Violations* found_ = nullptr;
  std::optional<AxisSet> replicas_;
};

}  // namespace

void FindShardViolations(const StepPlan& plan, const Mesh& mesh, const ShardAxes& states,
                         Violations* found) {
  Shards(plan, mesh, states).Find(found);
}

}  // namespace millrace
