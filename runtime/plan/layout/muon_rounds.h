// Which rank makes which matrices orthogonal (UpdateRule::kMuon), and which of them at once. A
// matrix has to be whole there, but ranks have shards. A rank's plan is that of all, so each rank
// has as many matrices of a form as any other, at the same places.
//
// Rounds   Where the shards of a flat are alike, each some whole matrices, ranks take those that
//          they have. Other flats of one form (the blocks of a model, mostly) take turns: of those
//          in the order of the layout, the one at place i belongs to the rank at place i % W of
//          the W that shard it, in round i / W. Such a round is an exchange of W shards for one
//          whole flat, the same work on every rank, and an exchange back. No work is done twice,
//          and a matrix's bits do not depend on who owns it.
// Batches  Rounds whose matrices are orthogonalised together, those of one shape in one product.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

// A matrix of a flat parameter: rows [begin, begin + rows * columns) of the flat, row-major. A
// parameter is several where matrices lie fused in it (ParamSpec::fused), and for each expert.
struct MuonMatrix {
  int64_t begin = 0, rows = 0, columns = 0;
  int64_t numel() const { return rows * columns; }
  bool operator==(const MuonMatrix&) const = default;
};

struct MuonRound {
  // Exchanged: flats of one form; that of place i in its group over their shard axes is flats[i].
  // At most as many as there are places; those that are left have zeros to work on. Else one flat,
  // of which a rank works on its shard.
  std::vector<FlatId> flats;
  bool exchanged = false;
  // Of what a rank works on: its elements, the matrices in them, and what lies between these.
  int64_t numel = 0;
  std::vector<MuonMatrix> matrices;
  std::vector<Range> gaps;
  bool operator==(const MuonRound&) const = default;
};

// In the order of the flats that they begin with. Error(kConfig): a matrix that is split over
// ranks.
std::vector<MuonRound> MuonRoundsOf(const ShardLayout& layout);

// Rounds that follow each other and are exchanged over the same axes, or all not exchanged, dealt
// evenly: of about `numel` elements of a rank at most, but for a round with more.
std::vector<std::vector<MuonRound>> MuonBatchesOf(const ShardLayout& layout, int64_t numel);

// Matrices of one shape: `count` runs, at equal distance, of `matrices` that lie end to end.
struct MuonRun {
  int64_t begin = 0, count = 1, apart = 0, matrices = 1;
  int64_t size() const { return count * matrices; }
  bool operator==(const MuonRun&) const = default;
};
struct MuonShape {
  int64_t rows = 0, columns = 0;
  std::vector<MuonRun> runs;
  int64_t matrices() const;  // of all runs
  bool operator==(const MuonShape&) const = default;
};

// The matrices of a batch, its rounds end to end, by shape, in the order in which they are met.
std::vector<MuonShape> MuonShapesOf(const std::vector<MuonRound>& batch);

}  // namespace millrace
