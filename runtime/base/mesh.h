// The ranks of a run as a mesh of named axes: the only one there is. Pure arithmetic.
//
// A rank has one coordinate per axis. Ranks are numbered with the innermost axis running fastest:
// the ranks of a group over inner axes are neighbours (one node, fast links), those of a group over
// outer axes lie apart.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Outermost first.
enum class Axis : uint8_t { kPipe, kReplicate, kShard, kContext, kExpert, kTensor };
inline constexpr std::array<Axis, 6> kAxes = {Axis::kPipe,    Axis::kReplicate, Axis::kShard,
                                              Axis::kContext, Axis::kExpert,    Axis::kTensor};
std::string_view Name(Axis axis);

// Several axes, in no order. Of a rank: the axes along which the members of its group differ.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(static_cast<uint8_t>(1 << static_cast<int>(axis))) {}
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) *this = *this | axis;
  }
  static constexpr AxisSet All() {
    AxisSet all;
    for (const Axis axis : kAxes) all = all | axis;
    return all;
  }

  constexpr bool Has(Axis axis) const { return (bits_ & AxisSet(axis).bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  friend constexpr AxisSet operator|(AxisSet a, AxisSet b) {
    AxisSet both;
    both.bits_ = a.bits_ | b.bits_;
    return both;
  }
  friend constexpr AxisSet operator&(AxisSet a, AxisSet b) {
    AxisSet common;
    common.bits_ = a.bits_ & b.bits_;
    return common;
  }
  friend constexpr AxisSet operator-(AxisSet a, AxisSet b) {
    AxisSet rest;
    rest.bits_ = static_cast<uint8_t>(a.bits_ & ~b.bits_);
    return rest;
  }
  constexpr bool operator==(const AxisSet&) const = default;
  constexpr auto operator<=>(const AxisSet&) const = default;

 private:
  uint8_t bits_ = 0;
};

// Along these, ranks read other sequences: a group over the rest is one *data rank*.
inline constexpr AxisSet kDataAxes = {Axis::kReplicate, Axis::kShard, Axis::kExpert};

// A group over these has one copy of the parameters, and of a data rank's activations.
inline constexpr AxisSet kCopyAxes = {Axis::kShard, Axis::kContext, Axis::kExpert, Axis::kTensor};

// "shard", "replicate+shard", outermost first; "world" for all axes, "none" for the empty set.
std::string ToString(AxisSet axes);

class Mesh {
 public:
  constexpr Mesh() = default;  // one rank
  // The axes that a configuration can ask for; the others have one rank.
  constexpr Mesh(int replicate, int shard) {
    SizeOf(Axis::kReplicate) = replicate;
    SizeOf(Axis::kShard) = shard;
  }
  constexpr Mesh With(Axis axis, int size) const {
    Mesh mesh = *this;
    mesh.SizeOf(axis) = size;
    return mesh;
  }

  // Ranks of a group over these axes; 1 for the empty set.
  constexpr int Size(AxisSet axes) const {
    int size = 1;
    for (const Axis axis : kAxes)
      if (axes.Has(axis)) size *= size_[static_cast<size_t>(axis)];
    return size;
  }
  constexpr int world() const { return Size(AxisSet::All()); }
  constexpr int data_ranks() const { return Size(kDataAxes); }
  // Those of `axes` that have several ranks: the others do nothing.
  constexpr AxisSet Wide(AxisSet axes) const {
    AxisSet wide;
    for (const Axis axis : kAxes)
      if (axes.Has(axis) && Size(axis) > 1) wide = wide | axis;
    return wide;
  }

  // The place of `rank`, in [0, world()), in its group over these axes, in [0, Size(axes)): of one
  // axis its coordinate. Group(rank, axes)[Index(rank, axes)] == rank.
  int Index(int rank, AxisSet axes) const;
  // The ranks that differ from `rank` in these axes only, itself included, ascending. [Size(axes)]
  std::vector<int> Group(int rank, AxisSet axes) const;

  bool operator==(const Mesh&) const = default;

 private:
  constexpr int& SizeOf(Axis axis) { return size_[static_cast<size_t>(axis)]; }

  std::array<int, kAxes.size()> size_ = {1, 1, 1, 1, 1, 1};
};

// "replicate 1 x shard 2"; the other axes where they have more than one rank.
std::string ToString(const Mesh& mesh);

// What a data rank is: "2 ranks (tensor 2)", "1 rank".
std::string DataRankInWords(const Mesh& mesh);
// "8 ranks: 4 data ranks of 2 ranks (tensor 2)"; "8 ranks" where each is a data rank.
std::string RanksInWords(const Mesh& mesh);

// An integer that depends on the rank: base + stride * (place of the rank in its group over
// `axes` / alike), rounded down. `alike` neighbours in the group have the same. An attribute of an
// op in a plan, which is equal on all ranks; an executor binds it.
struct RankInt {
  int64_t base = 0, stride = 0;
  AxisSet axes;
  int alike = 1;

  constexpr RankInt() = default;
  constexpr RankInt(int64_t value) : base(value) {}
  constexpr RankInt(int64_t first, int64_t step, AxisSet over, int neighbours_alike = 1)
      : base(first), stride(step), axes(over), alike(neighbours_alike) {}

  int64_t At(const Mesh& mesh, int rank) const {
    return base + stride * (mesh.Index(rank, axes) / alike);
  }
  // Of an integer that has been bound, or is the same on all ranks. Error(kInternal) otherwise.
  int64_t value() const;
  bool operator==(const RankInt&) const = default;
};

}  // namespace millrace
