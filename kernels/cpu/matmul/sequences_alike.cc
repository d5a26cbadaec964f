#include "kernels/cpu/matmul/sequences_alike.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "kernels/cpu/matmul/alike.h"
#include "kernels/ops/cpu_blocking.h"

namespace millrace::cpu {
namespace {

// The kinds of tile that matmul.cc cuts the product into.
std::set<TileKey> TilesOf(const WholeProduct& p, const MatmulBlocks& tile) {
  std::set<TileKey> tiles;
  for (int64_t col = 0; col < p.columns; col += tile.n)
    for (int64_t depth = 0; depth < p.depth; depth += tile.k)
      tiles.insert({std::min(tile.n, p.columns - col), std::min(tile.k, p.depth - depth),
                    p.b_transposed, depth > 0});
  return tiles;
}

}  // namespace

std::optional<RowOfSequence> FirstUnlike(const WholeProduct& product, int64_t sequences,
                                         int64_t positions) {
  const MatmulBlocks blocks =
      BlocksOfMatmul(product.rows, product.columns, product.depth, product.a, product.b);
  for (const TileKey& tile : TilesOf(product, blocks)) {
    std::map<int64_t, std::vector<int>> ways;  // by the tile's rows
    const auto way = [&](int64_t row) {
      const auto [tile_rows, place] = PlaceInTile(row % product.rows, product.rows, blocks.m);
      auto known = ways.find(tile_rows);
      if (known == ways.end()) known = ways.emplace(tile_rows, WaysOf(tile_rows, tile)).first;
      return known->second[static_cast<size_t>(place)];
    };
    for (int64_t s = 1; s < sequences; ++s)
      for (int64_t t = 0; t < positions; ++t)
        if (way(s * positions + t) != way(t)) return RowOfSequence{s, t};
  }
  return std::nullopt;
}

}  // namespace millrace::cpu
