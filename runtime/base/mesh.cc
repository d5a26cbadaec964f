#include "runtime/base/mesh.h"

#include "runtime/base/counted.h"
#include "runtime/base/error.h"

namespace millrace {

std::string_view Name(Axis axis) {
  switch (axis) {
    case Axis::kPipe:
      return "pipe";
    case Axis::kReplicate:
      return "replicate";
    case Axis::kShard:
      return "shard";
    case Axis::kContext:
      return "context";
    case Axis::kExpert:
      return "expert";
    case Axis::kTensor:
      return "tensor";
  }
  return "?";
}

std::string ToString(AxisSet axes) {
  if (axes == AxisSet::All()) return "world";
  if (axes.empty()) return "none";
  std::string text;
  for (const Axis axis : kAxes)
    if (axes.Has(axis)) text += fmt::format("{}{}", text.empty() ? "" : "+", Name(axis));
  return text;
}

std::string ToString(const Mesh& mesh) {
  std::string text;
  for (const Axis axis : kAxes) {
    const bool always = axis == Axis::kReplicate || axis == Axis::kShard;
    if (always || mesh.Size(axis) > 1)
      text += fmt::format("{}{} {}", text.empty() ? "" : " x ", Name(axis), mesh.Size(axis));
  }
  return text;
}

std::string DataRankInWords(const Mesh& mesh) {
  const AxisSet axes = mesh.Wide(AxisSet::All() - kDataAxes);
  if (axes.empty()) return "1 rank";
  std::string text;
  for (const Axis axis : kAxes)
    if (axes.Has(axis))
      text += fmt::format("{}{} {}", text.empty() ? "" : " x ", Name(axis), mesh.Size(axis));
  return fmt::format("{} ranks ({})", mesh.Size(axes), text);
}

std::string RanksInWords(const Mesh& mesh) {
  const std::string ranks = Counted(mesh.world(), "rank");
  if (mesh.data_ranks() == mesh.world()) return ranks;
  return fmt::format("{}: {} of {}", ranks, Counted(mesh.data_ranks(), "data rank"),
                     DataRankInWords(mesh));
}

int Mesh::Index(int rank, AxisSet axes) const {
  int index = 0, scale = 1;
  for (auto axis = kAxes.rbegin(); axis != kAxes.rend(); ++axis) {
    const int size = size_[static_cast<size_t>(*axis)];
    if (axes.Has(*axis)) {
      index += scale * (rank % size);
      scale *= size;
    }
    rank /= size;
  }
  return index;
}

std::vector<int> Mesh::Group(int rank, AxisSet axes) const {
  std::vector<int> ranks = {rank};
  int apart = world();  // ranks that differ by one in `axis`
  for (const Axis axis : kAxes) {
    const int size = size_[static_cast<size_t>(axis)];
    apart /= size;
    if (!axes.Has(axis)) continue;
    std::vector<int> wider;
    for (const int member : ranks) {
      const int first = member - Index(member, axis) * apart;
      for (int i = 0; i < size; ++i) wider.push_back(first + i * apart);
    }
    ranks = std::move(wider);
  }
  return ranks;
}

int64_t RankInt::value() const {
  MR_CHECK(stride == 0, "an integer that depends on the rank ({} + {} per {}) was not bound", base,
           stride, ToString(axes));
  return base;
}

}  // namespace millrace
