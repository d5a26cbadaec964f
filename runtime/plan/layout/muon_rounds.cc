#include "runtime/plan/layout/muon_rounds.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// What the mesh splits of a parameter of one matrix, or of several fused ones; null: nothing.
const Split* SplitOf(const ParamSpec& spec, const Mesh& mesh) {
  const Split* found = nullptr;
  for (const Split& split : spec.splits) {
    if (mesh.Wide(split.axes).empty()) continue;
    if (spec.dims.size() == 3 && split.dim == 0) continue;  // by experts, each whole
    MR_REQUIRE(ErrorCode::kConfig, spec.dims.size() == 2 && found == nullptr,
               "optimizer.name, or a name in optimizer.groups, is muon for {}, which is split "
               "over {}; whole matrices are needed: adamw is allowed",
               spec.name, ToString(split.axes));
    found = &split;
  }
  return found;
}

void AddMatrices(const ParamPlacement& param, const Mesh& mesh, std::vector<MuonMatrix>* matrices) {
  const ParamSpec& spec = param.spec;
  const Split* const split = SplitOf(spec, mesh);
  const size_t rank = param.dims.size();
  const int64_t experts = rank == 3 ? param.dims[0] : 1, columns = param.dims[rank - 1];
  const int64_t pieces = split != nullptr && split->dim == 0 ? mesh.Size(split->axes) : 1;
  const std::vector<int64_t> whole = {param.dims[rank - 2] * pieces};
  const std::vector<int64_t>& fused = spec.fused.empty() ? whole : spec.fused;
  // Else a rank's rows of one would be taken for another's.
  MR_CHECK(pieces == 1 || fused.size() == 1 || fused == split->parts,
           "muon: parts of {} are not its matrices", spec.name);
  int64_t begin = param.begin;
  for (int64_t e = 0; e < experts; ++e)
    for (const int64_t rows : fused) {
      MuonMatrix matrix{begin, rows / pieces, columns};
      if (split != nullptr) {
        matrix.dim = split->dim;
        if (split->dim == 0)
          matrix.blocks =
              fused.size() > 1 || split->parts.empty() ? std::vector{rows} : split->parts;
        else
          matrix.blocks = split->parts.empty() ? std::vector{spec.dims[1]} : split->parts;
      }
      begin += matrix.numel();
      matrices->push_back(std::move(matrix));
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

// A round of the flat alone. Its ranks exchange shards, unless these are alike, each some whole
// matrices.
MuonRound RoundOf(const ShardLayout& layout, FlatId id) {
  const FlatParam& flat = layout.flat(id);
  const int shards = layout.mesh.Size(flat.shard);
  std::vector<MuonMatrix> matrices = MatricesOf(layout, flat);
  MuonRound round{.flats = {id},
                  .places = 1,
                  .turns = 1,
                  .split = {},
                  .turn_numel = 0,
                  .matrices = {},
                  .gaps = {}};
  if (std::any_of(matrices.begin(), matrices.end(),
                  [](const MuonMatrix& matrix) { return !matrix.blocks.empty(); }))
    round.split = flat.key.split, round.turns = layout.mesh.Size(flat.key.split);
  bool alike = true;
  for (int shard = 0; shard < shards && alike; ++shard) {
    const int64_t begin = shard * flat.shard_numel;
    std::optional<std::vector<MuonMatrix>> whole = WholeIn(matrices, begin, flat.shard_numel);
    std::vector<Range> gaps = GapsIn(flat.gaps, begin, flat.shard_numel);
    alike = whole && (shard == 0 || (*whole == round.matrices && gaps == round.gaps));
    if (alike) round.matrices = std::move(*whole), round.gaps = std::move(gaps);
  }
  round.turn_numel = alike ? flat.shard_numel : flat.padded_numel;
  if (alike) return round;
  round.places = shards;
  round.matrices = std::move(matrices);
  round.gaps = flat.gaps;
  return round;
}

// Are the flats of both of one form?
bool IsAnother(const ShardLayout& layout, const MuonRound& round, const MuonRound& other) {
  return round.places == other.places && round.split == other.split &&
         round.matrices == other.matrices && round.turn_numel == other.turn_numel &&
         round.gaps == other.gaps &&
         layout.flat(round.flats.front()).shard == layout.flat(other.flats.front()).shard;
}

bool GoTogether(const ShardLayout& layout, const MuonRound& a, const MuonRound& b) {
  return (a.places > 1) == (b.places > 1) && a.split == b.split &&
         layout.flat(a.flats.front()).shard == layout.flat(b.flats.front()).shard;
}

// Appends a run, as one more of those of the last where it can be.
void AddRun(MuonRun run, std::vector<MuonRun>* runs) {
  if (!runs->empty()) {
    MuonRun& last = runs->back();
    const int64_t apart = run.begin - (last.begin + (last.count - 1) * last.apart);
    MuonRun like = last;
    like.begin = run.begin, like.count = 1, like.apart = 0;
    if (like == run && (last.count == 1 || last.apart == apart)) {
      last.apart = apart;
      ++last.count;
      return;
    }
  }
  runs->push_back(std::move(run));
}

// Collects matrices as they come.
class ShapesByRun {
 public:
  void Add(const MuonMatrix& matrix, int64_t begin, int64_t parts, int64_t part_apart) {
    if (open_ && run_.parts == parts && run_.part_apart == part_apart && of_.rows == matrix.rows &&
        of_.columns == matrix.columns && of_.dim == matrix.dim && of_.blocks == matrix.blocks &&
        begin == run_.begin + run_.matrices * matrix.numel()) {
      ++run_.matrices;
      return;
    }
    Close();
    open_ = true, of_ = matrix;
    run_ = {.begin = begin,
            .count = 1,
            .apart = 0,
            .matrices = 1,
            .parts = parts,
            .part_apart = part_apart,
            .dim = matrix.dim,
            .blocks = matrix.blocks};
  }

  std::vector<MuonShape> Take() {
    Close();
    return std::move(shapes_);
  }

 private:
  void Close() {
    if (!open_) return;
    open_ = false;
    const bool turned = !of_.blocks.empty() && of_.dim == 1;
    const int64_t rows = of_.rows * (turned ? 1 : run_.parts),
                  columns = of_.columns * (turned ? run_.parts : 1);
    auto shape = std::find_if(shapes_.begin(), shapes_.end(), [&](const MuonShape& known) {
      return known.rows == rows && known.columns == columns;
    });
    if (shape == shapes_.end()) shape = shapes_.insert(shape, {rows, columns, {}});
    AddRun(run_, &shape->runs);
  }

  std::vector<MuonShape> shapes_;
  bool open_ = false;
  MuonMatrix of_;  // the run's first
  MuonRun run_;
};

}  // namespace

std::vector<MuonRound> MuonRoundsOf(const ShardLayout& layout) {
  std::vector<MuonRound> rounds;
  for (const FlatId id : layout.flat_ids()) {
    const FlatParam& flat = layout.flat(id);
    if (flat.key.update != UpdateRule::kMuon || !flat.key.trainable) continue;
    MuonRound own = RoundOf(layout, id);
    const auto open = std::find_if(rounds.begin(), rounds.end(), [&](const MuonRound& round) {
      return std::ssize(round.flats) < round.places * round.turns && IsAnother(layout, round, own);
    });
    if (open != rounds.end())
      open->flats.push_back(id);
    else
      rounds.push_back(std::move(own));
  }
  return rounds;
}

std::vector<std::vector<MuonRound>> MuonBatchesOf(const ShardLayout& layout, int64_t numel) {
  std::vector<std::vector<MuonRound>> batches;
  const std::vector<MuonRound> rounds = MuonRoundsOf(layout);
  for (auto begin = rounds.begin(); begin != rounds.end();) {
    int64_t all = 0;
    auto end = begin;
    for (; end != rounds.end() && GoTogether(layout, *begin, *end); ++end) all += end->numel();
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
  ShapesByRun shapes;
  int64_t offset = 0;
  for (const MuonRound& round : batch) {
    for (int64_t turn = 0; turn < round.turns; ++turn)
      for (const MuonMatrix& matrix : round.matrices) {
        const int64_t begin = offset + turn * round.turn_numel + matrix.begin;
        if (matrix.blocks.empty())
          shapes.Add(matrix, begin, 1, 0);
        else if (turn == 0)
          shapes.Add(matrix, begin, round.turns, round.turn_numel);
      }
    offset += round.numel();
  }
  return shapes.Take();
}

std::vector<MuonShape> MuonSlicesOf(const MuonShape& shape, int64_t numel) {
  const int64_t whole = shape.rows * shape.columns, all = shape.matrices(),
                count = CeilDiv(all, std::max<int64_t>(numel / whole, 1));
  std::vector<MuonShape> slices;
  int64_t done = 0, end = 0;
  for (const MuonRun& run : shape.runs)
    for (int64_t i = 0; i < run.count; ++i) {
      MuonRun some = run;
      some.begin = run.begin + i * run.apart, some.count = 1, some.apart = 0;
      for (int64_t left = run.matrices; left > 0; left -= some.matrices) {
        if (done == end) {
          slices.push_back({shape.rows, shape.columns, {}});
          end = std::ssize(slices) * all / count;
        }
        some.matrices = std::min(left, end - done);
        AddRun(some, &slices.back().runs);
        some.begin += some.matrices * (whole / run.parts);
        done += some.matrices;
      }
    }
  return slices;
}

}  // namespace millrace
