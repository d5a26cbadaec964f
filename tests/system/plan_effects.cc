#include "tests/system/plan_effects.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace millrace::test {
namespace {

bool StartsWith(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }
bool Overlap(int64_t a, int64_t a_end, int64_t b, int64_t b_end) { return a < b_end && b < a_end; }

// An op of the step in order of issue.
struct Issued {
  const PlanOp* op;
  int32_t entry;
  int64_t position;
  std::vector<size_t> waits;  // of earlier ones, on other streams
};

std::vector<Issued> IssueOrder(const StepPlan& plan) {
  std::vector<Issued> order;
  std::vector<size_t> begin;  // of each entry
  for (size_t e = 0; e < plan.schedule.size(); ++e) {
    const Entry& entry = plan.schedule[e];
    const Body& body = plan.bodies[static_cast<size_t>(entry.body)];
    begin.push_back(order.size());
    for (size_t o = 0; o < body.ops.size(); ++o)
      order.push_back(
          {&body.ops[o], static_cast<int32_t>(e), body.begin + static_cast<int64_t>(o), {}});
    for (const Edge& edge : entry.edges)
      order[begin.back() + static_cast<size_t>(edge.to_op)].waits.push_back(
          begin[static_cast<size_t>(edge.from_entry)] + static_cast<size_t>(edge.from_op));
  }
  return order;
}

// By op and stream: the last op of that stream that has ended when this one begins; -1: none has
// to.
std::vector<std::array<int64_t, kStreams>> EndedBefore(const std::vector<Issued>& order) {
  std::array<int64_t, kStreams> none;
  none.fill(-1);
  std::vector<std::array<int64_t, kStreams>> ended(order.size(), none);
  std::array<int64_t, kStreams> last = none;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto after = [&](int64_t earlier) {
      const auto& before = ended[static_cast<size_t>(earlier)];
      for (size_t s = 0; s < kStreams; ++s) ended[i][s] = std::max(ended[i][s], before[s]);
      int64_t& own = ended[i][static_cast<size_t>(order[static_cast<size_t>(earlier)].op->stream)];
      own = std::max(own, earlier);
    };
    int64_t& previous = last[static_cast<size_t>(order[i].op->stream)];
    if (previous >= 0) after(previous);
    for (const size_t earlier : order[i].waits) after(static_cast<int64_t>(earlier));
    previous = static_cast<int64_t>(i);
  }
  return ended;
}

bool Touches(const PlanOp& op, BufferId buffer) {
  bool touches = false;
  ForEachUse(op.op,
             [&](const View& view, Access, std::string_view) { touches |= view.buffer == buffer; });
  return touches;
}

// What one address, or in `dynamic` one stay, holds.
struct Bucket {
  std::string name;
  int unit = -1;                         // a block, whose buckets are several; -1: takes no slot
  int64_t element_bytes = 0, bytes = 0;  // bytes: up to a multiple of 256
  std::vector<Interval> live;
  std::vector<int64_t> at;  // one, or one for each interval
  int64_t end() const { return at.front() + bytes; }
};

bool LiveTogether(const Bucket& a, const Bucket& b) {
  for (const Interval& i : a.live)
    for (const Interval& j : b.live)
      if (Overlap(i.begin, i.end, j.begin, j.end)) return true;
  return false;
}
bool Apart(const Bucket& a, const Bucket& b) {
  return !Overlap(a.at.front(), a.end(), b.at.front(), b.end());
}

enum class Pool { kParams, kGrads };

