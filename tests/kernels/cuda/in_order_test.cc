// Ops in order on a GPU (MatmulAttrs, AttentionAttrs, CachedAttentionAttrs): a row has the same
// bits in a product of many rows and in one of few, and in attention of whole sequences and over
// pages.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/matmul/few_rows.h"
#include "runtime/base/cuda/cuda_device.h"
#include "runtime/base/cuda/launch.h"
#include "tests/kernels/cuda/matmul_operands.h"

namespace millrace::test {
namespace {

class Gpu {
 public:
  // bf16 of both signs, of 2^least up to 2^(least + span): sums of such are rounded at every step.
  TensorView Wild(const Layout& layout, int least, uint32_t span) {
    std::vector<uint16_t> bits(static_cast<size_t>(layout.span_bytes() / 2));
    for (uint16_t& b : bits) {
      const uint32_t r = static_cast<uint32_t>(random_());
      b = static_cast<uint16_t>((r & 0x8000) |
                                ((127 + static_cast<uint32_t>(least) + (r >> 16) % span) << 7) |
                                (r & 0x7f));
    }
    const TensorView view = New(layout);
    device_.CopyFromHost(view.data, bits.data(), std::ssize(bits) * 2, *stream_);
    return view;
  }
  TensorView New(const Layout& layout) {
    buffers_.push_back(device_.Allocate(layout.span_bytes(), "operand"));
    device_.EnqueueFill(buffers_.back()->data(), std::byte{0xff}, layout.span_bytes(), *stream_);
    return {buffers_.back()->data(), layout};
  }
  TensorView Ints(const std::vector<int32_t>& values) {
    const TensorView view = New(DenseLayout(DType::kI32, {std::ssize(values)}));
    device_.CopyFromHost(view.data, values.data(), view.bytes(), *stream_);
    return view;
  }
  void Put(const TensorView& view, const std::vector<uint16_t>& bits) {
    device_.CopyFromHost(view.data, bits.data(), std::ssize(bits) * 2, *stream_);
  }
  // Rows and what lies between them.
  void Fill(const TensorView& view) {
    device_.EnqueueFill(view.data, std::byte{0xff}, view.stride(0) * view.dim(0) * 2, *stream_);
  }
  // Of a view that is dense.
  std::vector<uint16_t> Bits(const TensorView& view) {
    std::vector<uint16_t> bits(static_cast<size_t>(view.numel()));
    device_.CopyToHost(bits.data(), view.data, view.bytes(), *stream_);
    return bits;
  }
  Stream& stream() { return *stream_; }
  int sms() const { return device_.properties().multiProcessorCount; }

