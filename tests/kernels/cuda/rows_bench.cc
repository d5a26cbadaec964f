// Speed of the memory-bound ops at the sizes of GPT-2 124M (B 64, T 1024), Llama 1B (B 8, T 4096)
// and a small GPT-2 (B 4, T 256): a markdown table on stdout.
//
//   rows_bench [FILTER]   ops whose name contains FILTER
//
// us          one call: a captured graph of many, so that no launch waits for the host. Calls take
//             turns on several sets of random operands that together exceed the L2 cache.
// end, begin  the same with execution.programmatic_launch: a kernel is set up while the one before
//             it ends, or runs.
// GB/s        bytes that the op has to move, each operand once, per second, as without.
// of copy     the same as a share of what a copy of 1 GiB moves (reads and writes both counted).
//             "LOW": below 85%, of an op that moves 64 MiB or more; smaller ones are mostly
//             beginning and end.
//
// Ends with the number of rows that are low. cross_entropy's results are checked against double
// before it is timed, on fresh logits: it leaves gradients in their place. Exit code 1: wrong.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/ops/cost.h"
#include "kernels/ops/matmul_key.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/launch.h"
#include "runtime/base/step_scalars.h"
#include "tests/kernels/cuda/matmul_operands.h"

namespace millrace::test {
namespace {

constexpr DType kBF16 = DType::kBF16, kF32 = DType::kF32;
constexpr int64_t kSetBytes = int64_t{512} << 20;  // of all sets of operands together, at least
constexpr double kLowShare = 0.85, kLowBytes = 64 << 20;

class Bench {
 public:
  explicit Bench(std::string filter) : filter_(std::move(filter)) {
    const int64_t bytes = int64_t{1} << 30;
    DeviceOperands operands(device_, *stream_);
    const TensorView a = operands.Random(DenseLayout(kF32, {bytes / 4}));
    const TensorView b = operands.Random(DenseLayout(kF32, {bytes / 4}));
    const double us = Microseconds(1, 2e9, [&](int) {
      MR_CUDA(cudaMemcpyAsync(b.data, a.data, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                              AsCuda(*stream_).get()));
    });
    copy_ = 2 * static_cast<double>(bytes) / us / 1e3;
    fmt::print("{}: a copy of 1 GiB moves {:.0f} GB/s\n\n", device_.name(), copy_);
    fmt::print(
        "| op | sizes | us | end | begin | GB/s | of copy |\n|---|---|---:|---:|---:|---:|---:|\n");
  }

  CudaDevice& device() { return device_; }
  Stream& stream() { return *stream_; }

  // `make` fills in all operands but scratch. `bytes`: what the op moves, where its accesses do not
  // say.
  template <template <class> class Op>
  void Time(const std::string& name, const std::string& sizes, KernelFn<Op> KernelTable::*entry,
            const std::function<Op<TensorView>(DeviceOperands&)>& make, double bytes = 0) {
    if (!Matches(name)) return;
    DeviceOperands operands(device_, *stream_);
    std::vector<Op<TensorView>> sets = {make(operands)};
    const auto shape_of = [](const TensorView& view) {
      return Shape{view.layout, static_cast<bool>(view)};
    };
    const Op<Shape> shape = ConvertOp<Op, TensorView, Shape>(sets[0], shape_of);
    if (bytes == 0) {
      const OpCost cost = Cost(shape);
      bytes = static_cast<double>(cost.read_bytes + cost.write_bytes);
    }
    while (static_cast<double>(sets.size()) * bytes < kSetBytes && sets.size() < 32 && bytes > 1e6)
      sets.push_back(make(operands));
    if constexpr (requires { sets[0].scratch; }) {
      const int64_t scratch = WorkspaceBytes(shape, Backend::kCuda);
      for (Op<TensorView>& op : sets) op.scratch = operands.New(DenseLayout(DType::kU8, {scratch}));
    }
    const auto time = [&](EarlyLaunch early) {
      device_.Attached<cuda::LaunchPolicy>().early = early;
      return Microseconds(static_cast<int>(sets.size()), bytes, [&](int set) {
        (CudaKernels().*entry)(sets[static_cast<size_t>(set)], *stream_);
      });
    };
    const double us = time(EarlyLaunch::kOff), end = time(EarlyLaunch::kEnd),
                 begin = time(EarlyLaunch::kBegin);
    const double rate = bytes / us / 1e3;
    const bool low = bytes >= kLowBytes && rate < kLowShare * copy_;
    low_ += low;
    fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.0f} | {:.0f}%{} |\n", name, sizes, us,
               end, begin, rate, 100 * rate / copy_, low ? " LOW" : "");
    std::fflush(stdout);
  }

