#include "runtime/exec/checked/adversary.h"

#include <array>
#include <random>

#include "runtime/base/error.h"

namespace millrace {

std::vector<OpRef> RandomOrder(const StepPlan& plan, const std::vector<Entry>& schedule,
                               uint64_t seed) {
  std::array<std::vector<OpRef>, kStreams> queues;
  std::vector<std::vector<bool>> done;
  size_t ops = 0;
  for (size_t e = 0; e < schedule.size(); ++e) {
    const Body& body = plan.body(schedule[e]);
    for (size_t o = 0; o < body.ops.size(); ++o)
      queues[static_cast<size_t>(body.ops[o].stream)].push_back(
          {static_cast<int>(e), static_cast<int>(o)});
    done.emplace_back(body.ops.size());
    ops += body.ops.size();
  }
  const auto ready = [&](const OpRef& ref) {
    for (const Edge& edge : schedule[static_cast<size_t>(ref.entry)].edges)
      if (edge.to_op == ref.op &&
          !done[static_cast<size_t>(edge.from_entry)][static_cast<size_t>(edge.from_op)])
        return false;
    return true;
  };

  std::mt19937_64 random(seed);
  std::array<uint64_t, kStreams> weights;
  weights.fill(1);
  std::array<size_t, kStreams> heads{};
  std::vector<OpRef> order;
  order.reserve(ops);
  while (order.size() < ops) {
    if (random() % 16 == 0)
      for (uint64_t& weight : weights) weight = std::array<uint64_t, 3>{1, 30, 1000}[random() % 3];
    std::array<uint64_t, kStreams> chance{};
    uint64_t total = 0;
    for (size_t s = 0; s < kStreams; ++s) {
      if (heads[s] == queues[s].size() || !ready(queues[s][heads[s]])) continue;
      total += chance[s] = weights[s];
    }
    MR_CHECK(total > 0, "after {} of {} ops every stream waits for another", order.size(), ops);
    uint64_t draw = random() % total;
    size_t stream = 0;
    while (draw >= chance[stream]) draw -= chance[stream++];
    const OpRef next = queues[stream][heads[stream]++];
    done[static_cast<size_t>(next.entry)][static_cast<size_t>(next.op)] = true;
    order.push_back(next);
  }
  return order;
}

Adversary::Adversary(const StepPlan& plan, const Mesh& mesh, int rank, std::byte* arena,
                     uint64_t seed)
    : plan_(plan), shadow_(plan, mesh, rank, ArenaView(arena)), seed_(seed) {}

void Adversary::Run(
    const std::vector<Entry>& schedule,
    const std::function<void(const Entry&, int entry_index, int op_index)>& run_op) {
  shadow_.Begin(schedule);
  for (const OpRef& ref : RandomOrder(plan_, schedule, seed_ + 0x9E3779B97F4A7C15ull * ++runs_)) {
    shadow_.Before(ref.entry, ref.op);
    run_op(schedule[static_cast<size_t>(ref.entry)], ref.entry, ref.op);
    shadow_.After(ref.entry, ref.op);
  }
  shadow_.End();
}

}  // namespace millrace
