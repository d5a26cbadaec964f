#include "kernels/cuda/tuning/tuning.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/matmul/matmul_plans.h"
#include "kernels/cuda/tuning/tuning_fill.h"
#include "kernels/ops/cuda_float8.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/gpu_uuid.h"
#include "runtime/base/error.h"
#include "runtime/base/nvml.h"

namespace millrace {
namespace {

constexpr int kMostSets = 16;
constexpr int64_t kMostCalls = 200;  // products of one graph

class TimedEvent {
 public:
  TimedEvent() { MR_CUDA(cudaEventCreate(&event_)); }
  ~TimedEvent() { static_cast<void>(cudaEventDestroy(event_)); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  void Record(cudaStream_t stream) { MR_CUDA(cudaEventRecord(event_, stream)); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

Layout LayoutOf(DType dtype, int64_t rows, int64_t cols, const MatrixKey& key) {
  Layout layout = DenseLayout(dtype, {rows, cols});
  layout.strides[0] = key.transposed ? 1 : key.ld;
  layout.strides[1] = key.transposed ? key.ld : 1;
  return layout;
}

// Of an operand in FP8 [lines, sum]; none else.
Layout ScalesLayout(KeyScales scales, int64_t lines, int64_t sum) {
  if (scales == KeyScales::kNone) return DenseLayout(DType::kF32, {0});
  return cuda::ScalesInPlace(scales, lines, sum);
}

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, 256); }

// Random operands of one product, several times over.
class Operands {
 public:
  Operands(CudaDevice& device, const MatmulKey& key, Stream& stream)
      : layouts_{LayoutOf(key.operands, key.m, key.k, key.a),
                 LayoutOf(DTypeOfB(key), key.k, key.n, key.b),
                 LayoutOf(key.result, key.m, key.n, key.out),
                 key.gelu_grad ? LayoutOf(key.result, key.m, key.n, key.out)
                               : DenseLayout(key.result, {key.n}),
                 ScalesLayout(key.a.scales, key.m, key.k),
                 ScalesLayout(key.b.scales, key.n, key.k)} {
    int64_t bytes = 0;
    for (const Layout& layout : layouts_) bytes += Aligned(layout.span_bytes());
    // Twice the cache lies between two uses of the same operands.
    const int64_t wanted = 1 + 2 * device.properties().l2CacheSize / bytes;
    sets_ = static_cast<int>(std::clamp<int64_t>(wanted, 1, kMostSets));
    set_bytes_ = bytes;
    buffer_ = device.Allocate(bytes * sets_, "operands for tuning");
    int64_t offset = 0;
    uint64_t seed = 1;
    for (int set = 0; set < sets_; ++set)
      for (const Layout& layout : layouts_) {
        cuda::LaunchFillUniform(buffer_->data() + offset, layout.dtype,
                                layout.span_bytes() / Bytes(layout.dtype), seed++ << 40,
                                AsCuda(stream).get());
        offset += Aligned(layout.span_bytes());
      }
  }

  // Of the `call`-th product.
  Product<TensorView> Of(int64_t call) const {
    return {View(call, 0), View(call, 1), View(call, 2), View(call, 4), View(call, 5)};
  }
  // Its bias, or pre of a GELU's gradient.
  TensorView ExtraOf(int64_t call) const { return View(call, 3); }

 private:
  TensorView View(int64_t call, int which) const {
    int64_t offset = call % sets_ * set_bytes_;
    for (int i = 0; i < which; ++i) offset += Aligned(layouts_[i].span_bytes());
    return {buffer_->data() + offset, layouts_[which]};
  }

  Layout layouts_[6];
  int sets_ = 1;
  int64_t set_bytes_ = 0;
  std::unique_ptr<DeviceBuffer> buffer_;
};

struct Candidate {
  MatmulAlgorithm algorithm;
  // With the kernel that multiplies by GELU's derivative behind each product.
  bool gelu_grad = false;
  std::vector<double> microseconds = {};
  int64_t calls = 1;  // per timing
  std::unique_ptr<Graph> graph = {};
  std::optional<HotResult> hot = {};

  double median() {
    std::nth_element(microseconds.begin(), microseconds.begin() + std::ssize(microseconds) / 2,
                     microseconds.end());
    return microseconds[microseconds.size() / 2];
  }
  // Of a product with hot turns one without them is out of the running.
  double deciding() { return hot ? hot->microseconds : median(); }

