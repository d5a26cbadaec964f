// What collectives a rank has issued, in what order: per communicator a running hash of all of
// them, to be compared with those of the other ranks of its group, and the newest ones themselves,
// to say where two ranks part.
//
// Every rank of a group issues the same list on its communicator: kind, unit, bytes, step, op. Two
// that issue two gathers of the same size in another order do not hang: they go on with each
// other's weights, or, of exchanges within a unit, with each other's rows. Ranks of different
// groups need not issue the same.
// Replays  of a captured graph count as the calls that were captured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm_set.h"
#include "runtime/exec/observe/progress.h"

namespace millrace {

class OrderLog {
 public:
  enum class Kind : uint8_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll };
  struct Call {
    Kind kind = Kind::kAllGather;
    int32_t unit = -1;  // UnitId; -1: none
    int64_t bytes = 0;  // this rank's part: the shard, the whole of an all-reduce
    int64_t op = 0;     // its number in the run of its plan
    int64_t step = 0;   // 0-based
    bool operator==(const Call&) const = default;
  };

  // `communicators`: how many there are. Below, `comm` is an index into CommSet::members().
  explicit OrderLog(size_t communicators) : lists_(communicators) {}

  void BeginRun(const RunInfo& run) { step_ = run.step; }
  void Issued(size_t comm, Kind kind, int32_t unit, int64_t bytes, int64_t op) {
    Add(lists_.at(comm), {kind, unit, bytes, op, step_});
  }

  // Count and hash of all calls so far, of each communicator, for FirstDifference.
  std::string Digests() const;
  // The newest calls of one communicator, each with the hash up to it, for DescribeOrder.
  std::string History(size_t comm) const;

  static constexpr int64_t kKept = 4096;

 private:
  struct Entry {
    Call call;
    uint64_t hash = 0;  // of all calls up to and with this one
  };
  struct List {
    int64_t count = 0;
    uint64_t hash = 0;
    std::vector<Entry> newest;  // call i at i % kKept
  };
  friend std::string DescribeOrder(const std::string&, const std::vector<int>&,
                                   const std::vector<std::string>&,
                                   const std::vector<std::string>&);
  static void Add(List& list, const Call& call);

  int64_t step_ = 0;
  std::vector<List> lists_;
};

// A communicator of which the ranks of one group have issued different calls.
struct OrderDifference {
  size_t comm = 0;         // index into CommSet::members()
  std::vector<int> ranks;  // of the world, by rank of the group
};

// `digests`: OrderLog::Digests of every rank of the world. The first communicator, and on it the
// first group, that disagree: the same on every rank.
std::optional<OrderDifference> FirstDifference(const CommSet& comms,
                                               const std::vector<std::string>& digests);

// Of a communicator named `name`, histories (OrderLog::History) of `ranks`, a group by the world's
// numbers, that are not all equal: the first rank that parts from what most have issued (the
// group's first, if no list has a majority), and its first call that differs. `units` are the names
// of the units, by id.
std::string DescribeOrder(const std::string& name, const std::vector<int>& ranks,
                          const std::vector<std::string>& histories,
                          const std::vector<std::string>& units);

}  // namespace millrace