  void Wrong(const std::string& what) {
    ++wrong_;
    fmt::print("WRONG: {}\n", what);
  }
  bool Matches(const std::string& name) const { return name.find(filter_) != std::string::npos; }
  // The program's exit code.
  int End() const {
    fmt::print("\n{} rows are below {:.0f}% of the copy's rate at {:.0f} MiB or more\n", low_,
               100 * kLowShare, kLowBytes / (1 << 20));
    return wrong_ == 0 ? 0 : 1;
  }

  // Zipf's law over the vocabulary, as in text.
  TensorView Tokens(DeviceOperands& operands, int64_t batch, int64_t length, int64_t vocab) {
    std::mt19937_64 random(3);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::vector<int32_t> tokens(static_cast<size_t>(batch * length));
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(std::pow(static_cast<double>(vocab), uniform(random))) % vocab;
    const TensorView view = operands.New(DenseLayout(DType::kI32, {batch, length}));
    device_.CopyFromHost(view.data, tokens.data(), view.bytes(), *stream_);
    return view;
  }

  TensorView Scalars(DeviceOperands& operands) {
    StepScalars scalars{};
    scalars.inv_valid_tokens = 1.0 / 65536;
    scalars.inject_grad_unit = -1;
    scalars.lr = 1e-4;
    scalars.clip_scale = 0.75;
    scalars.applied = 1;
    scalars.adam_t = 17;
    const TensorView view = operands.New(DenseLayout(DType::kU8, {sizeof(StepScalars)}));
    device_.CopyFromHost(view.data, &scalars, sizeof scalars, *stream_);
    return view;
  }

 private:
  // Median over rounds; a round is one launch of a graph with about 5 ms of calls.
  double Microseconds(int sets, double bytes, const std::function<void(int)>& call) {
    const int rounds_of_sets = static_cast<int>(std::clamp(5e-3 * 3e12 / bytes / sets, 1.0, 500.0));
    for (int set = 0; set < sets; ++set) call(set);
    device_.BeginCapture(*stream_);
    for (int i = 0; i < rounds_of_sets * sets; ++i) call(i % sets);
    const auto graph = device_.EndCapture(*stream_);
    graph->Launch(*stream_);
    cudaEvent_t begin = nullptr, end = nullptr;
    MR_CUDA(cudaEventCreate(&begin));
    MR_CUDA(cudaEventCreate(&end));
    std::vector<double> us;
    for (int round = 0; round < 9; ++round) {
      MR_CUDA(cudaEventRecord(begin, AsCuda(*stream_).get()));
      graph->Launch(*stream_);
      MR_CUDA(cudaEventRecord(end, AsCuda(*stream_).get()));
      MR_CUDA(cudaEventSynchronize(end));
      float ms = 0;
      MR_CUDA(cudaEventElapsedTime(&ms, begin, end));
      us.push_back(1e3 * ms / (rounds_of_sets * sets));
    }
    MR_CUDA(cudaEventDestroy(begin));
    MR_CUDA(cudaEventDestroy(end));
    std::nth_element(us.begin(), us.begin() + 4, us.end());
    return us[4];
  }

  std::string filter_;
  CudaDevice device_{0};
  std::unique_ptr<Stream> stream_ = device_.MakeStream(StreamRole::kCompute);
  double copy_ = 0;
  int low_ = 0, wrong_ = 0;
};

struct Model {
  const char* name;
  NormKind norm;
  int64_t batch, length, width, hidden, vocab, padded_vocab, loss_rows, heads, kv_heads, head_dim;
  int64_t flat;  // elements of a block's flat parameter