 private:
  CudaDevice device_{0};
  std::unique_ptr<Stream> stream_ = device_.MakeStream(StreamRole::kCompute);
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  std::minstd_rand random_{7};
};

Layout Dense(std::initializer_list<int64_t> dims) { return DenseLayout(DType::kBF16, dims); }

TensorView RowsFromTo(TensorView view, int64_t first, int64_t rows) {
  view.data += first * view.stride(0) * 2;
  view.layout.dims[0] = rows;
  return view;
}

TensorView TransposeOf(TensorView view) {
  std::swap(view.layout.dims[0], view.layout.dims[1]);
  std::swap(view.layout.strides[0], view.layout.strides[1]);
  return view;
}

// Rows of `got` that differ from those of `expected`, by their bits.
int64_t RowsApart(const std::vector<uint16_t>& got, const std::vector<uint16_t>& expected,
                  int64_t columns) {
  int64_t apart = 0;
  for (size_t at = 0; at < got.size(); at += static_cast<size_t>(columns))
    apart += !std::equal(got.begin() + static_cast<int64_t>(at),
                         got.begin() + static_cast<int64_t>(at) + columns,
                         expected.begin() + static_cast<int64_t>(at));
  return apart;
}

float FloatOf(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Half a unit of bf16, relative.
constexpr double kHalf = 0x1p-8;

// Elements of a b^T + bias picked at random are what they are in double, but for the rounding of
// `got` and of each f32 sum on the way, which tensor cores cut off.
void CheckProduct(const std::vector<uint16_t>& got, const std::vector<uint16_t>& a,
                  const std::vector<uint16_t>& b, const std::vector<uint16_t>& bias,
                  int64_t columns, int64_t depth) {
  std::minstd_rand random(3);
  for (int sample = 0; sample < 300; ++sample) {
    const size_t at = sample == 0   ? 0
                      : sample == 1 ? got.size() - 1
                                    : static_cast<size_t>(random()) % got.size();
    const auto row = static_cast<int64_t>(at) / columns,
               column = static_cast<int64_t>(at) % columns;
    double sum = bias.empty() ? 0 : FloatOf(bias[static_cast<size_t>(column)]),
           size = std::abs(sum);
    for (int64_t k = 0; k < depth; ++k) {
      const double term = double{FloatOf(a[static_cast<size_t>(row * depth + k)])} *
                          FloatOf(b[static_cast<size_t>(column * depth + k)]);
      sum += term, size += std::abs(term);
    }
    const double off = std::abs(FloatOf(got[at]) - sum),
                 bound =
                     kHalf * std::abs(sum) + size * 0x1p-22 * (static_cast<double>(depth) / 16 + 2);
    CAPTURE(row, column, sum, off);
    REQUIRE(off <= bound);
  }
}

struct Sizes {
  int64_t columns, depth;
};

TEST_CASE("a row of a product in order has the same bits in a product of any number of rows") {
  const Sizes s = GENERATE(Sizes{768, 768}, Sizes{2304, 768}, Sizes{768, 3072}, Sizes{3072, 776},
                           Sizes{50304, 768}, Sizes{2048, 8192}, Sizes{200, 72}, Sizes{8, 8},
                           Sizes{8200, 2048});
  constexpr int64_t kRows = 200;
  Gpu gpu;
  const TensorView a = gpu.Wild(Dense({kRows, s.depth}), -12, 15),
                   weight = gpu.Wild(Dense({s.columns, s.depth}), -9, 9),
                   bias = gpu.Wild(Dense({s.columns}), -4, 9),
                   all = gpu.New(Dense({kRows, s.columns})), few = gpu.New(all.layout),
                   all_pre = gpu.New(all.layout), few_pre = gpu.New(all.layout);
  MatmulOp<TensorView> op;
  op.in_order = true;
  op.a = a, op.b = TransposeOf(weight), op.out = all;
  for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kBias, Epilogue::kBiasGelu}) {
    op.epilogue = epilogue;
    op.bias = epilogue == Epilogue::kNone ? TensorView{} : bias;
    op.pre = epilogue == Epilogue::kBiasGelu ? all_pre : TensorView{};
    op.a = a, op.out = all;
    CudaKernels().matmul(op, gpu.stream());
    const std::vector<uint16_t> expected = gpu.Bits(all),
                                expected_pre = op.pre ? gpu.Bits(all_pre) : expected;
    // No row is lost where all of them are NaN.
    CHECK(std::count(expected.begin(), expected.end(), 0xffff) == 0);
    if (epilogue != Epilogue::kBiasGelu)
      CheckProduct(expected, gpu.Bits(a), gpu.Bits(weight),
                   op.bias ? gpu.Bits(bias) : std::vector<uint16_t>(), s.columns, s.depth);
    else
      CheckProduct(expected_pre, gpu.Bits(a), gpu.Bits(weight), gpu.Bits(bias), s.columns, s.depth);
    for (const int64_t rows : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 199}) {
      CAPTURE(s.columns, s.depth, static_cast<int>(epilogue), rows);
      const int64_t first = kRows - rows;
      op.a = RowsFromTo(a, first, rows);
      op.out = RowsFromTo(few, 0, rows);
      if (op.pre) op.pre = RowsFromTo(few_pre, 0, rows);
      CudaKernels().matmul(op, gpu.stream());
      const auto tail = [&](const std::vector<uint16_t>& bits) {
        return std::vector<uint16_t>(bits.begin() + first * s.columns, bits.end());
      };
      CHECK(RowsApart(gpu.Bits(op.out), tail(expected), s.columns) == 0);
      if (op.pre) CHECK(RowsApart(gpu.Bits(op.pre), tail(expected_pre), s.columns) == 0);
    }
    if (!op.pre) continue;
    // Without a place for what goes into the GELU.
    op.pre = {};
    CudaKernels().matmul(op, gpu.stream());
    CHECK(RowsApart(gpu.Bits(op.out),
                    std::vector<uint16_t>(expected.begin() + s.columns, expected.end()),
                    s.columns) == 0);
  }
}

