// What collectives a rank has issued, in what order: a running hash of all of them, to be compared
// with that of the other ranks, and the newest ones themselves, to say where two ranks part.
//
// Every rank of a job issues the same list: op, unit, group, bytes, step. Two that issue two
// gathers of the same size in another order do not hang: they go on with each other's weights.
// Replays  of a captured graph count as the calls that were captured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops/step_ops.h"
#include "runtime/exec/progress.h"

namespace millrace {

class OrderLog {
 public:
  enum class Kind : uint8_t { kAllGather, kReduceScatter, kAllReduce };
  struct Call {
    Kind kind = Kind::kAllGather;
    AxisGroup group = AxisGroup::kShard;
    int32_t unit = -1;  // UnitId; -1: none
    int64_t bytes = 0;  // this rank's part: the shard, the whole of an all-reduce
    int64_t step = 0;   // 0-based
    bool operator==(const Call&) const = default;
  };

  void BeginRun(const RunInfo& run) { step_ = run.step; }
  void Issued(Kind kind, AxisGroup group, int32_t unit, int64_t bytes) {
    Add({kind, group, unit, bytes, step_});
  }

  // Count and hash of all calls so far. Equal on all ranks, or they have issued different calls.
  std::string Digest() const;
  // The newest calls, each with the hash up to it, for FirstDifference of any rank.
  std::string History() const;

  static constexpr int64_t kKept = 4096;

 private:
  struct Entry {
    Call call;
    uint64_t hash = 0;  // of all calls up to and with this one
  };
  friend std::string DescribeOrder(const std::vector<std::string>&,
                                   const std::vector<std::string>&);
  void Add(const Call& call);

  int64_t step_ = 0, count_ = 0;
  uint64_t hash_ = 0;
  std::vector<Entry> newest_;  // call i at i % kKept
};

// Histories of all ranks that are not equal: the first rank that parts from what most have issued
// (rank 0, if no list has a majority), and its first call that differs. `units` are the names of
// the units, by id.
std::string DescribeOrder(const std::vector<std::string>& histories,
                          const std::vector<std::string>& units);

}  // namespace millrace