std::vector<Bucket> BucketsOf(const StepPlan& plan, const ShardLayout& layout, Pool pool,
                              bool by_stay) {
  std::vector<Bucket> buckets;
  std::map<int32_t, size_t> groups;
  for (const PlanBuffer& buffer : plan.buffers) {
    const bool wanted =
        pool == Pool::kParams
            ? StartsWith(buffer.name, "bucket/") || StartsWith(buffer.name, "staging/")
            : (StartsWith(buffer.name, "grad/") || StartsWith(buffer.name, "grad_wire/")) &&
                  buffer.scope == BufferScope::kMicrobatch;
    if (!wanted || buffer.live.empty()) continue;
    const std::string flat_name = buffer.name.substr(
        buffer.name.find('/') + 1, buffer.name.find('#') - buffer.name.find('/') - 1);
    Bucket bucket{buffer.name,   -1, 0, (buffer.bytes + 255) / 256 * 256, buffer.live,
                  buffer.offsets};
    for (size_t f = 0; f < layout.flats.size(); ++f) {
      const FlatParam& flat = layout.flats[f];
      if (flat.name != flat_name) continue;
      if (layout.IsBlock(FlatId{static_cast<int32_t>(f)}))
        bucket.unit = static_cast<int>(flat.key.unit.value);
      bucket.element_bytes = buffer.bytes / flat.padded_numel;
    }
    if (!by_stay && buffer.group >= 0) {
      const auto [it, fresh] = groups.try_emplace(buffer.group, buckets.size());
      if (!fresh) {
        Bucket& first = buckets[it->second];
        first.live.insert(first.live.end(), bucket.live.begin(), bucket.live.end());
        if (first.at != bucket.at) first.at.push_back(-1);  // two addresses: no rule allows that
        continue;
      }
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

int64_t Sum(const std::vector<Bucket>& buckets) {
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets) bytes += bucket.bytes;
  return bytes;
}

std::string NotApart(const std::vector<Bucket>& buckets) {
  for (size_t a = 0; a < buckets.size(); ++a)
    for (size_t b = 0; b < a; ++b)
      if (!Apart(buckets[a], buckets[b]))
        return buckets[a].name + " and " + buckets[b].name + " share bytes";
  return "";
}

std::string BytesTrouble(int64_t pool, int64_t rule) {
  if (pool == rule) return "";
  return "the pool has " + std::to_string(pool) + " bytes, by the rule " + std::to_string(rule);
}

// Buckets that take turns in `copies` places of `bytes` each. Those of different turns are apart.
struct Turns {
  std::vector<Bucket> members;
  int64_t bytes = 0;
};

std::string TurnsTrouble(const std::vector<Turns>& all, int64_t copies, int64_t pool_bytes) {
  int64_t bytes = 0;
  for (const Turns& turns : all) {
    const bool alone = turns.members.size() == 1 && turns.members.front().unit < 0;
    bytes += (alone ? 1 : copies) * turns.bytes;
    int64_t low = turns.members.front().at.front();
    for (const Bucket& bucket : turns.members) low = std::min(low, bucket.at.front());
    std::set<int64_t> places;
    for (const Bucket& bucket : turns.members) {
      if (bucket.at.size() != 1) return bucket.name + " has several addresses";
      if (bucket.bytes > turns.bytes) return bucket.name + " is larger than its place";
      if ((bucket.at.front() - low) % turns.bytes != 0)
        return bucket.name + " does not begin at a place";
      places.insert((bucket.at.front() - low) / turns.bytes);
    }
    if (*places.rbegin() >= copies) return turns.members.front().name + ": too many places";
    for (const Turns& others : all)
      for (const Bucket& a : turns.members)
        for (const Bucket& b : others.members)
          if (&others != &turns && !Apart(a, b))
            return a.name + " and " + b.name + " share bytes, and do not take turns";
  }
  return BytesTrouble(pool_bytes, bytes);
}

void AddAlone(const std::vector<Bucket>& buckets, std::vector<Turns>* all) {
  for (const Bucket& bucket : buckets)
    if (bucket.unit < 0) all->push_back({{bucket}, bucket.bytes});
}

std::map<int, std::vector<Bucket>> ByUnit(const std::vector<Bucket>& buckets) {
  std::map<int, std::vector<Bucket>> units;
  for (const Bucket& bucket : buckets)
    if (bucket.unit >= 0) units[bucket.unit].push_back(bucket);
  return units;
}

std::vector<Turns> MaxPoolTurns(const std::vector<Bucket>& buckets) {
  std::map<std::pair<int64_t, size_t>, Turns> turns;  // by encoding and rank
  for (auto& [unit, members] : ByUnit(buckets)) {
    std::map<int64_t, std::vector<Bucket>> by_encoding;
    for (const Bucket& bucket : members) by_encoding[bucket.element_bytes].push_back(bucket);
    for (auto& [encoding, ranked] : by_encoding) {
      std::stable_sort(ranked.begin(), ranked.end(),
                       [](const Bucket& a, const Bucket& b) { return a.bytes > b.bytes; });
      for (size_t rank = 0; rank < ranked.size(); ++rank) {
        Turns& of_rank = turns[{encoding, rank}];
        of_rank.members.push_back(ranked[rank]);
        of_rank.bytes = std::max(of_rank.bytes, ranked[rank].bytes);
      }
    }
  }
  std::vector<Turns> all;
  for (auto& [key, of_rank] : turns) all.push_back(std::move(of_rank));
  AddAlone(buckets, &all);
  return all;
}

// The others are apart, as what takes no slot is.
std::vector<Turns> FixedTurns(const std::vector<Bucket>& buckets) {
  using Shape = std::vector<std::pair<int64_t, int64_t>>;  // encoding, bytes
  std::vector<std::pair<Shape, std::vector<Bucket>>> units;
  for (auto& [unit, members] : ByUnit(buckets)) {
    Shape shape;
    for (const Bucket& bucket : members) shape.push_back({bucket.element_bytes, bucket.bytes});
    units.push_back({shape, members});
  }
  const auto count = [&](const Shape& shape) {
    return std::count_if(units.begin(), units.end(),
                         [&](const auto& unit) { return unit.first == shape; });
  };
  std::vector<Turns> all;
  AddAlone(buckets, &all);
  if (units.empty()) return all;
  Shape commonest = units.front().first;
  for (const auto& [shape, members] : units)
    if (count(shape) > count(commonest)) commonest = shape;
  for (size_t j = 0; j < commonest.size(); ++j) {
    Turns turns{{}, commonest[j].second};
    for (const auto& [shape, members] : units)
      if (shape == commonest) turns.members.push_back(members[j]);
    all.push_back(std::move(turns));
  }
  for (auto& [shape, members] : units)
    if (shape != commonest)
      for (Bucket& bucket : members) {
        bucket.unit = -1;
        all.push_back({{bucket}, bucket.bytes});
      }
  return all;
}

std::string ColouredTrouble(const std::vector<Bucket>& buckets, int64_t pool_bytes) {
  std::map<int64_t, int64_t> places;                 // bytes by address
  std::map<int64_t, std::set<int64_t>> by_encoding;  // addresses
  for (const Bucket& a : buckets) {
    int64_t& bytes = places[a.at.front()];
    bytes = std::max(bytes, a.bytes);
    if (a.unit >= 0) by_encoding[a.element_bytes].insert(a.at.front());
    for (const Bucket& b : buckets) {
      if (&a == &b || Apart(a, b)) continue;
      if (a.unit < 0 || b.unit < 0) return a.name + " and " + b.name + " share bytes";
      if (a.at != b.at) return a.name + " and " + b.name + " overlap in part";
      if (a.element_bytes != b.element_bytes) return a.name + " and " + b.name + " mix encodings";
      if (LiveTogether(a, b)) return a.name + " and " + b.name + " are live at once";
    }
  }
  // As many addresses as buckets of an encoding are live at once.
  for (const auto& [encoding, addresses] : by_encoding) {
    size_t most = 0;
    for (const Bucket& a : buckets)
      for (const Interval& at : a.live) {
        size_t live = 0;
        for (const Bucket& b : buckets)
          live += b.unit >= 0 && b.element_bytes == encoding &&
                  std::any_of(b.live.begin(), b.live.end(), [&](const Interval& i) {
                    return i.begin <= at.begin && at.begin < i.end;
                  });
        most = std::max(most, live);
      }
    if (addresses.size() != most)
      return std::to_string(addresses.size()) + " addresses for " + std::to_string(most) +
             " buckets at once";
  }
  int64_t bytes = 0;
  for (const auto& [at, size] : places) bytes += size;
  return BytesTrouble(pool_bytes, bytes);
}

// A best-fit caching allocator, by a list of its blocks in address order.
class BestFit {
 public:
  int64_t Take(int64_t bytes) {
    Block* best = nullptr;
    for (Block& block : blocks_)
      if (block.free && block.bytes >= bytes && (best == nullptr || block.bytes < best->bytes))
        best = &block;
    if (best == nullptr) {
      blocks_.push_back({reserved_, bytes, segments_++, false});
      reserved_ += bytes;
      return reserved_ - bytes;
    }
    const Block rest{best->at + bytes, best->bytes - bytes, best->segment, true};
    const int64_t at = best->at;
    best->bytes = bytes;
    best->free = false;
    if (rest.bytes > 0) blocks_.insert(blocks_.begin() + (best - blocks_.data()) + 1, rest);
    return at;
  }
  void Give(int64_t at) {
    for (Block& block : blocks_)
      if (block.at == at) block.free = true;
    for (size_t i = 0; i + 1 < blocks_.size();) {
      const Block& next = blocks_[i + 1];
      if (blocks_[i].free && next.free && blocks_[i].segment == next.segment) {
        blocks_[i].bytes += next.bytes;
        blocks_.erase(blocks_.begin() + static_cast<int64_t>(i) + 1);
      } else {
        ++i;
      }
    }
  }
  int64_t reserved() const { return reserved_; }

 private:
  struct Block {
    int64_t at, bytes;
    int segment;
    bool free;
  };
  std::vector<Block> blocks_;
  int64_t reserved_ = 0;
  int segments_ = 0;
};

std::string DynamicTrouble(const std::vector<Bucket>& stays, int64_t base, int64_t pool_bytes) {
  // (position, a stay begins, stay, interval): at one position what ends comes first.
  std::vector<std::array<int64_t, 4>> events;
  for (size_t s = 0; s < stays.size(); ++s) {
    if (stays[s].at.size() != stays[s].live.size()) return stays[s].name + " is not placed by stay";
    for (size_t k = 0; k < stays[s].live.size(); ++k) {
      const auto stay = static_cast<int64_t>(s), interval = static_cast<int64_t>(k);
      events.push_back({stays[s].live[k].begin, 1, stay, interval});
      events.push_back({stays[s].live[k].end, 0, stay, interval});
    }
  }
  std::sort(events.begin(), events.end());
  BestFit allocator;
  for (const auto& [position, begins, s, k] : events) {
    const Bucket& stay = stays[static_cast<size_t>(s)];
    const int64_t at = stay.at[static_cast<size_t>(k)] - base;
    if (begins == 0)
      allocator.Give(at);
    else if (const int64_t wanted = allocator.Take(stay.bytes); wanted != at)
      return stay.name + " is at " + std::to_string(at) + ", a best fit is at " +
             std::to_string(wanted);
  }
  return BytesTrouble(pool_bytes, allocator.reserved());
}

std::string PackedTrouble(const StepPlan& plan) {
  if (plan.param_pool_bytes != 0 || plan.grad_pool_bytes != 0) return "there are pools";
  // The most bytes live at one position, counted at each.
  int64_t most = 0;
  for (int64_t position = 0; position < plan.timeline_end(); ++position) {
    int64_t live = 0;
    std::set<int32_t> groups;  // stays of one bucket count once
    for (const PlanBuffer& buffer : plan.buffers)
      for (const Interval& i : buffer.live)
        if (i.begin <= position && position < i.end &&
            (buffer.group < 0 || groups.insert(buffer.group).second))
          live += (buffer.bytes + 255) / 256 * 256;
    most = std::max(most, live);
  }
  // Packing is not always perfect: the plans of tiny models were up to 2.4% above that.
  if (plan.arena_bytes >= most && plan.arena_bytes <= most + most / 32) return "";
  return "the arena has " + std::to_string(plan.arena_bytes) + " bytes, live at once are " +
         std::to_string(most);
}

std::string PoolTrouble(MemoryConfig::Allocator rule, const std::vector<Bucket>& buckets,
                        int64_t copies, int64_t base, int64_t pool_bytes) {
  using Allocator = MemoryConfig::Allocator;
  if (buckets.empty()) return BytesTrouble(pool_bytes, 0);
  if (rule == Allocator::kDynamic) return DynamicTrouble(buckets, base, pool_bytes);
  for (const Bucket& bucket : buckets)
    if (bucket.at.size() != 1) return bucket.name + " has several addresses";
  if (rule == Allocator::kMaxPool) return TurnsTrouble(MaxPoolTurns(buckets), copies, pool_bytes);
  if (rule == Allocator::kFixed) return TurnsTrouble(FixedTurns(buckets), copies, pool_bytes);
  if (rule == Allocator::kColoured) return ColouredTrouble(buckets, pool_bytes);
  const std::string shared = NotApart(buckets);
  return shared.empty() ? BytesTrouble(pool_bytes, Sum(buckets)) : shared;
}

}  // namespace

std::string AllocatorTrouble(const Config& config, MemoryConfig::Allocator rule,
                             const StepPlan& plan, const ShardLayout& layout) {
  using Allocator = MemoryConfig::Allocator;
  if (rule == Allocator::kPacked) return PackedTrouble(plan);
  const bool by_stay = rule == Allocator::kDynamic;
  const std::string params =
      PoolTrouble(rule, BucketsOf(plan, layout, Pool::kParams, by_stay), config.memory.Slots(),
                  plan.persistent_bytes, plan.param_pool_bytes);
  if (!params.empty()) return "parameters: " + params;
  const std::string grads = PoolTrouble(
      rule, BucketsOf(plan, layout, Pool::kGrads, by_stay), config.memory.reduce_depth + 1,
      plan.persistent_bytes + plan.param_pool_bytes, plan.grad_pool_bytes);
  return grads.empty() ? "" : "gradients: " + grads;
}

int64_t GatherLead(const StepPlan& plan) {
  const std::vector<Issued> order = IssueOrder(plan);
  const auto steps = static_cast<int64_t>(order.size());
  // Where each gather is issued, and the first op that reads what it gathers; of the next step, if
  // this one has none.
  std::vector<std::pair<int64_t, int64_t>> gathers;
  for (int64_t i = 0; i < steps; ++i) {
    const PlanOp& op = *order[static_cast<size_t>(i)].op;
    const auto* gather = std::get_if<AllGatherOp<View>>(&op.op);
    if (gather == nullptr || op.stream != StreamId::kGather) continue;
    int64_t reader = i + 1;
    const auto reads = [&](const PlanOp& other) {  // on the exchange stream norms do
      return (other.stream == StreamId::kCompute || other.stream == StreamId::kExchange) &&
             Touches(other, gather->full.buffer);
    };
    while (reader < i + steps && !reads(*order[static_cast<size_t>(reader % steps)].op)) ++reader;
    gathers.emplace_back(i, reader);
  }
  int64_t lead = 0;
  for (const auto& [at, own_reader] : gathers) {
    int64_t unread = 0;
    for (const auto& [issued, reader] : gathers)
      unread += (issued <= at && reader > at) || reader - steps > at;
    lead = std::max(lead, unread);
  }
  return lead;
}

int64_t BlockBucketAddresses(const StepPlan& plan) {
  std::set<int64_t> addresses;
  for (const PlanBuffer& buffer : plan.buffers)
    if (StartsWith(buffer.name, "bucket/h.")) addresses.insert(buffer.offsets.front());
  return static_cast<int64_t>(addresses.size());
}

namespace {

// A reduce-scatter, and the bytes that it needs: the bucket, and what was narrowed or widened for
// the wire.
struct Reduction {
  int64_t at = 0;  // in order of issue
  int32_t entry = 0;
  std::vector<std::pair<int64_t, int64_t>> bytes;
  bool reused = false;

  bool Needs(int64_t begin, int64_t end) const {
    return std::any_of(bytes.begin(), bytes.end(), [&](const auto& range) {
      return Overlap(begin, end, range.first, range.second);
    });
  }
};

Reduction ReductionAt(const StepPlan& plan, const Issued& issued, int64_t at) {
  Reduction reduction{at, issued.entry, {}};
  const std::string flat = issued.op->label.substr(issued.op->label.find('/') + 1);
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.name != "grad/" + flat && buffer.name != "grad_wire/" + flat) continue;
    const int64_t begin = buffer.offsets.front();
    reduction.bytes.emplace_back(begin, begin + buffer.bytes);
  }
  return reduction;
}

}  // namespace

