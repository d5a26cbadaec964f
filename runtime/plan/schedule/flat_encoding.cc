#include "runtime/plan/schedule/flat_encoding.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/plan/schedule/step_builder.h"

namespace millrace {
namespace {

// Parameters of which a program reads payloads, with the scales that it reads.
std::map<ParamId, const ProgramBuffer*> ScalesOf(const Program& program) {
  std::map<ParamId, const ProgramBuffer*> scales;
  for (const ProgramBuffer& buffer : program.buffers)
    if (buffer.role == ProgramRole::kParamScales) scales.emplace(buffer.param, &buffer);
  return scales;
}

// Rows of a table and the scales of a matrix begin at multiples of 16 bytes, for transports and for
// cuBLASLt. What is between has a magnitude of 0 and a scale of 1.
int64_t AlignedFloats(int64_t floats) { return RoundUp(floats, 16 / Bytes(DType::kF32)); }

FlatMatrix MatrixOf(const ParamPlacement& param, const Layout& scales, int64_t first_scale) {
  MR_CHECK(param.dims.size() == 2 && scales.rank == 2, "{} is gathered in FP8 and is no matrix",
           param.spec.name);
  return {param.begin, param.dims[0], param.dims[1], scales.dims[0], scales.dims[1], first_scale};
}

// The most elements of the rest that one shard has.
int64_t MostRest(const FlatEncoding& encoding, const FlatParam& flat) {
  int64_t most = 0;
  for (int64_t begin = 0; begin < flat.padded_numel; begin += flat.shard_numel)
    most =
        std::max(most, encoding.RestBefore(begin + flat.shard_numel) - encoding.RestBefore(begin));
  return most;
}

FlatEncodingRef EncodingOf(const ShardLayout& layout, FlatId id,
                           const std::map<ParamId, const ProgramBuffer*>& scales) {
  const FlatParam& flat = layout.flat(id);
  FlatEncoding encoding;
  encoding.compute = flat.key.encoding;
  encoding.shard_numel = flat.shard_numel;
  for (size_t p = 0; p < flat.params.size(); ++p) {
    const ParamPlacement& param = layout.param(flat.params[p]);
    if (const auto of = scales.find(flat.params[p]); of != scales.end()) {
      encoding.scale_rounding = of->second->scale_rounding;
      encoding.matrices.push_back(MatrixOf(param, of->second->layout, encoding.scales));
      encoding.scales = AlignedFloats(encoding.scales + of->second->layout.numel());
      continue;
    }
    // With the gap behind it: each begins in the rest as aligned as in the flat.
    const int64_t end =
        p + 1 < flat.params.size() ? layout.param(flat.params[p + 1]).begin : param.end;
    encoding.rest.push_back({param.begin, end, encoding.rest_numel});
    encoding.rest_numel += end - param.begin;
  }
  if (encoding.matrices.empty()) return nullptr;
  encoding.most_rest = AlignedFloats(MostRest(encoding, flat));
  return std::make_shared<const FlatEncoding>(std::move(encoding));
}

}  // namespace

FlatEncodings FlatEncodingsOf(const ShardLayout& layout, const Program& program) {
  FlatEncodings encodings(layout.flats.size());
  const std::map<ParamId, const ProgramBuffer*> scales = ScalesOf(program);
  if (scales.empty()) return encodings;
  for (const FlatId flat : layout.flat_ids()) encodings[flat] = EncodingOf(layout, flat, scales);
  return encodings;
}

void AddEncodedStates(const ShardLayout& layout, FlatId id, const FlatEncoding& encoding,
                      StateLayout* states) {
  const FlatParam& flat = layout.flat(id);
  const std::string content = ToString(encoding);
  const auto add = [&](std::string_view slot, const Layout& state_layout) {
    states->Add({.name = fmt::format("{}/{}", slot, flat.name),
                 .layout = state_layout,
                 .cls = BufferClass::kParameters,
                 .writer = StateWriter::kPrologue,
                 .slot = std::string(slot),
                 .flat = id,
                 .source = states->Slot(kMasterSlot.name, id),
                 .content = content});
  };
  add(kPayloadSlot, DenseLayout(DType::kE4M3, {flat.shard_numel}));
  add(kScalesSlot, DenseLayout(DType::kF32, {encoding.scales}));
  if (encoding.rest_numel > 0) add(kRestSlot, DenseLayout(encoding.compute, {encoding.rest_numel}));
}

void EmitEncoded(StepBuilder& b, FlatId id) {
  const FlatEncodingRef& encoding = b.encodings[id];
  if (!encoding) return;
  const FlatParam& flat = b.layout.flat(id);
  const int64_t shards = b.Shards(id);
  const RankInt begin(0, flat.shard_numel, flat.shard);
  const auto emit = [&](KernelOp op, const char* what) {
    b.Emit(std::move(op), StreamId::kGather, fmt::format("{}/{}", what, flat.name), flat.key.unit);
  };
  BufferId& buffer = b.tables[id];
  if (!buffer)
    buffer = b.AddBuffer("magnitudes/" + flat.name, shards * encoding->row() * Bytes(DType::kF32),
                         BufferClass::kSlots, BufferScope::kMicrobatch);
  const View table = WholeView(buffer, DType::kF32, shards * encoding->row());

  ShardMagnitudesOp<View> magnitudes;
  magnitudes.encoding = encoding;
  magnitudes.flat_begin = begin;
  magnitudes.master = b.Master(id);
  magnitudes.row = table;
  magnitudes.row.layout = DenseLayout(DType::kF32, {encoding->row()});
  if (shards > 1) {
    magnitudes.row.rank_stride = encoding->row();
    magnitudes.row.rank_axes = flat.shard;
  }
  emit(magnitudes, "magnitudes");
  if (shards > 1) {
    AllGatherOp<View> gather;
    gather.full = table;
    gather.axes = flat.shard;
    emit(gather, "gather_magnitudes");
  }
  FlatScalesOp<View> scales;
  scales.encoding = encoding;
  scales.table = table;
  scales.scales = b.Slot(kScalesSlot, id);
  scales.rest = b.Slot(kRestSlot, id);
  emit(scales, "scales");
  ShardQuantizeOp<View> quantize;
  quantize.encoding = encoding;
  quantize.flat_begin = begin;
  quantize.master = b.Master(id);
  quantize.scales = scales.scales;
  quantize.payload = b.Slot(kPayloadSlot, id);
  emit(quantize, "quantize");
}

int64_t ScalesBegin(const FlatEncoding& encoding, const ParamPlacement& param) {
  for (const FlatMatrix& matrix : encoding.matrices)
    if (matrix.begin == param.begin) return matrix.scales;
  MR_FAIL("parameter {} is not gathered in FP8", param.spec.name);
}

int64_t RestBegin(const FlatEncoding& encoding, const ParamPlacement& param) {
  for (const FlatRest& part : encoding.rest)
    if (part.begin == param.begin) return part.at;
  MR_FAIL("parameter {} is gathered in FP8 alone", param.spec.name);
}

}  // namespace millrace
