#include "runtime/plan/layout/muon_rounds.h"

#include <algorithm>

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

}  // namespace

std::vector<MuonRound> MuonRoundsOf(const ShardLayout& layout) {
  std::vector<MuonRound> rounds;
  for (size_t f = 0; f < layout.flats.size(); ++f) {
    const FlatId id{static_cast<int32_t>(f)};
    const FlatParam& flat = layout.flat(id);
    if (flat.key.update != UpdateRule::kMuon || !flat.key.trainable) continue;
    std::vector<MuonMatrix> matrices = MatricesOf(layout, flat);
    const size_t places = static_cast<size_t>(layout.mesh.Size(flat.shard));
    const auto open = std::find_if(rounds.begin(), rounds.end(), [&](const MuonRound& round) {
      const FlatParam& first = layout.flat(round.flats.front());
      return round.flats.size() < places && round.matrices == matrices &&
             first.padded_numel == flat.padded_numel && first.shard == flat.shard &&
             first.gaps == flat.gaps;
    });
    if (open != rounds.end())
      open->flats.push_back(id);
    else
      rounds.push_back({{id}, std::move(matrices)});
  }
  return rounds;
}

}  // namespace millrace
