// Attention with sequences split over a context group, against the same rows of attention over
// whole sequences.
#include <catch2/catch.hpp>
#include <cstring>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "tests/kernels/support/context_case.h"
#include "tests/kernels/support/subject.h"

namespace millrace::test {
namespace {

bool SameRow(const TensorView& a, int64_t a_b, int64_t a_t, const TensorView& b, int64_t b_b,
             int64_t b_t) {
  for (int64_t h = 0; h < a.dim(2); ++h)
    if (std::memcmp(AddressOf(a, {a_b, a_t, h}), AddressOf(b, {b_b, b_t, h}),
                    static_cast<size_t>(a.dim(3) * Bytes(a.dtype()))) != 0)
      return false;
  return true;
}

struct Cpu {
  explicit Cpu(const ContextSizes& sizes) : data(sizes) {
    Forward(data.whole);
    Backward(data.whole);
  }
  void Forward(const AttentionGradOp<TensorView>& op) {
    Run(subject, data.memory, subject.table.attention, ContextCase::ForwardOf(op));
  }
  void Backward(const AttentionGradOp<TensorView>& op) {
    Run(subject, data.memory, subject.table.attention_grad, op);
  }

  std::unique_ptr<Device> device = MakeHostDevice();
  std::unique_ptr<Stream> stream = device->MakeStream(StreamRole::kCompute);
  Subject subject{CpuKernels(), *device, *stream, Backend::kCpu};
  ContextCase data;
};

void CheckRows(const ContextCase& data, const AttentionGradOp<TensorView>& local, int64_t c) {
  const ContextSizes& s = data.sizes;
  int64_t wrong_out = 0, wrong_lse = 0, wrong_d_q = 0;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t i = 0; i < s.rows(); ++i) {
      const int64_t t = s.PositionOf(c, i);
      wrong_out += !SameRow(local.out, b, i, data.whole.out, b, t);
      wrong_d_q += !SameRow(local.d_q, b, i, data.whole.d_q, b, t);
      for (int64_t h = 0; h < s.heads; ++h)
        wrong_lse += Get(local.lse, b, h, i) != Get(data.whole.lse, b, h, t);
    }
  }
  CHECK(wrong_out == 0);
  CHECK(wrong_lse == 0);
  CHECK(wrong_d_q == 0);
}

TEST_CASE("a rank's rows of split attention have the bits of whole sequences", "[context]") {
  // Chunks below, at and across the 64 queries of a block.
  const ContextSizes s = GENERATE(values<ContextSizes>({{1, 20, 2, 2, 1, 8},
                                                        {2, 1, 3, 1, 1, 4},
                                                        {2, 32, 2, 4, 2, 16},
                                                        {2, 64, 1, 2, 2, 64, DType::kBF16},
                                                        {2, 37, 3, 3, 1, 17},
                                                        {3, 5, 3, 2, 1, 8, DType::kBF16},
                                                        {3, 50, 2, 4, 4, 8},
                                                        {3, 64, 1, 2, 1, 40},
                                                        {4, 1, 1, 1, 1, 1},
                                                        {4, 9, 2, 6, 3, 8},
                                                        {4, 48, 3, 2, 1, 16, DType::kBF16},
                                                        {4, 96, 1, 1, 1, 128},
                                                        {4, 33, 2, 2, 2, 24},
                                                        {2, 37, 3, 3, 1, 17, DType::kF32, 20},
                                                        {3, 50, 2, 4, 4, 8, DType::kF32, 65},
                                                        {4, 48, 3, 2, 1, 16, DType::kBF16, 100},
                                                        {4, 9, 2, 6, 3, 8, DType::kF32, 1}}));
  Cpu cpu(s);
  for (int64_t c = 0; c < s.ranks; ++c) {
    CAPTURE(s.ranks, s.chunk, s.batch, s.heads, s.kv_heads, s.depth, c);
    const AttentionGradOp<TensorView> local = cpu.data.Split(c);
    cpu.Forward(local);
    cpu.Backward(local);
    CheckRows(cpu.data, local, c);
    // What other ranks' rows would add is zeros, and adding zeros changes no bits.
    const AttentionGradOp<TensorView> masked = cpu.data.MaskedTo(c);
    cpu.Backward(masked);
    int64_t wrong_d_k = 0, wrong_d_v = 0;
    cpu.data.ForGathered([&](int64_t b, int64_t t, int64_t outer, int64_t row) {
      wrong_d_k += !SameRow(local.d_k, outer, row, masked.d_k, b, t);
      wrong_d_v += !SameRow(local.d_v, outer, row, masked.d_v, b, t);
    });
    CHECK(wrong_d_k == 0);
    CHECK(wrong_d_v == 0);
  }
}

TEST_CASE("split attention reads no keys behind the last chunk that it sees", "[context]") {
  const ContextSizes s{4, 64, 2, 2, 1, 8};
  Cpu cpu(s);
  for (int64_t c = 0; c < s.ranks; ++c) {
    CAPTURE(c);
    const int64_t seen = (2 * s.ranks - c) * s.chunk;
    AttentionGradOp<TensorView> local = cpu.data.Split(c);
    cpu.data.Poison(local, seen);
    cpu.Forward(local);
    cpu.Backward(local);
    CheckRows(cpu.data, local, c);
    int64_t not_zero = 0;
    cpu.data.ForGathered([&](int64_t, int64_t t, int64_t outer, int64_t row) {
      for (int64_t d = 0; d < s.depth && t >= seen; ++d)
        not_zero += Get(local.d_k, outer, row, 0, d) != 0 || Get(local.d_v, outer, row, 0, d) != 0;
    });
    CHECK(not_zero == 0);

    // With an early chunk for the late one, it does not look as far.
    local = cpu.data.Split(c);
    local.rows.second = RankInt(c == 0 ? s.chunk : 0);
    cpu.data.Poison(local, std::max<int64_t>(c + 1, 2) * s.chunk);
    cpu.Forward(local);
    int64_t wrong = 0;
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t i = 0; i < s.chunk; ++i)
        wrong += !SameRow(local.out, b, i, cpu.data.whole.out, b, c * s.chunk + i);
    CHECK(wrong == 0);
  }
}

TEST_CASE("chunks that are none, and starts that were not bound, are refused", "[context]") {
  using Catch::Matchers::Contains;
  Cpu cpu({2, 4, 1, 1, 1, 4});
  const auto message_of = [&](const ContextRows& rows) -> std::string {
    AttentionGradOp<TensorView> local = cpu.data.Split(0);
    local.rows = rows;
    try {
      cpu.Forward(local);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(message_of({2, RankInt(0), RankInt(10)}), Contains("chunk of 4") && Contains("10"));
  CHECK_THAT(message_of({2, RankInt(0), RankInt(16)}), Contains("sequence of 16"));
  CHECK_THAT(message_of({2, RankInt(8), RankInt(8)}), Contains("same") && Contains("8"));
  CHECK_THAT(message_of({2, RankInt(0, 4, Axis::kContext), RankInt(12)}), Contains("not bound"));
  CHECK_THAT(message_of({3, RankInt(0), RankInt(12)}), Contains("q is"));
}

}  // namespace
}  // namespace millrace::test