  int64_t rows() const { return batch * length; }
};

constexpr Model kModels[] = {
    {"gpt2_124m", NormKind::kLayer, 64, 1024, 768, 3072, 50257, 50304, 8192, 12, 12, 64, 7087872},
    {"llama_1b", NormKind::kRms, 8, 4096, 2048, 8192, 128256, 128256, 4096, 32, 8, 64, 60821504},
    {"gpt2_30m", NormKind::kLayer, 4, 256, 384, 1536, 50257, 50304, 1024, 6, 6, 64, 1774464}};

// Of a norm_grad that has its rows.
Layout PartialsOf(const NormGradOp<TensorView>& op, int64_t sums) {
  const auto shape_of = [](const TensorView& view) {
    return Shape{view.layout, static_cast<bool>(view)};
  };
  return NormPartialsLayout(ConvertOp<NormGradOp, TensorView, Shape>(op, shape_of), sums,
                            Backend::kCuda);
}

void Norms(Bench& bench, const Model& m) {
  const Layout rows = DenseLayout(kBF16, {m.rows(), m.width}), one = DenseLayout(kF32, {m.rows()}),
               columns = DenseLayout(kBF16, {m.width}), sums = DenseLayout(kF32, {m.width});
  const bool layer = m.norm == NormKind::kLayer;
  const std::string sizes = fmt::format("{}: {} x {}", m.name, m.rows(), m.width);
  for (const bool residual : {false, true}) {
    bench.Time<NormOp>(residual ? "norm + residual" : "norm", sizes, &KernelTable::norm,
                       [&](DeviceOperands& o) {
                         NormOp<TensorView> op{};
                         op.kind = m.norm;
                         op.x = o.Random(rows), op.weight = o.Random(columns), op.out = o.New(rows);
                         if (residual) op.residual = o.Random(rows), op.sum = o.New(rows);
                         if (layer) op.bias = o.Random(columns), op.mean = o.New(one);
                         op.rstd = o.New(one);
                         return op;
                       });
  }
  for (const bool bypass : {false, true}) {
    bench.Time<NormGradOp>(bypass ? "norm_grad + bypass" : "norm_grad", sizes,
                           &KernelTable::norm_grad, [&](DeviceOperands& o) {
                             NormGradOp<TensorView> op{};
                             op.kind = m.norm;
                             op.d_out = o.Random(rows), op.x = o.Random(rows),
                             op.weight = o.Random(columns);
                             op.rstd = o.Random(one);
                             if (layer) op.mean = o.Random(one);
                             if (bypass) op.d_bypass = o.Random(rows);
                             op.d_x = o.New(rows);
                             op.partials = o.New(PartialsOf(op, layer ? 2 : 1));
                             return op;
                           });
  }
  bench.Time<NormSumsOp>("norm_sums", sizes, &KernelTable::norm_sums, [&](DeviceOperands& o) {
    NormGradOp<TensorView> grad{};
    grad.d_out = grad.x = grad.d_x = o.New(rows);
    NormSumsOp<TensorView> op{};
    op.weight_update = op.bias_update = Update::kAccumulate;
    op.partials = o.New(PartialsOf(grad, layer ? 2 : 1));
    op.d_weight = o.Random(sums);
    if (layer) op.d_bias = o.Random(sums);
    return op;
  });
}

void ColumnSums(Bench& bench, const Model& m) {
  for (const int64_t columns : {m.width, 3 * m.width, m.hidden}) {
    bench.Time<ColumnSumOp>("column_sum", fmt::format("{}: {} x {}", m.name, m.rows(), columns),
                            &KernelTable::column_sum, [&](DeviceOperands& o) {
                              ColumnSumOp<TensorView> op{};
                              op.update = Update::kAccumulate;
                              op.x = o.Random(DenseLayout(kBF16, {m.rows(), columns}));
                              op.out = o.Random(DenseLayout(kF32, {columns}));
                              return op;
                            });
  }
}

