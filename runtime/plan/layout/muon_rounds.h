// Which rank makes which matrices orthogonal (UpdateRule::kMuon), and which of them at once. A
// matrix has to be whole there, but ranks have shards. A rank's plan is that of all, so each rank
// has as many matrices of a form as any other, at the same places.
//
// Rounds   Where the shards of a flat are alike, each some whole matrices, ranks take those that
//          they have. Other flats of one form (the blocks of a model, mostly) take turns: of those
//          in the order of the layout, the one at place i belongs to the rank at place i % W of
//          the W that shard it, in turn i / W. Such a turn is an exchange of W shards for one
//          whole flat, the same work on every rank, and an exchange back. A round is a turn. Where
//          T ranks along other axes (tensor) have parts of the matrices, it is T turns: another
//          exchange gives each of these ranks all parts of one turn's flats. No work is done
//          twice, and a matrix's bits do not depend on who owns it.
// Batches  Rounds whose matrices are orthogonalised together, those of one shape in one product.
// Slices   Of a round with more matrices than that (experts), those of a shape are cut.
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/plan/layout/shard_layout.h"

namespace millrace {

// A matrix of a flat parameter, or a rank's part of it: rows [begin, begin + rows * columns) of the
// flat, row-major. A parameter is several where matrices lie fused in it (ParamSpec::fused), and
// for each expert.
struct MuonMatrix {
  int64_t begin = 0, rows = 0, columns = 0;
  // Of a part: the dim that is cut, and the blocks along it, of each of which a rank has an equal
  // piece, one behind the other (Split::parts). Empty: it is the whole matrix.
  int dim = 0;
  std::vector<int64_t> blocks = {};
  int64_t numel() const { return rows * columns; }
  bool operator==(const MuonMatrix&) const = default;
};

struct MuonRound {
  // Flats of one form. At most as many as there are places in all turns; those that are left have
  // zeros to work on.
  std::vector<FlatId> flats;
  // flats[i] is that of place i % places in turn i / places; of one place: a rank works on its
  // shard. `turns`: of ranks along `split` each, in order, has the parts of one turn in the end.
  int64_t places = 1, turns = 1;
  AxisSet split;
  // Of one turn on a rank: its elements, the matrices in them, and what lies between these.
  int64_t turn_numel = 0;
  std::vector<MuonMatrix> matrices;
  std::vector<Range> gaps;
  int64_t numel() const { return turns * turn_numel; }
  int64_t used_turns() const { return CeilDiv(std::ssize(flats), places); }
  bool operator==(const MuonRound&) const = default;
};

// In the order of the flats that they begin with. Error(kConfig): experts' matrices that ranks have
// in parts.
std::vector<MuonRound> MuonRoundsOf(const ShardLayout& layout);

// Rounds that follow each other and are exchanged over the same axes, or none is, dealt evenly: of
// about `numel` elements of a rank at most, but for a round with more.
std::vector<std::vector<MuonRound>> MuonBatchesOf(const ShardLayout& layout, int64_t numel);

// Matrices of one shape: `count` runs, at equal distance, of `matrices` that lie end to end; or of
// their first parts, of which each next one lies `part_apart` further.
struct MuonRun {
  int64_t begin = 0, count = 1, apart = 0, matrices = 1;
  int64_t parts = 1, part_apart = 0;
  int dim = 0;
  std::vector<int64_t> blocks = {};
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

// The matrices of a shape in its order, dealt evenly: slices of at most `numel` elements, or of one
// matrix with more.
std::vector<MuonShape> MuonSlicesOf(const MuonShape& shape, int64_t numel);

}  // namespace millrace
