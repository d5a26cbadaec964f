#include "runtime/plan/layout/param_runs.h"

#include <algorithm>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// Coordinates of one dim that follow each other both in the rank's part and in the parameter.
struct Piece {
  int64_t local = 0, logical = 0, length = 0;
};

std::vector<Piece> PiecesOf(const ParamSpec& spec, size_t dim, const Mesh& mesh, int rank) {
  for (const Split& split : spec.splits) {
    const int64_t ranks = mesh.Size(split.axes), place = mesh.Index(rank, split.axes);
    if (static_cast<size_t>(split.dim) != dim || ranks == 1) continue;
    std::vector<int64_t> parts = split.parts;
    if (parts.empty()) parts = {spec.dims[dim]};
    std::vector<Piece> pieces;
    int64_t local = 0, begin = 0;  // of the part
    for (const int64_t part : parts) {
      const int64_t length = part / ranks;
      pieces.push_back({local, begin + place * length, length});
      local += length;
      begin += part;
    }
    return pieces;
  }
  return {{0, 0, spec.dims[dim]}};
}

int64_t LogicalCoordinate(const std::vector<Piece>& pieces, int64_t local) {
  for (const Piece& piece : pieces)
    if (local < piece.local + piece.length) return piece.logical + (local - piece.local);
  MR_FAIL("coordinate {} is beyond a parameter's part", local);
}

// A parameter's elements as rows of one length, each made of the same pieces: the dims behind the
// last one that is split are whole, so that a piece of that one is a run.
class PartRows {
 public:
  PartRows(const ParamPlacement& param, const Mesh& mesh, int rank) : dims_(param.spec.dims) {
    size_t last = 0;
    for (size_t d = 0; d < dims_.size(); ++d) {
      pieces_.push_back(PiecesOf(param.spec, d, mesh, rank));
      if (param.dims[d] != dims_[d]) last = d;
    }
    outer_.assign(param.dims.begin(), param.dims.begin() + static_cast<std::ptrdiff_t>(last));
    for (size_t d = last + 1; d < dims_.size(); ++d) inner_ *= dims_[d];
    length_ = param.dims[last] * inner_;
    logical_length_ = dims_[last] * inner_;
    runs_ = pieces_[last];
    for (Piece& run : runs_) run = {run.local * inner_, run.logical * inner_, run.length * inner_};
  }

  int64_t length() const { return length_; }                // of a row in the part
  const std::vector<Piece>& runs() const { return runs_; }  // within a row
  // The first logical element of the row that the n-th row of the part belongs to.
  int64_t LogicalBegin(int64_t n) const {
    int64_t begin = 0, stride = logical_length_;
    for (size_t d = outer_.size(); d-- > 0;) {
      begin += LogicalCoordinate(pieces_[d], n % outer_[d]) * stride;
      n /= outer_[d];
      stride *= dims_[d];
    }
    return begin;
  }

 private:
  const std::vector<int64_t>& dims_;  // logical
  std::vector<std::vector<Piece>> pieces_;
  std::vector<int64_t> outer_;  // dims of the part before the rows'
  std::vector<Piece> runs_;
  int64_t inner_ = 1, length_ = 0, logical_length_ = 0;
};

}  // namespace

void ForEachRun(const ShardLayout& layout, ParamId id, int rank,
                const std::function<void(const ParamRun&)>& f) {
  MR_CHECK(rank >= 0 && rank < layout.mesh.world(), "rank {} of {}", rank, layout.mesh.world());
  const ParamPlacement& param = layout.param(id);
  const FlatParam& flat = layout.flat(param.flat);
  // Elements of the part, from 0, that lie in this rank's shard; padded rows are behind all.
  const int64_t shard = layout.mesh.Index(rank, flat.shard) * flat.shard_numel - param.begin;
  const int64_t first = std::max<int64_t>(shard, 0),
                end = std::min(shard + flat.shard_numel, param.numel());
  if (first >= end) return;
  const PartRows rows(param, layout.mesh, rank);
  for (int64_t n = first / rows.length(); n * rows.length() < end; ++n) {
    const int64_t row = n * rows.length(), logical = rows.LogicalBegin(n);
    for (const Piece& run : rows.runs()) {
      const int64_t from = std::max(row + run.local, first),
                    to = std::min(row + run.local + run.length, end);
      if (from < to)
        f({id, from - shard, logical + run.logical + (from - row - run.local), to - from});
    }
  }
}

void ForEachRun(const ShardLayout& layout, FlatId flat, int rank,
                const std::function<void(const ParamRun&)>& f) {
  for (const ParamId param : layout.flat(flat).params) ForEachRun(layout, param, rank, f);
}

}  // namespace millrace