ReductionsBehind BehindReusedBuckets(const StepPlan& plan) {
  const std::vector<Issued> order = IssueOrder(plan);
  const auto ended = EndedBefore(order);
  ReductionsBehind behind;
  std::vector<Reduction> reductions;
  const auto reuse = [&](size_t r, size_t writer) {
    reductions[r].reused = true;
    const auto issued = static_cast<int64_t>(reductions.size() - r - 1);
    if (behind.issued < 0 || issued < behind.issued) behind.issued = issued;
    const int64_t reduced = ended[writer][static_cast<size_t>(StreamId::kReduce)];
    const int64_t running =
        std::count_if(reductions.begin() + static_cast<int64_t>(r) + 1, reductions.end(),
                      [&](const Reduction& later) { return later.at > reduced; });
    behind.running = std::max(behind.running, running);
  };
  for (size_t i = 0; i < order.size(); ++i) {
    const Issued& issued = order[i];
    if (std::holds_alternative<ReduceScatterOp<View>>(issued.op->op) &&
        issued.op->stream == StreamId::kReduce)
      reductions.push_back(ReductionAt(plan, issued, static_cast<int64_t>(i)));
    if (issued.op->stream != StreamId::kCompute) continue;
    ForEachUse(issued.op->op, [&](const View& view, Access access, std::string_view) {
      if (access == Access::kRead) return;
      const PlanBuffer& buffer = plan.buffer(view.buffer);
      const int64_t at = buffer.OffsetAt(issued.position);
      for (size_t r = 0; r < reductions.size(); ++r)
        if (reductions[r].entry == issued.entry && !reductions[r].reused &&
            reductions[r].Needs(at, at + buffer.bytes))
          reuse(r, i);
    });
  }
  return behind;
}

int64_t KeptBlocks(const StepPlan& plan, const ShardLayout& layout) {
  int64_t kept = 0;
  for (size_t u = 0; u < layout.units.size(); ++u)
    kept += StartsWith(layout.units[u].name, "h.") && plan.reshard[u] == Reshard::kNever;
  return kept;
}

std::string PlacedOps(const StepPlan& plan) {
  const std::string text = ScheduleText(plan);
  return MemoryText(plan) + text.substr(0, text.rfind("\nnotes\n"));
}

}  // namespace millrace::test