void Embeddings(Bench& bench, const Model& m) {
  const Layout rows = DenseLayout(kBF16, {m.rows(), m.width});
  const bool positions = m.norm == NormKind::kLayer;
  const std::string sizes =
      fmt::format("{}: {} x {}, V {}", m.name, m.rows(), m.width, m.padded_vocab);
  bench.Time<EmbedOp>("embed", sizes, &KernelTable::embed, [&](DeviceOperands& o) {
    EmbedOp<TensorView> op{};
    op.tokens = bench.Tokens(o, m.batch, m.length, m.vocab), op.scalars = bench.Scalars(o);
    op.table = o.Random(DenseLayout(kBF16, {m.padded_vocab, m.width}));
    if (positions) op.positions = o.Random(DenseLayout(kBF16, {m.length, m.width}));
    op.out = o.New(rows);
    return op;
  });
  for (const Update update : {Update::kOverwrite, Update::kAccumulate}) {
    // Adding touches the rows that tokens name; their number is bounded by the table's.
    const double table = static_cast<double>(m.padded_vocab * m.width * 4);
    const double d_out = static_cast<double>(m.rows() * m.width * 2);
    bench.Time<EmbedGradOp>(
        update == Update::kOverwrite ? "embed_grad" : "embed_grad, adding (bytes of d_out alone)",
        sizes, &KernelTable::embed_grad,
        [&](DeviceOperands& o) {
          EmbedGradOp<TensorView> op{};
          op.tokens = bench.Tokens(o, m.batch, m.length, m.vocab), op.scalars = bench.Scalars(o);
          op.table_update = op.positions_update = update;
          op.d_out = o.Random(rows);
          op.d_table = o.Random(DenseLayout(kF32, {m.padded_vocab, m.width}));
          if (positions) op.d_positions = o.Random(DenseLayout(kF32, {m.length, m.width}));
          return op;
        },
        d_out * (positions ? 2 : 1) + (update == Update::kOverwrite ? table : 0));
  }
}

void Rotations(Bench& bench, const Model& m) {
  const int64_t width = (m.heads + 2 * m.kv_heads) * m.head_dim;
  for (const int64_t heads : {m.heads, m.kv_heads}) {
    bench.Time<RopeOp>(
        "rope", fmt::format("{}: {} x {} x {} of {}", m.name, m.rows(), heads, m.head_dim, width),
        &KernelTable::rope, [&](DeviceOperands& o) {
          RopeOp<TensorView> op{};
          op.x = o.Random(DenseLayout(kBF16, {m.rows(), width}));
          op.x.layout = DenseLayout(kBF16, {m.batch, m.length, heads, m.head_dim});
          op.x.layout.strides = {m.length * width, width, m.head_dim, 1};
          op.table = o.Random(DenseLayout(kF32, {m.length, m.head_dim / 2, 2}));
          return op;
        });
  }
}

void Activations(Bench& bench, const Model& m) {
  const bool gelu = m.norm == NormKind::kLayer;
  const Layout wide = DenseLayout(kBF16, {m.rows(), gelu ? m.hidden : 2 * m.hidden}),
               narrow = DenseLayout(kBF16, {m.rows(), m.hidden});
  const std::string sizes = fmt::format("{}: {} x {}", m.name, m.rows(), m.hidden);
  const ActivationKind kind = gelu ? ActivationKind::kGelu : ActivationKind::kSwiglu;
  bench.Time<ActivationOp>(
      gelu ? "gelu" : "swiglu", sizes, &KernelTable::activation, [&](DeviceOperands& o) {
        return ActivationOp<TensorView>{{kind}, o.Random(wide), o.New(narrow), {}};
      });
  bench.Time<ActivationGradOp>(gelu ? "gelu gradient" : "swiglu gradient", sizes,
                               &KernelTable::activation_grad, [&](DeviceOperands& o) {
                                 return ActivationGradOp<TensorView>{
                                     {kind}, o.Random(wide), o.Random(narrow), o.New(wide), {}};
                               });
  bench.Time<AddOp>("add", fmt::format("{}: {} x {}", m.name, m.rows(), m.width), &KernelTable::add,
                    [&](DeviceOperands& o) {
                      const Layout rows = DenseLayout(kBF16, {m.rows(), m.width});
                      return AddOp<TensorView>{{}, o.Random(rows), o.Random(rows), o.New(rows)};
                    });
}