// What is not in order has a row's bits, too, where blocks share a tile's depth (few_rows.h).
class SplitRows {
 public:
  explicit SplitRows(const Sizes& s) : s_(s) {
    REQUIRE(cuda::SplitsRows(kRows, s.columns, s.depth, gpu_.sms()));
    a_ = Wide(kRows, s.depth, 16), out_ = Wide(kRows, s.columns, 8);
    pre_ = Wide(kRows, s.columns, 24);
    weight_ = gpu_.Wild(Dense({s.columns, s.depth}), -9, 9);
    bias_ = gpu_.Wild(Dense({s.columns}), -4, 9);
  }
  static constexpr int64_t kRows = cuda::kSplitRows;

  // The last `rows` rows of a into the first ones of out: what these hold, and of pre where it
  // `keeps` that. All behind them is as it was.
  struct Result {
    std::vector<uint16_t> out, pre;
  };
  Result Run(Epilogue epilogue, bool keeps, int64_t rows) {
    for (const TensorView* view : {&out_, &pre_}) gpu_.Fill(*view);
    MatmulOp<TensorView> op;
    op.epilogue = epilogue;
    op.a = RowsFromTo(a_, kRows - rows, rows);
    op.b = TransposeOf(weight_);
    op.out = RowsFromTo(out_, 0, rows);
    if (epilogue == Epilogue::kBias || epilogue == Epilogue::kBiasGelu) op.bias = bias_;
    if (keeps) op.pre = RowsFromTo(pre_, 0, rows);
    CudaKernels().matmul(op, gpu_.stream());
    return {Kept(out_, rows), keeps ? Kept(pre_, rows) : std::vector<uint16_t>()};
  }
  // Of f32 sums, rounded.
  void Check(const std::vector<uint16_t>& got, bool biased) {
    CheckProduct(got, Inner(a_), gpu_.Bits(weight_),
                 biased ? gpu_.Bits(bias_) : std::vector<uint16_t>(), s_.columns, s_.depth);
  }
  // The kernel of activations, of what went into it.
  std::vector<uint16_t> GeluOf(const std::vector<uint16_t>& pre) {
    const TensorView x = gpu_.New(Dense({kRows, s_.columns})), out = gpu_.New(x.layout);
    gpu_.Put(x, pre);
    ActivationOp<TensorView> op;
    op.kind = ActivationKind::kGelu;
    op.x = x, op.out = out;
    CudaKernels().activation(op, gpu_.stream());
    return gpu_.Bits(out);
  }

 private:
  TensorView Wide(int64_t rows, int64_t columns, int64_t more) {
    TensorView view = gpu_.Wild(Dense({rows, columns + more}), -12, 15);
    view.layout.dims[1] = columns;
    return view;
  }
  std::vector<uint16_t> Inner(const TensorView& view) {
    TensorView whole = view;
    const int64_t stride = view.stride(0), columns = view.dim(1);
    whole.layout = Dense({kRows, stride});
    const std::vector<uint16_t> bits = gpu_.Bits(whole);
    std::vector<uint16_t> inner;
    for (int64_t r = 0; r < kRows; ++r)
      inner.insert(inner.end(), bits.begin() + r * stride, bits.begin() + r * stride + columns);
    return inner;
  }
  // Rows [0, rows); nothing else was written, and nothing of these left out.
  std::vector<uint16_t> Kept(const TensorView& view, int64_t rows) {
    TensorView whole = view;
    whole.layout = Dense({kRows, view.stride(0)});
    const std::vector<uint16_t> all = gpu_.Bits(whole);
    std::vector<uint16_t> inner = Inner(view);
    const auto unwritten = [](const auto& bits) {
      return std::count(bits.begin(), bits.end(), 0xffff);
    };
    CHECK(unwritten(all) == std::ssize(all) - rows * s_.columns);
    inner.resize(static_cast<size_t>(rows * s_.columns));
    CHECK(unwritten(inner) == 0);
    return inner;
  }

  Sizes s_;
  Gpu gpu_;
  TensorView a_, weight_, bias_, out_, pre_;
};

