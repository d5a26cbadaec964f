#include "runtime/plan/layout/param_runs.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <ranges>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/base/fnv.h"

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
  // The first of these rows whose logical row ends behind an element, or their end.
  int64_t FirstBehind(int64_t logical, const Range& rows) const {
    const auto behind = std::views::iota(rows.begin, rows.end);
    return rows.begin +
           (std::ranges::partition_point(
                behind, [&](int64_t n) { return LogicalBegin(n) + logical_length_ <= logical; }) -
            behind.begin());
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
  ForEachRunWithin(layout, id, {0, layout.param(id).spec.numel()}, rank, f);
}

void ForEachRunWithin(const ShardLayout& layout, ParamId id, const Range& within, int rank,
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
  const int64_t row_end = CeilDiv(end, rows.length());
  for (int64_t n = rows.FirstBehind(within.begin, {first / rows.length(), row_end}); n < row_end;
       ++n) {
    const int64_t row = n * rows.length(), logical = rows.LogicalBegin(n);
    if (logical >= within.end) return;
    for (const Piece& run : rows.runs()) {
      const int64_t place = row + run.local,      // in the part
          shift = logical + run.logical - place;  // from there to the parameter
      const int64_t from = std::max({place, first, within.begin - shift}),
                    to = std::min({place + run.length, end, within.end - shift});
      if (from < to) f({id, from - shard, from + shift, to - from});
    }
  }
}

namespace {

int64_t Product(const std::vector<int64_t>& dims, size_t begin, size_t end) {
  return std::accumulate(dims.begin() + static_cast<std::ptrdiff_t>(begin),
                         dims.begin() + static_cast<std::ptrdiff_t>(end), int64_t{1},
                         std::multiplies<>());
}

std::vector<int64_t> PartsOf(const Split& split, int64_t dim) {
  return split.parts.empty() ? std::vector<int64_t>{dim} : split.parts;
}

// Splits along several ranks, by dim.
std::vector<const Split*> WideSplits(const ParamSpec& spec, const Mesh& mesh) {
  std::vector<const Split*> wide;
  for (const Split& split : spec.splits)
    if (mesh.Size(split.axes) > 1) wide.push_back(&split);
  std::sort(wide.begin(), wide.end(),
            [](const Split* a, const Split* b) { return a->dim < b->dim; });
  MR_REQUIRE(ErrorCode::kConfig, wide.size() <= 2,
             "optimizer.moments is bf16, but {} is split along three dims; fp32 is possible",
             spec.name);
  for (const Split* split : wide)
    MR_REQUIRE(
        ErrorCode::kConfig,
        split->parts.size() <= 1 || split->dim == 0 || (wide.size() == 2 && split == wide[0]),
        "optimizer.moments is bf16, but {} is split in {} parts of dim {}; fp32 is possible",
        spec.name, split->parts.size(), split->dim);
  return wide;
}

// Of a parameter that is split along one dim.
void AddRuns(const ParamPlacement& param, const Split& split, int64_t ranks,
             std::vector<LogicalRun>* runs) {
  const auto dim = static_cast<size_t>(split.dim);
  const std::vector<int64_t>& dims = param.spec.dims;
  const int64_t inner = Product(dims, dim + 1, dims.size());
  int64_t local = param.begin, logical = 0;
  for (const int64_t part : PartsOf(split, dims[dim])) {
    const int64_t length = part / ranks * inner;
    const int64_t end = dim == 0 ? local + length : param.begin + param.numel();
    runs->push_back({.begin = local,
                     .end = end,
                     .length = length,
                     .stride = dims[dim] * inner,
                     .first = logical,
                     .step = length,
                     .key = Fnv1a64(param.spec.name)});
    local = end;
    logical += part * inner;
  }
}

// Of one that is split along two: rows of the second, of which each part of the first has a block
// that lies together, at each place in the dims before that.
void AddRuns(const ParamPlacement& param, const Split& a, const Split& b, const Mesh& mesh,
             std::vector<LogicalRun>* runs) {
  const std::vector<int64_t>& dims = param.spec.dims;
  const auto p = static_cast<size_t>(a.dim), q = static_cast<size_t>(b.dim);
  const int64_t ranks_a = mesh.Size(a.axes), ranks_b = mesh.Size(b.axes),
                between = Product(dims, p + 1, q), stride = Product(dims, q, dims.size()),
                length = stride / ranks_b;
  // Of the ranks of both, those that are neighbours: all in one of them.
  const std::vector<int> group = mesh.Group(0, a.axes | b.axes);
  const bool a_is_outer = mesh.Index(group[1], a.axes) == 0;
  const auto order = [&](int64_t i) {
    return a_is_outer ? mesh.Index(group[static_cast<size_t>(i)], a.axes) == i / ranks_b
                      : mesh.Index(group[static_cast<size_t>(i)], b.axes) == i / ranks_a;
  };
  for (int64_t i = 0; i < std::ssize(group); ++i)
    MR_REQUIRE(ErrorCode::kConfig, order(i),
               "optimizer.moments is bf16, but {} is split over {} and, between these, over {}; "
               "fp32 is possible",
               param.spec.name, ToString(a.axes), ToString(b.axes));
  int64_t local = param.begin;
  for (int64_t before = 0; before < Product(dims, 0, p); ++before) {
    int64_t logical = before * dims[p] * between * stride;
    for (const int64_t part : PartsOf(a, dims[p])) {
      const int64_t rows = part / ranks_a * between, step_a = rows * stride;
      const int64_t end = local + rows * length;
      runs->push_back({.begin = local,
                       .end = end,
                       .length = length,
                       .stride = stride,
                       .first = logical,
                       .step = a_is_outer ? length : step_a,
                       .key = Fnv1a64(param.spec.name),
                       .inner = a_is_outer ? ranks_b : ranks_a,
                       .outer_step = a_is_outer ? step_a : length});
      local = end;
      logical += part * between * stride;
    }
  }
}

}  // namespace

std::vector<LogicalRun> LogicalRunsOf(const ShardLayout& layout, FlatId flat) {
  std::vector<LogicalRun> runs;
  for (const ParamId id : layout.flat(flat).params) {
    const ParamPlacement& param = layout.param(id);
    const std::vector<const Split*> splits = WideSplits(param.spec, layout.mesh);
    if (splits.size() == 2)
      AddRuns(param, *splits[0], *splits[1], layout.mesh, &runs);
    else if (splits.size() == 1)
      AddRuns(param, *splits[0], layout.mesh.Size(splits[0]->axes), &runs);
    else
      runs.push_back({.begin = param.begin,
                      .end = param.begin + param.numel(),
                      .length = param.numel(),
                      .key = Fnv1a64(param.spec.name)});
  }
  return runs;
}

void ForEachRun(const ShardLayout& layout, FlatId flat, int rank,
                const std::function<void(const ParamRun&)>& f) {
  for (const ParamId param : layout.flat(flat).params) ForEachRun(layout, param, rank, f);
}

}  // namespace millrace