// Both forms of an operand of products in FP8. One scale for all takes a reading of its own.
void Quantizations(Bench& bench, const Model& m) {
  for (const int64_t columns : {m.width, m.hidden})
    for (const bool blocks : {false, true}) {
      const auto lines = [&](DeviceOperands& o, int64_t n, int64_t sum) {
        return o.New(DenseLayout(DType::kE4M3, {n, sum}));
      };
      const auto scales = [&](DeviceOperands& o, int64_t n, int64_t sum) {
        return o.New(DenseLayout(kF32, {CeilDiv(sum, kScaleBlock), n}));
      };
      const auto numel = static_cast<double>(m.rows() * columns);
      bench.Time<QuantizeOp>(
          blocks ? "quantize, blocks of 128" : "quantize, one scale",
          fmt::format("{}: {} x {}", m.name, m.rows(), columns), &KernelTable::quantize,
          [&](DeviceOperands& o) {
            QuantizeOp<TensorView> op{};
            op.x = o.Random(DenseLayout(kBF16, {m.rows(), columns}));
            op.out = lines(o, m.rows(), columns);
            op.turned = TransposedView(lines(o, columns, m.rows()));
            if (blocks) {
              op.scale_rounding = ScaleRounding::kPowerOfTwo;
              op.scales = TransposedView(scales(o, m.rows(), columns));
              op.turned_scales = scales(o, columns, m.rows());
            } else {
              op.scales = o.New(DenseLayout(kF32, {1, 1}));
            }
            return op;
          },
          numel * (blocks ? 4 : 6));
    }
}

// Sampled rows of a cross entropy against double: no other row has a target, so the sum is that of
// their losses.
class LossCheck {
 public:
  LossCheck(Bench& bench, const Model& m, LossOutput output)
      : bench_(bench), model_(m), operands_(bench.device(), bench.stream()) {
    op_.vocab = m.vocab;
    op_.output = output;
    op_.logits = operands_.Random(DenseLayout(kBF16, {m.loss_rows, m.padded_vocab}));
    op_.targets = operands_.New(DenseLayout(DType::kI32, {1, m.loss_rows}));
    op_.loss_sum = operands_.New(DenseLayout(DType::kF64, {1}));
    op_.scalars = bench.Scalars(operands_);
    std::vector<int32_t> targets(static_cast<size_t>(m.loss_rows), -1);
    for (int64_t i = 0; i < kRows; ++i)
      targets[static_cast<size_t>(Row(i))] = static_cast<int32_t>(i * 7919 % m.vocab);
    bench.device().CopyFromHost(op_.targets.data, targets.data(), op_.targets.bytes(),
                                bench.stream());
    CrossEntropyOp<Shape> shape{};
    shape.logits = {op_.logits.layout, true};
    op_.scratch = operands_.New(DenseLayout(DType::kU8, {WorkspaceBytes(shape, Backend::kCuda)}));
  }

  void Run() {
    std::vector<std::vector<BFloat16>> before;
    for (int64_t i = 0; i < kRows; ++i) before.push_back(RowOf(i));
    CudaKernels().cross_entropy(op_, bench_.stream());
    double expected = 0;
    for (int64_t i = 0; i < kRows; ++i) expected += CheckRow(i, before[static_cast<size_t>(i)]);
    double loss = 0;
    bench_.device().CopyToHost(&loss, op_.loss_sum.data, sizeof loss, bench_.stream());
    if (!(std::abs(loss - expected) <= kRelative * std::abs(expected) + kRelative * kRows))
      bench_.Wrong(fmt::format("{}: the loss is {}, not {}", model_.name, loss, expected));
  }

 private:
  static constexpr int64_t kRows = 16;
  // As in rows_test: units of f32, of exponentials on either side and of a thread's sum.
  static constexpr double kRelative = 2 * (19 + 270) * 0x1p-24;

  int64_t Row(int64_t i) const { return i * (model_.loss_rows - 1) / (kRows - 1); }