TEST_CASE("a row has the same bits in products of five to sixty-four rows") {
  // Tiles and boxes that are whole and that are not; eight, four and two blocks; several rounds of
  // the ring. Of 132 multiprocessors.
  const Sizes s = GENERATE(Sizes{768, 768}, Sizes{768, 3072}, Sizes{832, 4096}, Sizes{64, 16384},
                           Sizes{200, 776}, Sizes{8, 264}, Sizes{72, 200}, Sizes{2304, 768},
                           Sizes{3072, 1000}, Sizes{1000, 136});
  SplitRows product(s);
  struct Behind {
    Epilogue epilogue;
    bool keeps;
  };
  std::vector<uint16_t> biased;
  for (const auto& [epilogue, keeps] :
       {Behind{Epilogue::kNone, false}, Behind{Epilogue::kBias, false},
        Behind{Epilogue::kBiasGelu, true}, Behind{Epilogue::kBiasGelu, false}}) {
    const SplitRows::Result all = product.Run(epilogue, keeps, SplitRows::kRows);
    if (epilogue != Epilogue::kBiasGelu) product.Check(all.out, epilogue == Epilogue::kBias);
    if (epilogue == Epilogue::kBias) biased = all.out;
    if (epilogue == Epilogue::kBiasGelu) CHECK(all.out == product.GeluOf(biased));
    if (keeps) CHECK(all.pre == biased);
    for (const int64_t rows : {5, 6, 8, 15, 16, 17, 33, 63}) {
      CAPTURE(s.columns, s.depth, static_cast<int>(epilogue), keeps, rows);
      const SplitRows::Result few = product.Run(epilogue, keeps, rows);
      const auto tail = [&](const std::vector<uint16_t>& bits) {
        return std::vector<uint16_t>(bits.end() - rows * s.columns, bits.end());
      };
      CHECK(RowsApart(few.out, tail(all.out), s.columns) == 0);
      if (keeps) CHECK(RowsApart(few.pre, tail(all.pre), s.columns) == 0);
    }
  }
}

// A graph whose kernels begin early: one that takes its time and writes the rows last, then the
// product.
TEST_CASE("a product whose depth is shared waits for its rows") {
  constexpr int64_t kRows = 64, kDepth = 3072, kColumns = 768, kAhead = int64_t{6} << 20;
  CudaDevice device(0);
  const auto stream = device.MakeStream(StreamRole::kCompute);
  DeviceOperands operands(device, *stream);
  const TensorView wide = operands.New(DenseLayout(DType::kF32, {kAhead + kRows * kDepth})),
                   weight = operands.Random(Dense({kColumns, kDepth}));
  std::vector<std::unique_ptr<Graph>> graphs;
  std::vector<TensorView> outs;
  for (const EarlyLaunch early : {EarlyLaunch::kEnd, EarlyLaunch::kBegin, EarlyLaunch::kOff}) {
    device.Attached<cuda::LaunchPolicy>().early = early;
    const TensorView narrow = operands.New(DenseLayout(DType::kBF16, {kAhead + kRows * kDepth}));
    MatmulOp<TensorView> op;
    op.a = {narrow.data + 2 * kAhead, Dense({kRows, kDepth})};
    op.b = TransposeOf(weight);
    op.out = outs.emplace_back(operands.New(Dense({kRows, kColumns})));
    device.BeginCapture(*stream);
    CudaKernels().cast({{}, wide, narrow}, *stream);
    CudaKernels().matmul(op, *stream);
    graphs.push_back(device.EndCapture(*stream));
  }
  std::vector<uint16_t> before;
  for (uint32_t step = 0; step < 40; ++step) {
    std::minstd_rand random(step + 1);
    std::vector<float> rows(static_cast<size_t>(kRows * kDepth));
    for (float& value : rows) value = static_cast<float>(random() % 2001) / 1000.0f - 1;
    device.CopyFromHost(wide.data + 4 * kAhead, rows.data(), 4 * std::ssize(rows), *stream);
    std::vector<std::vector<uint16_t>> got;
    for (size_t i = 0; i < graphs.size(); ++i) {
      graphs[i]->Launch(*stream);
      std::vector<uint16_t>& bits = got.emplace_back(static_cast<size_t>(kRows * kColumns));
      device.CopyToHost(bits.data(), outs[i].data, 2 * std::ssize(bits), *stream);
    }
    REQUIRE(got[0] == got[2]);
    REQUIRE(got[1] == got[2]);
    CHECK(got[2] != before);
    before = got[2];
  }
}

struct Heads {
  int64_t heads, kv_heads, depth, page_tokens, length;
};

