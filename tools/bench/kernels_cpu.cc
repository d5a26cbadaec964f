// Times each CPU kernel on the shapes of one training step of a small model, and adds them up:
// which share of the step is BLAS?
//
//   bazel run -c opt //tools/bench:kernels_cpu -- [--family gpt2|llama] [--batch B] [--seq T]
//   [--width C] [--layers L] [--bf16]
//
// Prints per op: calls per step, microseconds, GFLOP/s by Flops(op), GB/s by the bytes of its
// operands, share of the step. Data are random; every op runs on one core, best processor time of
// several repeats, with operands as warm as they fit the caches.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/cost.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/step_scalars.h"

namespace millrace {
namespace {

struct Model {
  bool llama = false;
  int64_t batch = 16, length = 256, width = 256, layers = 4, head_dim = 64, vocab = 256;
  DType dtype = DType::kF32;

  int64_t rows() const { return batch * length; }
  int64_t heads() const { return width / head_dim; }
  // SwiGLU at two thirds, as usual, so that both families have the same number of weights.
  int64_t ffn() const { return llama ? (8 * width / 3 + 31) / 32 * 32 : 4 * width; }
};

// Processor time of this thread: a busy machine disturbs it less than the wall clock.
double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Bench {
 public:
  explicit Bench(const Model& model) : model_(model) {}

  TensorView New(DType dtype, std::initializer_list<int64_t> dims) {
    const Layout layout = DenseLayout(dtype, dims);
    buffers_.push_back(device_->Allocate(layout.span_bytes(), "bench"));
    const TensorView view{buffers_.back()->data(), layout};
    std::normal_distribution<float> normal(0, 0.5f);
    for (int64_t i = 0; i < view.numel(); ++i) {
      if (dtype == DType::kF32) view.as<float>()[i] = normal(random_);
      if (dtype == DType::kBF16) view.as<BFloat16>()[i] = ToBFloat16(normal(random_));
      if (dtype == DType::kI32)
        view.as<int32_t>()[i] =
            static_cast<int32_t>(random_() % static_cast<uint64_t>(model_.vocab));
      if (dtype == DType::kF64) view.as<double>()[i] = 0;
    }
    return view;
  }
  TensorView New(std::initializer_list<int64_t> dims) { return New(model_.dtype, dims); }

  TensorView Scalars() {
    const TensorView view = New(DType::kU8, {sizeof(StepScalars)});
    StepScalars scalars{};
    scalars.inv_valid_tokens = 1.0 / static_cast<double>(model_.rows());
    scalars.inject_grad_unit = -1;
    scalars.lr = 1e-4, scalars.clip_scale = 1, scalars.applied = 1, scalars.adam_t = 1;
    *view.as<StepScalars>() = scalars;
    return view;
  }

  // Runs the op `calls` times per step.
  template <template <class> class Op>
  void Time(const char* name, int64_t calls, bool blas, KernelFn<Op> entry, Op<TensorView> op) {
    const auto shape_of = [](const TensorView& view) {
      return Shape{view.layout, static_cast<bool>(view)};
    };
    const Op<Shape> shape = ConvertOp<Op, TensorView, Shape>(op, shape_of);
    if constexpr (requires { WorkspaceBytes(shape, Backend::kCpu); }) {
      const int64_t bytes = WorkspaceBytes(shape, Backend::kCpu);
      if (bytes > 0) op.scratch = New(DType::kU8, {bytes});
    }
    double best = 1e9, spent = 0;
    for (int repeat = 0; repeat < 3 || (spent < 0.2 && repeat < 200); ++repeat) {
      const double start = ThreadSeconds();
      entry(op, *stream_);
      const double seconds = ThreadSeconds() - start;
      best = std::min(best, seconds);
      spent += seconds;
    }
    const OpCost cost = Cost(shape);
    lines_.push_back({name, calls, blas, best, cost.flops / best * 1e-9,
                      static_cast<double>(cost.read_bytes + cost.write_bytes) / best * 1e-9});
  }

  void Print() const {
    double total = 0, blas = 0;
    for (const Line& line : lines_) {
      total += line.seconds * static_cast<double>(line.calls);
      if (line.blas) blas += line.seconds * static_cast<double>(line.calls);
    }
    std::printf("%-28s %5s %10s %8s %8s %7s\n", "op", "calls", "us", "GFLOP/s", "GB/s", "share");
    for (const Line& line : lines_)
      std::printf("%-28s %5lld %10.1f %8.1f %8.1f %6.2f%%\n", line.name,
                  static_cast<long long>(line.calls), line.seconds * 1e6, line.gflops, line.gbytes,
                  100 * line.seconds * static_cast<double>(line.calls) / total);
    std::printf("step %.1f ms, %.0f tokens/s, matmul %.1f%%\n", total * 1e3,
                static_cast<double>(model_.rows()) / total, 100 * blas / total);
  }

 private:
  struct Line {
    const char* name;
    int64_t calls;
    bool blas;
    double seconds, gflops, gbytes;
  };

  Model model_;
  std::unique_ptr<Device> device_ = MakeHostDevice();
  std::unique_ptr<Stream> stream_ = device_->MakeStream(StreamRole::kCompute);
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::mt19937_64 random_{1};
  std::vector<Line> lines_;
};

TensorView Transposed(TensorView view) {
  std::swap(view.layout.dims[0], view.layout.dims[1]);
  std::swap(view.layout.strides[0], view.layout.strides[1]);
  return view;
}

// A linear layer [R,in] x [in,out]: forward, gradient of the input, gradient of
// the weight (accumulated).
void TimeLinear(Bench& bench, const Model& m, const char* const names[3], int64_t calls, int64_t in,
                int64_t out) {
  const KernelTable& table = CpuKernels();
  const TensorView x = bench.New({m.rows(), in}), w = bench.New({in, out}),
                   y = bench.New({m.rows(), out});
  MatmulOp<TensorView> op{};
  op.a = x, op.b = w, op.out = y;
  bench.Time(names[0], calls, true, table.matmul, op);
  op.a = y, op.b = Transposed(w), op.out = x;
  bench.Time(names[1], calls, true, table.matmul, op);
  op.a = Transposed(x), op.b = y, op.out = w;
  op.update = Update::kAccumulate;
  bench.Time(names[2], calls, true, table.matmul, op);
  if (m.llama) return;
  ColumnSumOp<TensorView> sum{};
  sum.x = y, sum.out = bench.New({out});
  bench.Time("  bias gradient", calls, false, table.column_sum, sum);
}

void TimeAttention(Bench& bench, const Model& m) {
  const KernelTable& table = CpuKernels();
  const TensorView row = bench.New({m.batch, m.length, 3 * m.width}),
                   grad_row = bench.New({m.batch, m.length, 3 * m.width});
  const auto slice = [&](TensorView view, int64_t part) {
    view.data += part * m.width * Bytes(view.dtype());
    view.layout = DenseLayout(view.dtype(), {m.batch, m.length, m.heads(), m.head_dim});
    view.layout.strides = {m.length * 3 * m.width, 3 * m.width, m.head_dim, 1};
    return view;
  };
  AttentionOp<TensorView> op{};
  op.q = slice(row, 0), op.k = slice(row, 1), op.v = slice(row, 2);
  op.out = bench.New({m.batch, m.length, m.heads(), m.head_dim});
  op.lse = bench.New(DType::kF32, {m.batch, m.heads(), m.length});
  op.scale = 1 / std::sqrt(static_cast<float>(m.head_dim));
  bench.Time("attention", m.layers, false, table.attention, op);
  AttentionGradOp<TensorView> grad{};
  grad.q = op.q, grad.k = op.k, grad.v = op.v, grad.out = op.out, grad.lse = op.lse,
  grad.scale = op.scale;
  grad.d_out = bench.New({m.batch, m.length, m.heads(), m.head_dim});
  grad.d_q = slice(grad_row, 0), grad.d_k = slice(grad_row, 1), grad.d_v = slice(grad_row, 2);
  bench.Time("attention gradient", m.layers, false, table.attention_grad, grad);
  if (!m.llama) return;
  RopeOp<TensorView> rope{};
  rope.x = op.q, rope.table = bench.New(DType::kF32, {m.length, m.head_dim / 2, 2});
  bench.Time("rope", 4 * m.layers, false, table.rope, rope);
}

void TimeLayers(Bench& bench, const Model& m) {
  const KernelTable& table = CpuKernels();
  constexpr const char *kQkv[] = {"qkv", "qkv d_x", "qkv d_w"},
                       *kOut[] = {"projection", "projection d_x", "projection d_w"};
  constexpr const char *kUp[] = {"mlp up", "mlp up d_x", "mlp up d_w"},
                       *kDown[] = {"mlp down", "mlp down d_x", "mlp down d_w"};
  constexpr const char* kHead[] = {"head", "head d_x", "head d_w"};
  TimeLinear(bench, m, kQkv, m.layers, m.width, 3 * m.width);
  TimeLinear(bench, m, kOut, m.layers, m.width, m.width);
  TimeLinear(bench, m, kUp, m.layers, m.width, m.llama ? 2 * m.ffn() : m.ffn());
  TimeLinear(bench, m, kDown, m.layers, m.ffn(), m.width);
  TimeLinear(bench, m, kHead, 1, m.width, m.vocab);
  TimeAttention(bench, m);

  NormOp<TensorView> norm{};
  norm.kind = m.llama ? NormKind::kRms : NormKind::kLayer;
  norm.x = bench.New({m.rows(), m.width}), norm.residual = bench.New({m.rows(), m.width});
  norm.sum = bench.New({m.rows(), m.width}), norm.out = bench.New({m.rows(), m.width});
  norm.weight = bench.New({m.width}), norm.rstd = bench.New(DType::kF32, {m.rows()});
  if (!m.llama) norm.bias = bench.New({m.width}), norm.mean = bench.New(DType::kF32, {m.rows()});
  bench.Time("norm + residual", 2 * m.layers + 1, false, table.norm, norm);
  NormGradOp<TensorView> grad{};
  grad.kind = norm.kind;
  grad.d_out = norm.out, grad.x = norm.sum, grad.weight = norm.weight, grad.mean = norm.mean,
  grad.rstd = norm.rstd;
  grad.d_bypass = grad.d_x = norm.x;
  NormSumsOp<TensorView> sums{};
  sums.d_weight = bench.New({m.width});
  if (!m.llama) sums.d_bias = bench.New({m.width});
  grad.partials = sums.partials = bench.New(DType::kF64, {1, m.llama ? 1 : 2, m.width});
  bench.Time("norm gradient + bypass", 2 * m.layers + 1, false, table.norm_grad, grad);
  bench.Time("norm sums", 2 * m.layers + 1, false, table.norm_sums, sums);

  ActivationOp<TensorView> activation{};
  activation.kind = m.llama ? ActivationKind::kSwiglu : ActivationKind::kGelu;
  activation.x = bench.New({m.rows(), m.llama ? 2 * m.ffn() : m.ffn()}),
  activation.out = bench.New({m.rows(), m.ffn()});
  bench.Time("activation", m.layers, false, table.activation, activation);
  ActivationGradOp<TensorView> activation_grad{};
  activation_grad.kind = activation.kind;
  activation_grad.x = activation.x, activation_grad.d_out = activation.out;
  activation_grad.d_x = bench.New({m.rows(), m.llama ? 2 * m.ffn() : m.ffn()});
  bench.Time("activation gradient", m.layers, false, table.activation_grad, activation_grad);
}

void TimeEnds(Bench& bench, const Model& m) {
  const KernelTable& table = CpuKernels();
  const TensorView scalars = bench.Scalars(), tokens = bench.New(DType::kI32, {m.batch, m.length});
  EmbedOp<TensorView> embed{};
  embed.tokens = tokens, embed.scalars = scalars, embed.table = bench.New({m.vocab, m.width});
  embed.out = bench.New({m.rows(), m.width});
  bench.Time("embed", 1, false, table.embed, embed);
  EmbedGradOp<TensorView> embed_grad{};
  embed_grad.tokens = tokens, embed_grad.scalars = scalars, embed_grad.d_out = embed.out;
  embed_grad.d_table = bench.New(DType::kF32, {m.vocab, m.width}),
  embed_grad.table_update = Update::kAccumulate;
  bench.Time("embed gradient", 1, false, table.embed_grad, embed_grad);
  CrossEntropyOp<TensorView> loss{};
  loss.logits = bench.New({m.rows(), m.vocab}), loss.targets = tokens, loss.scalars = scalars,
  loss.vocab = m.vocab;
  loss.loss_sum = bench.New(DType::kF64, {1});
  bench.Time("cross entropy + gradient", 1, false, table.cross_entropy, loss);

  const int64_t n = m.layers * (4 * m.width * m.width + (m.llama ? 3 : 2) * m.width * m.ffn()) +
                    m.vocab * m.width;
  AdamWOp<TensorView> adamw{};
  adamw.master = bench.New(DType::kF32, {n}), adamw.m = bench.New(DType::kF32, {n}),
  adamw.v = bench.New(DType::kF32, {n});
  for (int64_t i = 0; i < n; ++i) adamw.v.as<float>()[i] = std::abs(adamw.v.as<float>()[i]);
  adamw.grad = bench.New(DType::kF32, {n}), adamw.compute = bench.New(DType::kBF16, {n}),
  adamw.scalars = scalars;
  adamw.decay = std::make_shared<const std::vector<Range>>(std::vector<Range>{{0, n / 2}});
  bench.Time("adamw", 1, false, table.adamw, adamw);
  SumSquaresOp<TensorView> squares{};
  squares.x = adamw.grad, squares.out = bench.New(DType::kF64, {1});
  bench.Time("sum of squares", 1, false, table.sum_squares, squares);
  FiniteScanOp<TensorView> scan{};
  scan.x = adamw.grad, scan.bad_count = squares.out, scan.scalars = scalars;
  bench.Time("finite scan", 1, false, table.finite_scan, scan);
  CastOp<TensorView> cast{};
  cast.x = adamw.master, cast.out = adamw.compute;
  bench.Time("cast to bf16", 1, false, table.cast, cast);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::Model model;
  std::string family = "gpt2";
  bool bf16 = false;
  CLI::App app("Times the CPU kernels on the shapes of a training step");
  app.add_option("--family", family, "gpt2 or llama")->check(CLI::IsMember({"gpt2", "llama"}));
  app.add_option("--batch", model.batch, "sequences per microbatch");
  app.add_option("--seq", model.length, "tokens per sequence");
  app.add_option("--width", model.width, "model width, a multiple of the head dimension");
  app.add_option("--head-dim", model.head_dim, "head dimension");
  app.add_option("--layers", model.layers, "layers");
  app.add_option("--vocab", model.vocab, "vocabulary");
  app.add_flag("--bf16", bf16, "activations and weights in bf16");
  CLI11_PARSE(app, argc, argv);
  model.llama = family == "llama";
  model.dtype = bf16 ? millrace::DType::kBF16 : millrace::DType::kF32;
  millrace::Bench bench(model);
  millrace::TimeLayers(bench, model);
  millrace::TimeEnds(bench, model);
  bench.Print();
}
