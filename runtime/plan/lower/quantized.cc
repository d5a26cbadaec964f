#include "runtime/plan/lower/quantized.h"

#include <any>
#include <memory>
#include <vector>

#include "kernels/ops/cuda_float8.h"
#include "kernels/ops/fp8_ops.h"
#include "runtime/base/arithmetic.h"
#include "runtime/plan/lower/lowering.h"

namespace millrace {
namespace {

using Along = QuantizedViews::Along;
enum class Side { kA, kB };

DType FormatOf(LinearEncoding encoding, Factor::Kind kind) {
  const bool wide = encoding == LinearEncoding::kFp8Tensor && kind == Factor::Kind::kGradient;
  return wide ? DType::kE5M2 : DType::kE4M3;
}

ScaleRounding RoundingOf(LinearEncoding encoding) {
  return encoding == LinearEncoding::kFp8Tensor ? ScaleRounding::kExact
                                                : ScaleRounding::kPowerOfTwo;
}

// A product sums a's columns and b's rows. On the CPU payloads lie as values do, and a scale of
// which blocks are square or all serves both sums.
Along AlongOf(LinearEncoding encoding, const Factor& factor, Side side, Backend backend) {
  if (backend == Backend::kCpu &&
      (encoding == LinearEncoding::kFp8Tensor || factor.kind == Factor::Kind::kWeight))
    return Along::kEither;
  return (side == Side::kA) != factor.transposed ? Along::kColumns : Along::kRows;
}

Layout ScalesOf(LinearEncoding encoding, const Layout& x, Along along) {
  if (encoding == LinearEncoding::kFp8Tensor) return DenseLayout(DType::kF32, {1, 1});
  const auto scales = [&](int dim, Along single) {
    const int64_t n = x.dims[static_cast<size_t>(dim)];
    return along == single ? n : CeilDiv(n, kScaleBlock);
  };
  return DenseLayout(DType::kF32, {scales(0, Along::kColumns), scales(1, Along::kRows)});
}

// Buffers of a form as the CPU has them: as values lie.
QuantizedView HostForm(Lowering& l, const Layout& x, const std::string& name,
                       LinearEncoding encoding, const QuantizedViews::Form& form) {
  const char* const rows = form.along == Along::kRows ? ".by_rows" : "";
  Layout payload = x;
  payload.dtype = form.dtype;
  return {l.storage().Temporary(name + ".fp8" + rows, payload),
          l.storage().Temporary(name + ".scales" + rows, ScalesOf(encoding, x, form.along))};
}

KeyScales KeyScalesOf(LinearEncoding encoding, Factor::Kind kind) {
  if (encoding == LinearEncoding::kFp8Tensor) return KeyScales::kTensor;
  return kind == Factor::Kind::kWeight ? KeyScales::kBlocks : KeyScales::kVectors;
}

// As CUDA has them: what is summed lies in lines, scales as cuda_float8.h says. `scales`: of
// another form, whose blocks are this one's; absent: its own.
QuantizedView DeviceForm(Lowering& l, const Layout& x, const std::string& name, KeyScales kind,
                         const QuantizedViews::Form& form, const View& scales) {
  const bool by_rows = form.along == Along::kRows;
  const std::string suffix = by_rows ? ".by_rows" : "";
  const int64_t lines = x.dims[by_rows ? 1 : 0], sum = x.dims[by_rows ? 0 : 1];
  QuantizedView made;
  made.payload =
      l.storage().Temporary(name + ".fp8" + suffix, DenseLayout(form.dtype, {lines, sum}));
  made.scales = scales;
  if (!scales) {
    const Layout in_place = cuda::ScalesInPlace(kind, lines, sum);
    made.scales = l.storage().Temporary(
        name + ".scales" + suffix,
        DenseLayout(DType::kF32, {in_place.numel() / in_place.dims[0], in_place.dims[0]}));
    made.scales.layout = in_place;
  }
  if (!by_rows) return made;
  return {Transposed(made.payload), scales ? scales : Transposed(made.scales)};
}

const char* SuffixOf(Factor::Kind kind) {
  switch (kind) {
    case Factor::Kind::kActivation:
      return ":quantize_x";
    case Factor::Kind::kGradient:
      return ":quantize_d_y";
    case Factor::Kind::kWeight:
      return ":quantize_weight";
  }
  return "";
}

// Makes the form, on CUDA also the one along the other dim where that is wanted.
void Make(Lowering& l, const Node& node, LinearEncoding encoding, const Factor& factor,
          const QuantizedViews::Form& form) {
  QuantizeOp<View> op;
  op.scale_rounding = RoundingOf(encoding);
  const auto activation = l.quantized().activations().find(form.value);
  const bool activates = activation != l.quantized().activations().end();
  op.x = l.storage().Read(activates ? activation->second.x : form.value);
  if (activates) op.activation = activation->second.kind;
  Layout x = op.x.layout;  // of what is quantized
  if (activates && IsGated(*op.activation)) x = DenseLayout(x.dtype, {x.dims[0], x.dims[1] / 2});
  if (encoding == LinearEncoding::kFp8Tensor) op.magnitude = l.magnitudes().Of(form.value);
  const std::string& name = l.graph().value(form.value).name;
  const auto keep = [&](const QuantizedViews::Form& of, const QuantizedView& made) {
    l.quantized()[of] = made;
    return made;
  };
  if (l.options().backend == Backend::kCpu) {
    const QuantizedView made = keep(form, HostForm(l, x, name, encoding, form));
    op.out = made.payload, op.scales = made.scales;
  } else {
    const KeyScales scales = KeyScalesOf(encoding, factor.kind);
    const QuantizedView made = keep(form, DeviceForm(l, x, name, scales, form, {}));
    op.out = made.payload, op.scales = made.scales;
    QuantizedViews::Form other = form;
    other.along = form.along == Along::kRows ? Along::kColumns : Along::kRows;
    if (factor.both_ways) {
      const bool shared = encoding == LinearEncoding::kFp8Tensor;
      const QuantizedView turned =
          keep(other, DeviceForm(l, x, name, scales, other, shared ? made.scales : View{}));
      op.turned = turned.payload;
      if (!shared) op.turned_scales = turned.scales;
    }
  }
  l.Push(op, node, SuffixOf(factor.kind));
}

// A weight as it is gathered: rows lie as lines of the forward's sum.
const QuantizedView& GatheredForm(Lowering& l, LinearEncoding encoding, const Factor& factor) {
  QuantizedView& gathered = l.quantized().Gathered(factor.value);
  if (gathered.payload) return gathered;
  gathered.payload = l.storage().Payload(factor.value, FormatOf(encoding, factor.kind));
  const Layout& x = gathered.payload.layout;
  const Layout scales =
      l.options().backend == Backend::kCpu
          ? ScalesOf(encoding, x, Along::kEither)
          : cuda::ScalesInPlace(KeyScalesOf(encoding, factor.kind), x.dims[0], x.dims[1]);
  gathered.scales = l.storage().PayloadScales(factor.value, scales, RoundingOf(encoding));
  return gathered;
}

// Of that what the form asks for.
void Take(Lowering& l, const Node& node, LinearEncoding encoding, const Factor& factor,
          const QuantizedViews::Form& form) {
  const QuantizedView& gathered = GatheredForm(l, encoding, factor);
  if (form.along != Along::kRows) {
    l.quantized()[form] = gathered;
    return;
  }
  const bool shared = encoding == LinearEncoding::kFp8Tensor;
  const QuantizedView turned =
      DeviceForm(l, gathered.payload.layout, l.graph().value(factor.value).name,
                 KeyScalesOf(encoding, factor.kind), form, shared ? gathered.scales : View{});
  TurnOp<View> op;
  op.payload = gathered.payload, op.turned = turned.payload;
  if (!shared) op.scales = gathered.scales, op.turned_scales = turned.scales;
  l.Push(op, node, ":turn_weight");
  l.quantized()[form] = turned;
}

QuantizedView Quantized(Lowering& l, const Node& node, LinearEncoding encoding,
                        const Factor& factor, Side side) {
  const QuantizedViews::Form form{factor.value, FormatOf(encoding, factor.kind),
                                  AlongOf(encoding, factor, side, l.options().backend)};
  const bool gathered =
      factor.kind == Factor::Kind::kWeight && l.options().gather == WeightGather::kLinear;
  if (!l.quantized()[form].payload) {
    if (gathered)
      Take(l, node, encoding, factor, form);
    else
      Make(l, node, encoding, factor, form);
  }
  const QuantizedView made = l.quantized()[form];
  if (!factor.transposed) return made;
  return {Transposed(made.payload), Transposed(made.scales)};
}

}  // namespace

// A node of linears in FP8 has their encoding as its attributes, and quantizes all that it reads
// but biases. No op has a whole weight in hand before it is quantized.
Magnitudes::Magnitudes(const SemanticGraph& graph)
    : places_(graph.values.size()),
      in_blocks_(graph.values.size()),
      read_otherwise_(graph.values.size()) {
  for (const std::vector<Node>* nodes : {&graph.forward, &graph.backward})
    for (const Node& node : *nodes) {
      const auto* encoding = std::any_cast<LinearEncoding>(&node.attrs);
      const bool tensor = encoding != nullptr && *encoding == LinearEncoding::kFp8Tensor,
                 blocks = encoding != nullptr && *encoding == LinearEncoding::kFp8Block;
      for (const ValueId input : node.inputs) {
        if (!input) continue;
        (blocks ? in_blocks_ : read_otherwise_)[input] = true;
        if (tensor && graph.value(input).role != ValueRole::kParam && places_[input].at < 0)
          places_[input].at = count_++;
      }
    }
}

View Magnitudes::Form(Lowering& l, ValueId value) {
  if (!value || places_[value].at < 0 || places_[value].formed) return {};
  if (!all_) all_ = l.storage().Temporary("magnitudes", DenseLayout(DType::kF32, {count_}));
  places_[value].formed = true;
  return Of(value);
}

View Magnitudes::Of(ValueId value) const {
  if (!places_[value].formed) return {};
  View view = all_;
  view.offset = places_[value].at;
  view.layout = DenseLayout(DType::kF32, {1});
  return view;
}

std::optional<ProgramOp> Magnitudes::Zero(const SemanticGraph& graph) const {
  if (!all_) return std::nullopt;
  ZeroRangesOp<View> zero;
  zero.flat = all_;
  zero.ranges = std::make_shared<const std::vector<Range>>(1, Range{0, count_});
  return ProgramOp{.op = zero, .label = "magnitudes:zero", .unit = graph.forward.front().unit};
}

bool CanLeaveActivation(Lowering& l, ValueId x, ActivationKind kind, ValueId out) {
  const Value& activation = l.graph().value(out);
  return l.magnitudes().OnlyInBlocks(out) && cuda::CanActivate(kind, DType::kE4M3) &&
         activation.role == ValueRole::kActivation && activation.dtype == l.graph().value(x).dtype;
}

void LeaveActivation(Lowering& l, ValueId x, ActivationKind kind, ValueId out) {
  l.quantized().activations().insert_or_assign(out, ActivationSource{x, kind});
  l.storage().KeepAsLongAs(x, out);
}

void SetFactors(Lowering& l, const Node& node, LinearEncoding encoding, const Factor& a,
                const Factor& b, MatmulOp<View>* product) {
  if (encoding == LinearEncoding::kCompute) {
    const auto read = [&](const Factor& factor) {
      const View view = l.storage().Read(factor.value);
      return factor.transposed ? Transposed(view) : view;
    };
    product->a = read(a);
    product->b = read(b);
    return;
  }
  const QuantizedView left = Quantized(l, node, encoding, a, Side::kA),
                      right = Quantized(l, node, encoding, b, Side::kB);
  product->a = left.payload, product->a_scales = left.scales;
  product->b = right.payload, product->b_scales = right.scales;
  product->scaling =
      encoding == LinearEncoding::kFp8Tensor ? Scaling::kProduct : Scaling::kOperands;
}

}  // namespace millrace