// Two sequences, as qkv rows [2 T, (H + 2 Hkv) D], attended whole and over pages.
class Attended {
 public:
  Attended(Gpu& gpu, const Heads& h) : gpu_(gpu), h_(h) {
    // A third sequence is nobody's.
    qkv_ = gpu.Wild(Dense({kSequences * h.length, Width()}), -3, 4);
    whole_ = gpu.New(Dense({kSequences * h.length, h.heads * h.depth}));
    rows_ = gpu.New(whole_.layout);
    AttentionOp<TensorView> op;
    op.scale = Scale();
    op.in_order = true;
    op.q = Sequences(qkv_, 0, h.heads);
    op.k = Sequences(qkv_, h.heads, h.kv_heads);
    op.v = Sequences(qkv_, h.heads + h.kv_heads, h.kv_heads);
    op.out = Sequences(whole_, 0, h.heads);
    op.lse = gpu.New(DenseLayout(DType::kF32, {kSequences, h.heads, h.length}));
    CudaKernels().attention(op, gpu.stream());
    // Pages of the two, in turn from the back.
    const int64_t each = h.length / h.page_tokens + 1;
    std::vector<int32_t> pages;
    for (int64_t slot = 0; slot < 2; ++slot)
      for (int64_t p = 0; p < each; ++p)
        pages.push_back(static_cast<int32_t>(2 * (each - 1 - p) + slot));
    pages_ = gpu.Ints(pages);
    pages_.layout = DenseLayout(DType::kI32, {2, each});
    cache_ = gpu.New(Dense({2 * each, h.page_tokens, 2 * h.kv_heads * h.depth}));
    std::vector<int32_t> at, slots;
    for (int64_t t = 0; t < h.length; ++t)
      for (int32_t s = 0; s < 3; ++s) at.push_back(static_cast<int32_t>(t));
    for (int64_t t = 0; t < h.length; ++t) at.push_back(static_cast<int32_t>(t));
    at_ = gpu.Ints(at);
    for (int32_t slot = 0; slot < 2; ++slot) slots.insert(slots.end(), h.length, slot);
    slots.insert(slots.end(), {0, 1, -1});
    slots_ = gpu.Ints(slots);
  }

