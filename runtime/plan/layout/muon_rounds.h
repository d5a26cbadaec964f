// Which rank makes which matrices orthogonal (UpdateRule::kMuon). A matrix has to be whole there,
// but ranks have shards. Flats of one form (the blocks of a model, mostly) take turns: of those in
// the order of the layout, the one at place i belongs to the rank at place i % W of the W that
// shard it, in round i / W. A round is an exchange of W shards for one whole flat, the same work on
// every rank, and an exchange back: so plans are equal on all ranks, no work is done twice, and a
// matrix's bits do not depend on who owns it.
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

// Flats of one form; that of place i in its group over their shard axes is flats[i]. At most as
// many as there are places; those that are left have zeros to work on.
struct MuonRound {
  std::vector<FlatId> flats;
  std::vector<MuonMatrix> matrices;  // of each of them
  bool operator==(const MuonRound&) const = default;
};

// In the order of the flats that they begin with. Error(kConfig): a matrix that is split over
// ranks.
std::vector<MuonRound> MuonRoundsOf(const ShardLayout& layout);

}  // namespace millrace
