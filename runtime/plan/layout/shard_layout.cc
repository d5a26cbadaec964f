#include "runtime/plan/layout/shard_layout.h"

#include <fmt/core.h>

#include <algorithm>

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

FlatParam EmptyFlat(const std::string& name, UnitId unit, DType encoding) {
  FlatParam flat;
  flat.name = name;
  flat.unit = unit;
  flat.encoding = encoding;
  return flat;
}

// Lays the flat's parameters end to end and cuts the result into equal shards.
void PlaceParams(ShardLayout& layout, FlatId id) {
  FlatParam& flat = layout.flats[static_cast<size_t>(id.value)];
  const int64_t alignment = AlignmentNumel(flat.encoding, layout.precision);
  int64_t covered = 0;  // everything before this element is a parameter's or in a gap
  for (const ParamId param_id : flat.params) {
    ParamPlacement& param = layout.params[static_cast<size_t>(param_id.value)];
    param.flat = id;
    param.begin = RoundUp(covered, alignment);
    param.end = param.begin + param.spec.stored_numel();
    const int64_t logical_end = param.begin + param.spec.numel();
    AppendRange(flat.gaps, covered, param.begin);
    AppendRange(flat.gaps, logical_end, param.end);
    if (param.spec.decay) AppendRange(flat.decay, param.begin, logical_end);
    covered = param.end;
  }
  flat.padded_numel = RoundUp(covered, alignment * layout.mesh.Size(Axis::kShard));
  flat.shard_numel = flat.padded_numel / layout.mesh.Size(Axis::kShard);
  AppendRange(flat.gaps, covered, flat.padded_numel);
}

void CheckArguments(const ModelSpec& spec, const Mesh& mesh, const PrecisionPolicy& precision) {
  ValidateModelSpec(spec);
  for (const Axis axis : kAxes)
    MR_CHECK(mesh.Size(axis) >= 1, "mesh {}: every axis has at least 1 rank", ToString(mesh));
  for (const DType dtype :
       {precision.compute, precision.norm_params, precision.grad_accumulate, precision.grad_wire})
    MR_CHECK(dtype == DType::kF32 || dtype == DType::kBF16,
             "precision policy: {} is neither f32 nor bf16", Name(dtype));
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

ShardLayout PlanShards(const ModelSpec& spec, const Mesh& mesh, const PrecisionPolicy& precision) {
  CheckArguments(spec, mesh, precision);
  ShardLayout layout{
      .mesh = mesh, .precision = precision, .flats = {}, .params = {}, .unit_roles = {}};
  const bool norms_apart = precision.norm_params != precision.compute;
  FlatParam norms = EmptyFlat("norms", UnitId{}, precision.norm_params);

  for (size_t u = 0; u < spec.units.size(); ++u) {
    const UnitId unit{static_cast<int32_t>(u)};
    layout.unit_roles.push_back(spec.units[u].role);
    FlatParam flat = EmptyFlat(spec.units[u].name, unit, precision.compute);
    for (const ParamSpec& param : spec.units[u].params) {
      const ParamId id{static_cast<int32_t>(layout.params.size())};
      layout.params.push_back({.flat = {}, .unit = unit, .spec = param});
      (norms_apart && param.kind == ParamKind::kNorm ? norms : flat).params.push_back(id);
    }
    if (!flat.params.empty()) layout.flats.push_back(std::move(flat));
  }
  if (!norms.params.empty()) layout.flats.push_back(std::move(norms));
  for (size_t f = 0; f < layout.flats.size(); ++f)
    PlaceParams(layout, FlatId{static_cast<int32_t>(f)});
  return layout;
}

std::string ToString(const ShardLayout& layout) {
  const PrecisionPolicy& p = layout.precision;
  std::string text = fmt::format(
      "layout replicate={} shard={} compute={} norms={} grad_accumulate={} grad_wire={}\n",
      layout.mesh.Size(Axis::kReplicate), layout.mesh.Size(Axis::kShard), Name(p.compute),
      Name(p.norm_params), Name(p.grad_accumulate), Name(p.grad_wire));
  for (size_t f = 0; f < layout.flats.size(); ++f) {
    const FlatParam& flat = layout.flats[f];
    text += fmt::format("flat {} {} {} padded={} shard={}\n", f, flat.name, Name(flat.encoding),
                        flat.padded_numel, flat.shard_numel);
    for (const ParamId id : flat.params) {
      const ParamPlacement& param = layout.param(id);
      const ParamSpec& spec = param.spec;
      text +=
          fmt::format("  [{}, {}) {} {}", param.begin, param.end, spec.name, DimsText(spec.dims));
      if (spec.stored_numel() != spec.numel())
        text += fmt::format(" stored as {} rows", spec.padded_rows);
      text += '\n';
    }
    text += fmt::format("  gaps{}\n  decay{}\n", RangesText(flat.gaps), RangesText(flat.decay));
  }
  return text;
}

}  // namespace millrace
