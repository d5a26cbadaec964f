#include "runtime/exec/agreement/order_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// The finaliser of SplitMix64: every bit of the input moves half of the output's.
uint64_t Mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

const char* NameOf(OrderLog::Kind kind) {
  switch (kind) {
    case OrderLog::Kind::kAllGather:
      return "all_gather";
    case OrderLog::Kind::kReduceScatter:
      return "reduce_scatter";
    case OrderLog::Kind::kAllReduce:
      return "all_reduce";
    case OrderLog::Kind::kAllToAll:
      return "all_to_all";
  }
  return "?";
}

std::string Words(const OrderLog::Call& call, const std::vector<std::string>& units) {
  const bool known = call.unit >= 0 && call.unit < static_cast<int32_t>(units.size());
  return fmt::format("{} of {} ({} bytes, op {} of step {})", NameOf(call.kind),
                     known ? "unit " + units[static_cast<size_t>(call.unit)] : "no unit",
                     call.bytes, call.op, call.step + 1);
}

}  // namespace

void OrderLog::Add(List& list, const Call& call) {
  if (list.newest.empty()) list.newest.resize(kKept);
  const uint64_t what = static_cast<uint64_t>(call.kind) << 32 | static_cast<uint32_t>(call.unit);
  for (const uint64_t word : {what, static_cast<uint64_t>(call.bytes),
                              static_cast<uint64_t>(call.op), static_cast<uint64_t>(call.step)})
    list.hash = Mixed(list.hash ^ word);
  list.newest[static_cast<size_t>(list.count++ % kKept)] = {call, list.hash};
}

std::string OrderLog::Digests() const {
  std::string text;
  for (const List& list : lists_) text += fmt::format("{:016x}:{:016x} ", list.count, list.hash);
  return text;
}

// Bytes: count, then the entries that are kept, oldest first.
std::string OrderLog::History(size_t comm) const {
  static_assert(std::is_trivially_copyable_v<Entry>);
  const List& list = lists_.at(comm);
  std::string bytes(reinterpret_cast<const char*>(&list.count), sizeof list.count);
  for (int64_t i = std::max<int64_t>(0, list.count - kKept); i < list.count; ++i)
    bytes.append(reinterpret_cast<const char*>(&list.newest[static_cast<size_t>(i % kKept)]),
                 sizeof(Entry));
  return bytes;
}

std::optional<OrderDifference> FirstDifference(const CommSet& comms,
                                               const std::vector<std::string>& digests) {
  constexpr size_t kDigestChars = 34;  // of one communicator
  const auto digest = [&](int rank, size_t comm) {
    return std::string_view(digests[static_cast<size_t>(rank)])
        .substr(comm * kDigestChars, kDigestChars);
  };
  for (const std::string& all : digests)
    MR_CHECK_EQ(all.size(), comms.members().size() * kDigestChars, "digests of a rank");
  for (size_t comm = 0; comm < comms.members().size(); ++comm) {
    const AxisSet axes = comms.members()[comm].axes;
    for (int rank = 0; rank < comms.mesh().world(); ++rank) {
      if (comms.mesh().Index(rank, axes) == 0) continue;
      std::vector<int> group = comms.mesh().Group(rank, axes);
      if (digest(rank, comm) != digest(group.front(), comm))
        return OrderDifference{comm, std::move(group)};
    }
  }
  return std::nullopt;
}

std::string DescribeOrder(const std::string& name, const std::vector<int>& group,
                          const std::vector<std::string>& histories,
                          const std::vector<std::string>& units) {
  struct History {
    int64_t count = 0;
    std::vector<OrderLog::Entry> kept;
    int64_t first() const { return count - static_cast<int64_t>(kept.size()); }
    uint64_t hash() const { return kept.empty() ? 0 : kept.back().hash; }
    const OrderLog::Entry* At(int64_t i) const {
      return i < first() || i >= count ? nullptr : &kept[static_cast<size_t>(i - first())];
    }
  };
  std::vector<History> ranks;
  std::map<std::pair<int64_t, uint64_t>, int> votes;
  for (const std::string& bytes : histories) {
    History& history = ranks.emplace_back();
    std::memcpy(&history.count, bytes.data(), sizeof history.count);
    history.kept.resize((bytes.size() - sizeof history.count) / sizeof(OrderLog::Entry));
    if (!history.kept.empty())
      std::memcpy(static_cast<void*>(history.kept.data()), bytes.data() + sizeof history.count,
                  bytes.size() - sizeof history.count);
    ++votes[{history.count, history.hash()}];
  }
  const auto agreeing = [&](const History& history) {
    return votes.at({history.count, history.hash()});
  };
  size_t right = 0;
  for (size_t r = 0; r < ranks.size(); ++r)
    if (agreeing(ranks[r]) > agreeing(ranks[right])) right = r;
  size_t other = 0;
  while (other < ranks.size() && ranks[other].count == ranks[right].count &&
         ranks[other].hash() == ranks[right].hash())
    ++other;
  MR_CHECK_LT(other, ranks.size(), "all ranks have issued the same collectives; rank");
  const History &a = ranks[other], &b = ranks[right];
  const std::string who =
      fmt::format("rank {} has issued other collectives than rank {} on the communicator '{}'",
                  group[other], group[right], name);
  const int64_t first = std::max(a.first(), b.first());
  if (first > 0 &&
      (a.At(first) == nullptr || b.At(first) == nullptr ||
       (a.At(first)->hash != b.At(first)->hash && a.At(first)->call == b.At(first)->call)))
    return fmt::format("{}, the first of them more than {} calls ago", who, OrderLog::kKept - 1);
  int64_t at = first;
  while (at < std::min(a.count, b.count) && a.At(at)->hash == b.At(at)->hash) ++at;
  const auto words = [&](const History& history) {
    return at < history.count ? Words(history.At(at)->call, units) : std::string("nothing");
  };
  return fmt::format("{}: call {} is {}, and {} on rank {}", who, at + 1, words(a), words(b),
                     group[right]);
}

}  // namespace millrace
