#include "runtime/plan/layout/shard_layout.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr int64_t kFlatAlignmentBytes = 256;

// Elements that are 256 bytes in the narrowest dtype this flat parameter is ever stored in, so that
// a parameter is aligned in all of them. The wire's counts on one rank, too, which sends nothing: a
// parameter begins at the same element whatever the number of ranks.
int64_t AlignmentNumel(DType encoding, const PrecisionPolicy& precision) {
  const int64_t narrowest =
      std::min({Bytes(encoding), Bytes(precision.grad_accumulate), Bytes(precision.grad_wire)});
  return kFlatAlignmentBytes / narrowest;
}

// Appends [begin, end), merged with the last range when they touch.
void AppendRange(std::vector<Range>& ranges, int64_t begin, int64_t end) {
  if (begin == end) return;
  if (!ranges.empty() && ranges.back().end == begin) {
    ranges.back().end = end;
  } else {
    ranges.push_back({begin, end});
  }
}

FlatParam& FlatOf(std::vector<FlatParam>& flats, const FlatKey& key, const Mesh& mesh) {
  for (FlatParam& flat : flats)
    if (flat.key == key) return flat;
  constexpr AxisSet kSharding = {Axis::kContext, Axis::kExpert, Axis::kTensor};
  FlatParam& flat = flats.emplace_back();
  flat.key = key;
  flat.shard = (mesh.Wide(kSharding) | Axis::kShard) - key.split;
  return flat;
}

// The unit's name, and behind it how this flat differs from the first of its unit.
std::string NameOf(const std::string& unit, const FlatKey& key, const FlatKey& first) {
  std::string name = unit;
  if (key.encoding != first.encoding) name += fmt::format("@{}", Name(key.encoding));
  if (key.split != first.split) name += "@" + (key.split.empty() ? "whole" : ToString(key.split));
  if (key.update != UpdateRule::kAdamW) name += fmt::format("@{}", Name(key.update));
  if (key.trainable != first.trainable) name += key.trainable ? "@trained" : "@frozen";
  return name;
}

// Checkpoints know flats by their names: one that is taken, by a unit called "norms" say, gets a
// number.
std::string FreeName(const std::string& name, std::set<std::string>* taken) {
  std::string free = name;
  for (int n = 2; !taken->insert(free).second; ++n) free = fmt::format("{}#{}", name, n);
  return free;
}

// Lays the flat's parameters end to end and cuts the result into equal shards.
void PlaceParams(ShardLayout& layout, FlatId id) {
  FlatParam& flat = layout.flats[static_cast<size_t>(id.value)];
  const int64_t alignment = AlignmentNumel(flat.key.encoding, layout.precision);
  int64_t covered = 0;  // everything before this element is a parameter's or in a gap
  for (const ParamId param_id : flat.params) {
    ParamPlacement& param = layout.params[static_cast<size_t>(param_id.value)];
    param.flat = id;
    param.begin = RoundUp(covered, alignment);
    const int64_t padding = param.spec.padded_rows - param.spec.dims[0];
    param.end = param.begin + param.numel() + padding * (param.numel() / param.dims[0]);
    const int64_t logical_end = param.begin + param.numel();
    AppendRange(flat.gaps, covered, param.begin);
    AppendRange(flat.gaps, logical_end, param.end);
    if (param.spec.decay) AppendRange(flat.decay, param.begin, logical_end);
    covered = param.end;
  }
  const int shards = layout.mesh.Size(flat.shard);
  flat.padded_numel = RoundUp(covered, alignment * shards);
  flat.shard_numel = flat.padded_numel / shards;
  AppendRange(flat.gaps, covered, flat.padded_numel);
}

void CheckArguments(const ModelSpec& spec, const Mesh& mesh, const PrecisionPolicy& precision) {
  ValidateModelSpec(spec);
  for (const Axis axis : kAxes)
    MR_CHECK(mesh.Size(axis) >= 1, "mesh {}: every axis has at least 1 rank", ToString(mesh));
  for (const DType dtype : {precision.compute, precision.norm_params, precision.grad_accumulate,
                            precision.grad_wire, precision.moments})
    MR_CHECK(dtype == DType::kF32 || IsFloatOf16Bits(dtype),
             "precision policy: {} is neither f32 nor bf16 nor f16", Name(dtype));
  MR_CHECK(precision.moments != DType::kF16, "precision policy: moments in f16");
}

std::string DimsText(const std::vector<int64_t>& dims) {
  std::string text;
  for (const int64_t dim : dims) text += (text.empty() ? "[" : ", ") + std::to_string(dim);
  return text + "]";
}

std::string RangesText(const std::vector<Range>& ranges) {
  std::string text;
  for (const Range& r : ranges) text += fmt::format(" [{}, {})", r.begin, r.end);
  return text.empty() ? " none" : text;
}

}  // namespace

bool FlatParam::Keeps(std::string_view name) const {
  const std::vector<StateSlot> of = slots();
  return std::any_of(of.begin(), of.end(),
                     [&](const StateSlot& slot) { return slot.name == name; });
}

DType FlatParam::DTypeOf(std::string_view name_of_slot) const {
  for (const StateSlot& slot : slots())
    if (slot.name == name_of_slot) return slot.dtype;
  MR_FAIL("flat parameter {} keeps no {}", name, name_of_slot);
}

int64_t ParamPlacement::numel() const {
  int64_t numel = 1;
  for (const int64_t dim : dims) numel *= dim;
  return numel;
}

