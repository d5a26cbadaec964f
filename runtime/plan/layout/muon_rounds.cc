#include "runtime/plan/layout/muon_rounds.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

void AddMatrices(const ParamPlacement& param, const Mesh& mesh, std::vector<MuonMatrix>* matrices) {
  const ParamSpec& spec = param.spec;
  for (const Split& split : spec.splits)
    MR_REQUIRE(ErrorCode::kConfig,
               mesh.Wide(split.axes).empty() || (spec.dims.size() == 3 && split.dim == 0),
               "optimizer.name is muon, but {} is split over {}; whole matrices are needed",
               spec.name, ToString(split.axes));
  const size_t rank = param.dims.size();
  const int64_t experts = rank == 3 ? param.dims[0] : 1, columns = param.dims[rank - 1];
  const std::vector<int64_t> whole = {param.dims[rank - 2]};
  int64_t begin = param.begin;
  for (int64_t e = 0; e < experts; ++e)
    for (const int64_t rows : spec.fused.empty() ? whole : spec.fused) {
      matrices->push_back({begin, rows, columns});
      begin += rows * columns;
    }
  MR_CHECK_EQ(begin, param.begin + param.numel(), "muon: elements of {}", spec.name);
}

std::vector<MuonMatrix> MatricesOf(const ShardLayout& layout, const FlatParam& flat) {
  std::vector<MuonMatrix> matrices;
  for (const ParamId id : flat.params) AddMatrices(layout.param(id), layout.mesh, &matrices);
  return matrices;
}

// What lies in [begin, begin + numel) of `all`, from there on; none where one of them lies across
// an end of that.
std::optional<std::vector<MuonMatrix>> WholeIn(const std::vector<MuonMatrix>& all, int64_t begin,
                                               int64_t numel) {
  std::vector<MuonMatrix> found;
  for (MuonMatrix matrix : all) {
    matrix.begin -= begin;
    if (matrix.begin + matrix.numel() <= 0 || matrix.begin >= numel) continue;
    if (matrix.begin < 0 || matrix.begin + matrix.numel() > numel) return std::nullopt;
    found.push_back(matrix);
  }
  return found;
}

std::vector<Range> GapsIn(const std::vector<Range>& all, int64_t begin, int64_t numel) {
  std::vector<Range> found;
  for (const Range& gap : all) {
    const Range part{std::max<int64_t>(gap.begin - begin, 0), std::min(gap.end - begin, numel)};
    if (part.begin < part.end) found.push_back(part);
  }
  return found;
}

// The round of a flat whose shards are alike, each some whole matrices.
std::optional<MuonRound> OnEachShard(FlatId id, const FlatParam& flat, int shards,
                                     const std::vector<MuonMatrix>& matrices) {
  MuonRound round{{id}, false, flat.shard_numel, {}, {}};
  for (int shard = 0; shard < shards; ++shard) {
    const int64_t begin = shard * flat.shard_numel;
    std::optional<std::vector<MuonMatrix>> whole = WholeIn(matrices, begin, flat.shard_numel);
    std::vector<Range> gaps = GapsIn(flat.gaps, begin, flat.shard_numel);
    if (!whole || (shard > 0 && (*whole != round.matrices || gaps != round.gaps)))
      return std::nullopt;
    round.matrices = std::move(*whole), round.gaps = std::move(gaps);
  }
  return round;
}

bool GoTogether(const ShardLayout& layout, const MuonRound& a, const MuonRound& b) {
  return a.exchanged == b.exchanged &&
         layout.flat(a.flats.front()).shard == layout.flat(b.flats.front()).shard;
}

// Appends the matrices [begin, begin + numel * matrices.size()), which lie end to end.
void AddRun(int64_t begin, int64_t matrices, std::vector<MuonRun>* runs) {
  if (!runs->empty()) {
    MuonRun& last = runs->back();
    const int64_t apart = begin - (last.begin + (last.count - 1) * last.apart);
    if (last.matrices == matrices && (last.count == 1 || last.apart == apart)) {
      last.apart = apart;
      ++last.count;
      return;
    }
  }
  runs->push_back({.begin = begin, .matrices = matrices});
}

}  // namespace

std::vector<MuonRound> MuonRoundsOf(const ShardLayout& layout) {
  std::vector<MuonRound> rounds;
  for (size_t f = 0; f < layout.flats.size(); ++f) {
    const FlatId id{static_cast<int32_t>(f)};
    const FlatParam& flat = layout.flat(id);
    if (flat.key.update != UpdateRule::kMuon || !flat.key.trainable) continue;
    std::vector<MuonMatrix> matrices = MatricesOf(layout, flat);
    const int places = layout.mesh.Size(flat.shard);
    if (std::optional<MuonRound> round = OnEachShard(id, flat, places, matrices)) {
      rounds.push_back(std::move(*round));
      continue;
    }
    const auto open = std::find_if(rounds.begin(), rounds.end(), [&](const MuonRound& round) {
      return round.exchanged && std::ssize(round.flats) < places && round.matrices == matrices &&
             round.numel == flat.padded_numel && round.gaps == flat.gaps &&
             layout.flat(round.flats.front()).shard == flat.shard;
    });
    if (open != rounds.end())
      open->flats.push_back(id);
    else
      rounds.push_back({{id}, true, flat.padded_numel, std::move(matrices), flat.gaps});
  }
  return rounds;
}

std::vector<std::vector<MuonRound>> MuonBatchesOf(const ShardLayout& layout, int64_t numel) {
  std::vector<std::vector<MuonRound>> batches;
  const std::vector<MuonRound> rounds = MuonRoundsOf(layout);
  for (auto begin = rounds.begin(); begin != rounds.end();) {
    int64_t all = 0;
    auto end = begin;
    for (; end != rounds.end() && GoTogether(layout, *begin, *end); ++end) all += end->numel;
    const int64_t count = end - begin, parts = std::min(count, CeilDiv(all, numel));
    for (int64_t part = 0; part < parts; ++part)
      batches.emplace_back(begin + part * count / parts, begin + (part + 1) * count / parts);
    begin = end;
  }
  return batches;
}

int64_t MuonShape::matrices() const {
  int64_t sum = 0;
  for (const MuonRun& run : runs) sum += run.size();
  return sum;
}

std::vector<MuonShape> MuonShapesOf(const std::vector<MuonRound>& batch) {
  std::vector<MuonMatrix> all;
  int64_t offset = 0;
  for (const MuonRound& round : batch) {
    for (MuonMatrix matrix : round.matrices) {
      matrix.begin += offset;
      all.push_back(matrix);
    }
    offset += round.numel;
  }
  std::vector<MuonShape> shapes;
  for (size_t i = 0; i < all.size();) {
    const MuonMatrix& first = all[i];
    int64_t matrices = 0;
    for (; i < all.size() &&
           all[i] == MuonMatrix{first.begin + matrices * first.numel(), first.rows, first.columns};
         ++i)
      ++matrices;
    auto shape = std::find_if(shapes.begin(), shapes.end(), [&](const MuonShape& of) {
      return of.rows == first.rows && of.columns == first.columns;
    });
    if (shape == shapes.end()) shape = shapes.insert(shape, {first.rows, first.columns, {}});
    AddRun(first.begin, matrices, &shape->runs);
  }
  return shapes;
}

}  // namespace millrace