  std::string Description() const {
    return Describe(algorithm.algo) + (gelu_grad ? ", a kernel behind it" : "");
  }
};

double Rounded(double value) { return std::round(value * 100) / 100; }

MeasuredAlgorithm MeasuredOf(Candidate& candidate) {
  MeasuredAlgorithm measured{.description = candidate.Description(),
                             .microseconds = Rounded(candidate.median())};
  if (!candidate.hot) return measured;
  measured.hot_microseconds = Rounded(candidate.hot->microseconds);
  measured.sm_mhz = candidate.hot->sm_mhz;
  if (!candidate.hot->millijoules) return measured;
  measured.millijoules = Rounded(*candidate.hot->millijoules);
  measured.millijoules_off = Rounded(*candidate.hot->millijoules * candidate.hot->off);
  return measured;
}

class Tuner {
 public:
  // `hot`: the keys that get hot turns.
  Tuner(CudaDevice& device, const TuneOptions& options, std::set<MatmulKey> hot)
      : device_(device),
        options_(options),
        hot_(std::move(hot)),
        plans_(device.Attached<MatmulPlans>()),
        stream_(device.MakeStream(StreamRole::kCompute)),
        scratch_(device.Allocate(kMatmulWorkspaceBytes, "workspace for tuning")),
        counters_(GpuUuid(device.properties())),
        hot_turns_(options.hot, counters_, device, *stream_) {}

  TunedMatmul Measure(const MatmulKey& key) {
    MatmulProblem problem(key);
    return Best(problem, Operands(device_, key, *stream_), key, nullptr);
  }

  // A product times GELU's derivative: by the library at once, or by its product, for which
  // `separate` was chosen, and a kernel behind it.
  TunedMatmul MeasureFused(const MatmulKey& key, const TunedMatmul& separate) {
    const Operands operands(device_, key, *stream_);
    MatmulKey product_key = key;
    product_key.gelu_grad = false;
    MatmulProblem product(product_key);
    Candidate in_turn{.algorithm = product.FromHex(plans_.handle(), separate.algorithm),
                      .gelu_grad = true};
    MR_REQUIRE(ErrorCode::kDevice, FirstLook(product, operands, in_turn),
               "cuBLASLt no longer runs what was measured of {}", ToString(product_key));
    TunedMatmul fused;
    fused.no_joules = "no algorithm of the library to compare with";
    fused.microseconds = std::numeric_limits<double>::infinity();  // what the library has none for
    comparing_ = false;
    try {
      MatmulProblem problem(key);
      fused = Best(problem, operands, key, &in_turn);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kDevice)
        throw;                // memory that is short today shall not decide about bits
      if (comparing_) throw;  // not for want of an algorithm
    }
    fused.default_microseconds = Rounded(in_turn.deciding());
    if (fused.microseconds < fused.default_microseconds * (1 - kNoise)) return fused;
    return {.algorithm = "",
            .description = "product and kernel in turn",
            .microseconds = fused.default_microseconds,
            .default_microseconds = fused.default_microseconds,
            .measured = std::move(fused.measured),
            .no_joules = std::move(fused.no_joules)};
  }

 private:
  // `beside` is timed in the same rounds.
  TunedMatmul Best(MatmulProblem& problem, const Operands& operands, const MatmulKey& key,
                   Candidate* beside) {
    std::vector<Candidate> candidates;
    for (const MatmulAlgorithm& algorithm :
         problem.Suggestions(plans_.handle(), options_.suggestions)) {
      Candidate candidate{.algorithm = algorithm};
      if (FirstLook(problem, operands, candidate)) candidates.push_back(std::move(candidate));
    }
    MR_REQUIRE(ErrorCode::kDevice, !candidates.empty(), "no algorithm of cuBLASLt runs {}",
               ToString(key));
    // The default stays in front.
    std::stable_sort(candidates.begin() + 1, candidates.end(),
                     [](const Candidate& a, const Candidate& b) {
                       return a.microseconds[0] < b.microseconds[0];
                     });
    candidates.resize(
        std::min(candidates.size(), static_cast<size_t>(std::max(options_.finalists, 1))));
    std::vector<Candidate*> entrants;
    for (Candidate& candidate : candidates) entrants.push_back(&candidate);
    if (beside != nullptr) entrants.push_back(beside);
    comparing_ = true;
    for (Candidate* entrant : entrants) entrant->microseconds.clear();
    for (int round = 0; round < std::max(options_.rounds, 1); ++round)
      for (Candidate* entrant : entrants) entrant->microseconds.push_back(Time(*entrant));

    std::string no_joules = "a small part of all products: no hot turns";
    if (hot_.contains(key)) no_joules = TakeHotTurns(candidates.front(), beside, entrants);

    const double of_default = candidates.front().deciding();
    Candidate* best = &candidates.front();
    for (Candidate& candidate : candidates)
      if (candidate.hot.has_value() == candidates.front().hot.has_value() &&
          candidate.deciding() < std::min(best->deciding(), of_default * (1 - kNoise)))
        best = &candidate;
    TunedMatmul tuned{.algorithm = HexOf(best->algorithm.algo),
                      .description = best->Description(),
                      .microseconds = Rounded(best->deciding()),
                      .default_microseconds = Rounded(of_default),
                      .no_joules = std::move(no_joules)};
    for (Candidate* entrant : entrants) tuned.measured.push_back(MeasuredOf(*entrant));
    return tuned;
  }