DType EncodingOf(ParamKind kind, const PrecisionPolicy& precision) {
  switch (kind) {
    case ParamKind::kMatrix:
      return precision.compute;
    case ParamKind::kNorm:
      return precision.norm_params;
    case ParamKind::kF32:
      return DType::kF32;
  }
  return precision.compute;
}

ShardLayout PlanShards(const ModelSpec& spec, const Mesh& mesh, const PrecisionPolicy& precision) {
  CheckArguments(spec, mesh, precision);
  ShardLayout layout{.mesh = mesh, .precision = precision, .flats = {}, .params = {}, .units = {}};
  const UnitId shared{static_cast<int32_t>(spec.units.size())};
  std::vector<std::vector<FlatParam>> flats(spec.units.size() + 1);  // by unit

  for (size_t u = 0; u < spec.units.size(); ++u) {
    const UnitId unit{static_cast<int32_t>(u)};
    layout.units.push_back({spec.units[u].name, spec.units[u].role});
    for (const ParamSpec& param : spec.units[u].params) {
      const ParamId id{static_cast<int32_t>(layout.params.size())};
      const DType encoding = EncodingOf(param.kind, precision);
      const bool own = encoding == precision.compute && param.update != UpdateRule::kBalance;
      FlatKey key{own ? unit : shared, encoding,         {}, param.update, param.trainable,
                  param.balance,       precision.moments};
      for (const Split& split : param.splits) key.split = key.split | mesh.Wide(split.axes);
      FlatOf(flats[static_cast<size_t>(key.unit.value)], key, mesh).params.push_back(id);
      layout.params.push_back({{}, 0, 0, unit, param, LocalDims(param, mesh)});
    }
  }
  if (!flats.back().empty()) layout.units.push_back({"norms", UnitRole::kShared});
  std::set<std::string> names;
  for (std::vector<FlatParam>& of_unit : flats)
    for (FlatParam& flat : of_unit) {
      flat.name =
          FreeName(NameOf(layout.unit(flat.key.unit).name, flat.key, of_unit.front().key), &names);
      layout.flats.push_back(flat);
      PlaceParams(layout, FlatId{static_cast<int32_t>(layout.flats.size()) - 1});
    }
  return layout;
}

PrecisionPolicy ShardLayout::PrecisionOf(FlatId id) const {
  PrecisionPolicy policy = precision;
  if (flat(id).key.update == UpdateRule::kBalance)
    policy.grad_accumulate = policy.grad_wire = DType::kF32;
  return policy;
}

std::vector<std::string_view> SlotNames(const ShardLayout& layout) {
  std::vector<std::string_view> names;
  for (const FlatParam& flat : layout.flats)
    for (const StateSlot& slot : flat.slots())
      if (std::find(names.begin(), names.end(), slot.name) == names.end())
        names.push_back(slot.name);
  return names;
}

std::vector<FlatSlot> SavedSlots(const ShardLayout& layout) {
  std::vector<FlatSlot> saved;
  for (const std::string_view name : SlotNames(layout))
    for (size_t f = 0; f < layout.flats.size(); ++f)
      for (const StateSlot& slot : layout.flats[f].slots())
        if (slot.name == name) saved.push_back({slot, FlatId{static_cast<int32_t>(f)}});
  return saved;
}

std::string ToString(const ShardLayout& layout) {
  const PrecisionPolicy& p = layout.precision;
  std::string text = "layout";
  for (const Axis axis : kAxes)
    if (axis == Axis::kReplicate || axis == Axis::kShard || layout.mesh.Size(axis) > 1)
      text += fmt::format(" {}={}", Name(axis), layout.mesh.Size(axis));
  text += fmt::format(" compute={} norms={} grad_accumulate={} grad_wire={}\n", Name(p.compute),
                      Name(p.norm_params), Name(p.grad_accumulate), Name(p.grad_wire));
  if (p.moments != DType::kF32)
    text.insert(text.size() - 1, fmt::format(" moments={}", Name(p.moments)));
  for (size_t f = 0; f < layout.flats.size(); ++f) {
    const FlatParam& flat = layout.flats[f];
    text += fmt::format("flat {} {} {} padded={} shard={}", f, flat.name, Name(flat.key.encoding),
                        flat.padded_numel, flat.shard_numel);
    if (flat.shard != Axis::kShard) text += " over " + ToString(flat.shard);
    if (!flat.key.split.empty()) text += " split over " + ToString(flat.key.split);
    if (flat.key.update != UpdateRule::kAdamW) text += fmt::format(" by {}", Name(flat.key.update));
    if (flat.key.update == UpdateRule::kBalance) text += fmt::format(" {}", flat.key.balance.rate);
    text += flat.key.trainable ? "\n" : " frozen\n";
    for (const ParamId id : flat.params) {
      const ParamPlacement& param = layout.param(id);
      const ParamSpec& spec = param.spec;
      text +=
          fmt::format("  [{}, {}) {} {}", param.begin, param.end, spec.name, DimsText(spec.dims));
      if (param.dims != spec.dims) text += " here " + DimsText(param.dims);
      if (spec.stored_numel() != spec.numel())
        text += fmt::format(" stored as {} rows", spec.padded_rows);
      text += '\n';
    }
    text += fmt::format("  gaps{}\n  decay{}\n", RangesText(flat.gaps), RangesText(flat.decay));
  }
  return text;
}

}  // namespace millrace
