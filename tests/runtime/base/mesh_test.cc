// The mesh against coordinates that are counted out, one rank after the other.
#include "runtime/base/mesh.h"

#include <catch2/catch.hpp>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using Coordinates = std::array<int, kAxes.size()>;

Mesh MeshOf(const Coordinates& sizes) {
  Mesh mesh;
  for (const Axis axis : kAxes) mesh = mesh.With(axis, sizes[static_cast<size_t>(axis)]);
  return mesh;
}

// Of every rank, the outermost axis slowest.
std::vector<Coordinates> Counted(const Coordinates& sizes) {
  std::vector<Coordinates> ranks;
  Coordinates c;
  for (c[0] = 0; c[0] < sizes[0]; ++c[0])
    for (c[1] = 0; c[1] < sizes[1]; ++c[1])
      for (c[2] = 0; c[2] < sizes[2]; ++c[2])
        for (c[3] = 0; c[3] < sizes[3]; ++c[3])
          for (c[4] = 0; c[4] < sizes[4]; ++c[4])
            for (c[5] = 0; c[5] < sizes[5]; ++c[5]) ranks.push_back(c);
  return ranks;
}

// All sizes from 1 to 3 of each axis, and some more.
std::vector<Coordinates> Sizes() {
  std::vector<Coordinates> all = {{1, 5, 7, 1, 1, 1}, {4, 1, 1, 5, 1, 2}, {1, 1, 64, 1, 1, 1}};
  for (const Coordinates& c : Counted({3, 3, 3, 3, 3, 3})) {
    Coordinates sizes;
    int world = 1;
    for (size_t a = 0; a < c.size(); ++a) world *= sizes[a] = c[a] + 1;
    if (world <= 36) all.push_back(sizes);
  }
  return all;
}

std::vector<AxisSet> Sets() {
  std::vector<AxisSet> sets;
  for (int bits = 0; bits < 1 << kAxes.size(); ++bits) {
    AxisSet set;
    for (const Axis axis : kAxes)
      if ((bits >> static_cast<int>(axis) & 1) != 0) set = set | axis;
    sets.push_back(set);
  }
  return sets;
}

// "" or what is wrong with one mesh and set.
std::string WrongAt(const Coordinates& sizes, const std::vector<Coordinates>& ranks, AxisSet set) {
  const Mesh mesh = MeshOf(sizes);
  if (mesh.world() != static_cast<int>(ranks.size())) return "world";
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<int> group;
    for (size_t other = 0; other < ranks.size(); ++other) {
      bool member = true;
      for (size_t a = 0; a < kAxes.size(); ++a)
        member = member && (set.Has(kAxes[a]) || ranks[other][a] == ranks[rank][a]);
      if (member) group.push_back(static_cast<int>(other));
    }
    const int r = static_cast<int>(rank);
    if (mesh.Group(r, set) != group) return "group of rank " + std::to_string(rank);
    if (mesh.Size(set) != static_cast<int>(group.size())) return "size";
    const int index = mesh.Index(r, set);
    if (index < 0 || index >= mesh.Size(set) || group[static_cast<size_t>(index)] != r)
      return "index of rank " + std::to_string(rank);
    for (const Axis axis : kAxes)
      if (mesh.Index(r, axis) != ranks[rank][static_cast<size_t>(axis)]) return "coordinate";
  }
  return "";
}

TEST_CASE("groups, places and coordinates, of every rank, set of axes and small mesh", "[base]") {
  const std::vector<AxisSet> sets = Sets();
  REQUIRE(sets.size() == 64);
  int meshes = 0;
  for (const Coordinates& sizes : Sizes()) {
    const std::vector<Coordinates> ranks = Counted(sizes);
    for (const AxisSet set : sets) {
      const std::string wrong = WrongAt(sizes, ranks, set);
      if (!wrong.empty()) FAIL(ToString(MeshOf(sizes)) << ", " << ToString(set) << ": " << wrong);
    }
    ++meshes;
  }
  CHECK(meshes > 400);
}

// replicate 2 x shard 3:   shard  0 1 2
//           replica 0             0 1 2
//           replica 1             3 4 5
TEST_CASE("shard groups are neighbours, replicas lie apart", "[base]") {
  const Mesh mesh(2, 3);
  CHECK(mesh == Mesh().With(Axis::kReplicate, 2).With(Axis::kShard, 3));
  CHECK(mesh.Group(4, Axis::kShard) == std::vector<int>{3, 4, 5});
  CHECK(mesh.Group(5, Axis::kReplicate) == std::vector<int>{2, 5});
  CHECK(mesh.Group(2, {}) == std::vector<int>{2});
  CHECK(mesh.Group(2, AxisSet::All()) == std::vector<int>{0, 1, 2, 3, 4, 5});
  CHECK(mesh.Index(4, Axis::kReplicate) == 1);
  CHECK(mesh.Index(4, Axis::kShard) == 1);
}

TEST_CASE("sets have the axes that they are made of", "[base]") {
  constexpr AxisSet two = {Axis::kTensor, Axis::kShard};
  static_assert(two.Has(Axis::kShard) && !two.Has(Axis::kExpert));
  CHECK(two == (AxisSet(Axis::kShard) | Axis::kTensor));
  CHECK(two != AxisSet(Axis::kShard));
  CHECK((two & AxisSet({Axis::kShard, Axis::kExpert})) == Axis::kShard);
  CHECK((two - AxisSet({Axis::kShard, Axis::kExpert})) == Axis::kTensor);
  CHECK((AxisSet::All() - two) ==
        AxisSet({Axis::kPipe, Axis::kReplicate, Axis::kContext, Axis::kExpert}));
  CHECK(AxisSet().empty());
  CHECK(ToString(two) == "shard+tensor");
  CHECK(ToString(AxisSet::All()) == "world");
  CHECK(ToString(AxisSet()) == "none");
  CHECK(ToString(Mesh(1, 4)) == "replicate 1 x shard 4");
  CHECK(ToString(Mesh(2, 1).With(Axis::kTensor, 8)) == "replicate 2 x shard 1 x tensor 8");
}

TEST_CASE("ranks are counted in data ranks where these are several", "[base]") {
  CHECK(RanksInWords(Mesh()) == "1 rank");
  CHECK(RanksInWords(Mesh(2, 4)) == "8 ranks");
  CHECK(RanksInWords(Mesh(1, 4).With(Axis::kTensor, 2)) ==
        "8 ranks: 4 data ranks of 2 ranks (tensor 2)");
  CHECK(RanksInWords(Mesh().With(Axis::kTensor, 2).With(Axis::kContext, 3)) ==
        "6 ranks: 1 data rank of 6 ranks (context 3 x tensor 2)");
  CHECK(RanksInWords(Mesh(1, 2).With(Axis::kExpert, 2)) == "4 ranks");
  CHECK(DataRankInWords(Mesh(2, 4)) == "1 rank");
}

TEST_CASE("an integer that depends on the rank is used when it is bound", "[base]") {
  const Mesh mesh(2, 3);
  const RankInt begin(100, 10, Axis::kShard);
  CHECK(begin.At(mesh, 0) == 100);
  CHECK(begin.At(mesh, 4) == 110);
  CHECK(RankInt(0, 7, AxisSet::All()).At(mesh, 5) == 35);
  CHECK(RankInt(begin.At(mesh, 4)).value() == 110);
  CHECK(RankInt(5).value() == 5);
  CHECK_THROWS_AS(begin.value(), Error);
}

}  // namespace
}  // namespace millrace