  std::vector<BFloat16> RowOf(int64_t i) {
    std::vector<BFloat16> row(static_cast<size_t>(model_.padded_vocab));
    const int64_t bytes = model_.padded_vocab * Bytes(kBF16);
    bench_.device().CopyToHost(row.data(), op_.logits.data + Row(i) * bytes, bytes,
                               bench_.stream());
    return row;
  }

  // Its loss. The gradient is rounded to bf16 once more than the bound of f32 says.
  double CheckRow(int64_t i, const std::vector<BFloat16>& logits) {
    const auto at = [&](int64_t v) {
      return static_cast<double>(ToFloat(logits[static_cast<size_t>(v)]));
    };
    double most = at(0), sum = 0;
    for (int64_t v = 1; v < model_.vocab; ++v) most = std::max(most, at(v));
    for (int64_t v = 0; v < model_.vocab; ++v) sum += std::exp(at(v) - most);
    const int64_t target = i * 7919 % model_.vocab;
    const std::vector<BFloat16> after = RowOf(i);
    constexpr double kInverse = 1.0 / 65536;  // Bench::Scalars
    int64_t wrong = 0;
    for (int64_t v = 0; v < model_.padded_vocab; ++v) {
      double right = at(v), bound = 0;
      if (op_.output == LossOutput::kLossAndGradient) {
        const double share = v < model_.vocab ? std::exp(at(v) - most) / sum : 0;
        right = (share - (v == target ? 1 : 0)) * kInverse;
        bound = kRelative * (std::abs(right) + (v == target ? 2 * kInverse : 0)) +
                0x1p-8 * std::abs(right);
      }
      wrong +=
          !(std::abs(static_cast<double>(ToFloat(after[static_cast<size_t>(v)])) - right) <= bound);
    }
    if (wrong > 0)
      bench_.Wrong(fmt::format("{}: {} of row {}'s {} results", model_.name, wrong, Row(i),
                               model_.padded_vocab));
    return most + std::log(sum) - at(target);
  }

  Bench& bench_;
  const Model& model_;
  DeviceOperands operands_;
  CrossEntropyOp<TensorView> op_{};
};

void Losses(Bench& bench, const Model& m) {
  for (const LossOutput output : {LossOutput::kLossOnly, LossOutput::kLossAndGradient})
    if (bench.Matches("cross_entropy")) LossCheck(bench, m, output).Run();
  for (const LossOutput output : {LossOutput::kLossOnly, LossOutput::kLossAndGradient}) {
    bench.Time<CrossEntropyOp>(
        output == LossOutput::kLossOnly ? "cross_entropy" : "cross_entropy + gradient",
        fmt::format("{}: {} x {}", m.name, m.loss_rows, m.padded_vocab),
        &KernelTable::cross_entropy, [&](DeviceOperands& o) {
          CrossEntropyOp<TensorView> op{};
          op.vocab = m.vocab;
          op.output = output;
          op.targets = bench.Tokens(o, 1, m.loss_rows, m.vocab), op.scalars = bench.Scalars(o);
          op.logits = o.Random(DenseLayout(kBF16, {m.loss_rows, m.padded_vocab}));
          op.loss_sum = o.New(DenseLayout(DType::kF64, {1}));
          return op;
        });
  }
}