  // Rows [first, first + rows) of one sequence.
  void Piece(int64_t sequence, int64_t first, int64_t rows, RowsFrom from) {
    Run(sequence * h_.length + first, Width(), h_.heads * h_.depth, rows, 3 * h_.length + first,
        sequence * h_.length, from);
  }
  // Position t of both sequences, and a row of nobody.
  void Step(int64_t t) {
    Run(t, h_.length * Width(), h_.length * h_.heads * h_.depth, 3, 3 * t, 2 * h_.length,
        RowsFrom::kManySequences);
  }
  // Some heads of some positions of the second sequence, attended whole, are what they are in
  // double but for roundings of weights and results.
  void CheckWhole() {
    const std::vector<uint16_t> qkv = gpu_.Bits(qkv_), whole = gpu_.Bits(whole_);
    const auto at = [&](int64_t t, int64_t head, int64_t d) {
      return double{
          FloatOf(qkv[static_cast<size_t>((h_.length + t) * Width() + head * h_.depth + d)])};
    };
    for (const int64_t t : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, h_.length - 1})
      for (const int64_t head : {int64_t{0}, h_.heads - 1}) {
        const int64_t kv = h_.heads + head / (h_.heads / h_.kv_heads);
        std::vector<double> weights;
        double most = -1e30, total = 0;
        for (int64_t u = 0; u <= t; ++u) {
          double score = 0;
          for (int64_t d = 0; d < h_.depth; ++d) score += at(t, head, d) * at(u, kv, d);
          most = std::max(most, weights.emplace_back(score * Scale()));
        }
        for (double& w : weights) total += w = std::exp(w - most);
        for (int64_t d = 0; d < h_.depth; ++d) {
          double sum = 0, size = 0;
          for (int64_t u = 0; u <= t; ++u) {
            const double term =
                weights[static_cast<size_t>(u)] / total * at(u, kv + h_.kv_heads, d);
            sum += term, size += std::abs(term);
          }
          const double got = FloatOf(whole[static_cast<size_t>(
              (h_.length + t) * h_.heads * h_.depth + head * h_.depth + d)]);
          CAPTURE(t, head, d, sum, got);
          REQUIRE(std::abs(got - sum) <= kHalf * std::abs(sum) + size * (kHalf + 0x1p-12));
        }
      }
  }
  // Rows of either sequence whose bits are others over pages.
  int64_t Apart() {
    const int64_t columns = h_.heads * h_.depth, count = 2 * h_.length * columns;
    std::vector<uint16_t> got = gpu_.Bits(rows_), expected = gpu_.Bits(whole_);
    got.resize(static_cast<size_t>(count)), expected.resize(static_cast<size_t>(count));
    CHECK(std::count(expected.begin(), expected.end(), 0xffff) == 0);
    return RowsApart(got, expected, columns);
  }

 private:
  static constexpr int64_t kSequences = 3;

  int64_t Width() const { return (h_.heads + 2 * h_.kv_heads) * h_.depth; }
  float Scale() const { return h_.depth == 64 ? 0.125f : 0.08838835f; }

  TensorView Sequences(TensorView rows, int64_t head, int64_t heads) const {
    const int64_t width = rows.stride(0);
    rows.data += head * h_.depth * 2;
    rows.layout = DenseLayout(DType::kBF16, {kSequences, h_.length, heads, h_.depth});
    rows.layout.strides[0] = h_.length * width;
    rows.layout.strides[1] = width;
    return rows;
  }
  static TensorView HeadsAt(TensorView rows, int64_t first, int64_t stride, int64_t count,
                            int64_t heads, int64_t depth) {
    rows.data += first * rows.stride(0) * 2;
    rows.layout = DenseLayout(DType::kBF16, {count, heads, depth});
    rows.layout.strides[0] = stride;
    return rows;
  }
  static TensorView IntsAt(TensorView ints, int64_t first, int64_t count) {
    ints.data += first * 4;
    ints.layout.dims[0] = count;
    return ints;
  }

  void Run(int64_t first, int64_t stride, int64_t out_stride, int64_t rows, int64_t at,
           int64_t slots, RowsFrom from) {
    CachedAttentionOp<TensorView> op;
    op.scale = Scale();
    op.in_order = true;
    op.kv_heads = h_.kv_heads;
    op.length = h_.length;
    op.rows_from = from;
    op.q = HeadsAt(qkv_, first, stride, rows, h_.heads, h_.depth);
    op.x = qkv_;
    op.x.data += (first * Width() + h_.heads * h_.depth) * 2;
    op.x.layout = Dense({rows, 2 * h_.kv_heads * h_.depth});
    op.x.layout.strides[0] = stride;
    op.at = IntsAt(at_, at, rows);
    op.slots = IntsAt(slots_, slots, rows);
    op.pages = pages_;
    op.cache = cache_;
    op.out = HeadsAt(rows_, first, out_stride, rows, h_.heads, h_.depth);
    CudaKernels().cached_attention(op, gpu_.stream());
  }

  Gpu& gpu_;
  const Heads h_;
  TensorView qkv_, whole_, rows_, pages_, cache_, at_, slots_;
};

TEST_CASE("attention in order has the same bits of whole sequences and over pages") {
  const Heads h =
      GENERATE(Heads{12, 12, 64, 16, 700}, Heads{8, 2, 64, 24, 450}, Heads{20, 1, 64, 64, 300},
               Heads{8, 8, 128, 16, 420}, Heads{16, 2, 128, 32, 700}, Heads{4, 2, 64, 1, 1030});
  CAPTURE(h.heads, h.kv_heads, h.depth, h.length);
  Gpu gpu;
  SECTION("a token at a time") {
    Attended attended(gpu, h);
    attended.CheckWhole();
    for (int64_t t = 0; t < h.length; ++t) attended.Step(t);
    CHECK(attended.Apart() == 0);
  }
  SECTION("prompts in pieces, then a token at a time") {
    const int64_t piece = GENERATE(1, 50, 64, 97, 256);
    CAPTURE(piece);
    Attended attended(gpu, h);
    const int64_t prompt = h.length - 130;
    for (int64_t sequence = 0; sequence < 2; ++sequence)
      for (int64_t first = 0; first < prompt; first += piece)
        attended.Piece(sequence, first, std::min(piece, prompt - first), RowsFrom::kOneSequence);
    for (int64_t t = prompt; t < h.length; ++t) attended.Step(t);
    CHECK(attended.Apart() == 0);
  }
  SECTION("several rows of a sequence as rows of many") {
    Attended attended(gpu, h);
    for (int64_t sequence = 0; sequence < 2; ++sequence)
      for (int64_t first = 0; first < h.length; first += 37)
        attended.Piece(sequence, first, std::min<int64_t>(37, h.length - first),
                       RowsFrom::kManySequences);
    CHECK(attended.Apart() == 0);
  }
}

}  // namespace
}  // namespace millrace::test