  // Of the default, of what is beside, and of those entrants that are nearly as fast as the
  // fastest. Why there are no joules; "": there are.
  std::string TakeHotTurns(Candidate& of_default, Candidate* beside,
                           std::vector<Candidate*> entrants) {
    double fastest = std::numeric_limits<double>::infinity();
    for (Candidate* candidate : entrants) fastest = std::min(fastest, candidate->median());
    std::erase_if(entrants, [&](Candidate* candidate) {
      return candidate != &of_default && candidate != beside &&
             candidate->median() > fastest * (1 + kHotMargin);
    });
    std::vector<HotCandidate> hot;
    for (Candidate* candidate : entrants) hot.emplace_back(*candidate->graph, candidate->calls);
    hot_turns_.Take(hot);
    std::string no_joules;
    for (size_t i = 0; i < entrants.size(); ++i) {
      entrants[i]->hot = hot[i].Result();
      if (no_joules.empty()) no_joules = entrants[i]->hot->no_joules;
    }
    return no_joules;
  }

  // One timing of the candidate, whose graph is then as long as later timings are to be. False: the
  // library suggests what it then refuses to run.
  bool FirstLook(MatmulProblem& problem, const Operands& operands, Candidate& candidate) {
    try {
      Issue(problem, operands, candidate);  // loads the kernel
      MR_CUDA(cudaStreamSynchronize(AsCuda(*stream_).get()));
    } catch (const Error&) {
      return false;
    }
    const auto calls = [&](double milliseconds, double microseconds) {
      return std::clamp<int64_t>(static_cast<int64_t>(milliseconds * 1e3 / microseconds), 1,
                                 kMostCalls);
    };
    Record(problem, operands, candidate, 1);
    Record(problem, operands, candidate, calls(options_.round_ms / 4, Time(candidate)));
    candidate.microseconds = {Time(candidate)};
    Record(problem, operands, candidate, calls(options_.round_ms, candidate.microseconds.front()));
    return true;
  }

  void Issue(MatmulProblem& problem, const Operands& operands, const Candidate& candidate) {
    const TensorView workspace{scratch_->data(), DenseLayout(DType::kU8, {kMatmulWorkspaceBytes})};
    problem.Run(plans_.handle(), candidate.algorithm, operands.Of(calls_),
                operands.ExtraOf(calls_).data, Update::kOverwrite, workspace,
                AsCuda(*stream_).get());
    if (candidate.gelu_grad) MultiplyByGeluGrad(operands.ExtraOf(calls_), operands.Of(calls_).out);
    ++calls_;
  }

  // Captures `calls` products, and runs them once: a graph's first launch takes longer.
  void Record(MatmulProblem& problem, const Operands& operands, Candidate& candidate,
              int64_t calls) {
    candidate.calls = calls;
    device_.BeginCapture(*stream_);
    for (int64_t i = 0; i < calls; ++i) Issue(problem, operands, candidate);
    candidate.graph = device_.EndCapture(*stream_);
    candidate.graph->Launch(*stream_);
  }

  // Microseconds per product.
  double Time(const Candidate& candidate) {
    const cudaStream_t stream = AsCuda(*stream_).get();
    begin_.Record(stream);
    candidate.graph->Launch(*stream_);
    end_.Record(stream);
    MR_CUDA(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    MR_CUDA(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return std::max(1e3 * static_cast<double>(milliseconds) / static_cast<double>(candidate.calls),
                    0.01);
  }

  void MultiplyByGeluGrad(const TensorView& pre, const TensorView& out) {
    ActivationGradOp<TensorView> grad;
    grad.kind = ActivationKind::kGelu;
    grad.x = pre;
    grad.d_out = grad.d_x = out;
    CudaActivationGrad(grad, *stream_);
  }

  CudaDevice& device_;
  const TuneOptions& options_;
  const std::set<MatmulKey> hot_;
  MatmulPlans& plans_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<DeviceBuffer> scratch_;
  NvmlGpu counters_;
  HotTurns hot_turns_;
  TimedEvent begin_, end_;
  bool comparing_ = false;  // algorithms that run are being timed
  int64_t calls_ = 0;
};

}  // namespace

TuningTable Tune(CudaDevice& device, const std::vector<MatmulOp<Shape>>& ops,
                 const TuneOptions& options) {
  std::set<MatmulKey> keys;  // a product is in front of the same product with GELU's gradient
  for (const MatmulOp<Shape>& op : ops)
    for (const std::optional<MatmulKey>& key : {KeyOf(op), FusedKeyOf(op)})
      if (key) keys.insert(*key);
  TuningTable table{
      .device = device.name(), .library_version = MatmulPlans::LibraryVersion(), .matmuls = {}};
  Tuner tuner(device, options, LargestProducts(ops, options.hot_products, options.hot_share));
  for (const MatmulKey& key : keys) {
    MatmulKey product = key;
    product.gelu_grad = false;
    const TunedMatmul& tuned =
        table.matmuls
            .emplace(key, key.gelu_grad ? tuner.MeasureFused(key, table.matmuls.at(product))
                                        : tuner.Measure(key))
            .first->second;
    if (options.on_measured) options.on_measured(key, tuned);
  }
  return table;
}

}  // namespace millrace