void Flats(Bench& bench, const Model& m) {
  const Layout f32 = DenseLayout(kF32, {m.flat}), bf16 = DenseLayout(kBF16, {m.flat});
  const std::string sizes = fmt::format("{}: {}", m.name, m.flat);
  const auto bytes = static_cast<double>(m.flat);
  bench.Time<CastOp>("cast f32 to bf16", sizes, &KernelTable::cast, [&](DeviceOperands& o) {
    return CastOp<TensorView>{{}, o.Random(f32), o.New(bf16)};
  });
  bench.Time<ConcatOp>(
      "concat bf16 to f32, adding", sizes, &KernelTable::concat, [&](DeviceOperands& o) {
        return ConcatOp<TensorView>{{Update::kAccumulate}, o.Random(bf16), o.Random(f32)};
      });
  bench.Time<ConcatOp>("concat f32", sizes, &KernelTable::concat, [&](DeviceOperands& o) {
    return ConcatOp<TensorView>{{}, o.Random(f32), o.New(f32)};
  });
  bench.Time<AccumulateOp>("accumulate f32", sizes, &KernelTable::accumulate,
                           [&](DeviceOperands& o) {
                             return AccumulateOp<TensorView>{{}, o.Random(f32), o.Random(f32)};
                           });
  for (const Layout& layout : {f32, bf16}) {
    const std::string dtype(Name(layout.dtype));
    const double size = bytes * static_cast<double>(Bytes(layout.dtype));
    bench.Time<FiniteScanOp>(
        "finite_scan " + dtype, sizes, &KernelTable::finite_scan,
        [&](DeviceOperands& o) {
          FiniteScanOp<TensorView> op{};
          op.x = o.Random(layout);
          op.bad_count = o.New(DenseLayout(DType::kF64, {1}));
          op.scalars = bench.Scalars(o);
          return op;
        },
        size);
    bench.Time<SumSquaresOp>("sum_squares " + dtype, sizes, &KernelTable::sum_squares,
                             [&](DeviceOperands& o) {
                               return SumSquaresOp<TensorView>{
                                   {}, o.Random(layout), o.New(DenseLayout(DType::kF64, {1})), {}};
                             });
  }
  for (const bool compute : {false, true}) {
    bench.Time<AdamWOp>(
        compute ? "adamw + downcast" : "adamw", sizes, &KernelTable::adamw, [&](DeviceOperands& o) {
          AdamWOp<TensorView> op{};
          op.weight_decay = 0.1;
          op.decay = std::make_shared<std::vector<Range>>(
              std::vector<Range>{{0, m.flat / 4}, {m.flat / 4 + 768, m.flat - 1000}});
          op.master = o.Random(f32), op.m = o.Random(f32), op.grad = o.Random(f32);
          op.v = o.New(f32);  // positive, as a second moment is: 0x3c3c3c3c is 0.011
          bench.device().EnqueueFill(op.v.data, std::byte{0x3c}, op.v.bytes(), bench.stream());
          if (compute) op.compute = o.New(bf16);
          op.scalars = bench.Scalars(o);
          return op;
        });
  }
}

void SmallOps(Bench& bench) {
  bench.Time<StepStatsOp>(
      "step_stats", "8 ranks, 14 units", &KernelTable::step_stats, [&](DeviceOperands& o) {
        StepStatsOp<TensorView> op{};
        op.units = 14, op.shard_world = 8, op.clip = 1;
        op.rows = o.New(DenseLayout(DType::kF64, {8, 29}));
        bench.device().EnqueueFill(op.rows.data, std::byte{0}, op.rows.bytes(), bench.stream());
        op.scalars = bench.Scalars(o);
        return op;
      });
  bench.Time<BeginStepOp>("begin_step", "-", &KernelTable::begin_step, [&](DeviceOperands& o) {
    BeginStepOp<TensorView> op{};
    op.schedule = {ScheduleKind::kCosine, 1e-3, 1e-4, 10, 1000, 1000};
    op.scalars = bench.Scalars(o);
    return op;
  });
  bench.Time<ZeroRangesOp>(
      "zero_ranges", "40 ranges of 200", &KernelTable::zero_ranges,
      [&](DeviceOperands& o) {
        auto ranges = std::make_shared<std::vector<Range>>();
        for (int64_t i = 0; i < 40; ++i) ranges->push_back({i * 100000, i * 100000 + 200});
        return ZeroRangesOp<TensorView>{{ranges}, o.Random(DenseLayout(kBF16, {4000000}))};
      },
      40 * 400);
}

}  // namespace
}  // namespace millrace::test

int main(int argc, char** argv) {
  using namespace millrace::test;
  Bench bench(argc > 1 ? argv[1] : "");
  for (const Model& model : kModels) {
    Norms(bench, model);
    if (model.norm == millrace::NormKind::kLayer) ColumnSums(bench, model);
    Embeddings(bench, model);
    if (model.norm == millrace::NormKind::kRms) Rotations(bench, model);
    Activations(bench, model);
    Quantizations(bench, model);
    Losses(bench, model);
    Flats(bench, model);
  }
  SmallOps(bench);
  return bench.End();
}
