// A Mamba-2 mixer's convolution and scan over rows of sequences that keep their states: what they
// give of whole sequences, whatever comes beside each other and however sequences are cut.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/kernels/contract/contract.h"
#include "tests/kernels/support/near.h"
#include "tests/kernels/support/ssd_reference.h"

namespace millrace::test {
namespace {

struct Case {
  int64_t sequences, length, heads, channels, groups, states, chunk, taps;
  DType dtype;

  int64_t inner() const { return heads * channels; }
  int64_t width() const { return inner() + 2 * groups * states; }
};

Case PickCase(Random& random) {
  const int64_t groups = Pick(random, 1, 2);
  return {Pick(random, 1, 4),
          Pick(random, 1, 60),
          groups * Pick(random, 1, 3),
          Pick(random, 1, 9),
          groups,
          Pick(random, 1, 9),
          Pick(random, 1, 25),
          Pick(random, 1, 4),
          PickFloat(random)};
}

// Rows in one op: a sequence and a position each; -1: nobody's.
struct Rows {
  std::vector<std::pair<int64_t, int64_t>> of;
  TensorView at, slots;
};

Rows NextRows(Memory& memory, Random& random, const Case& c, std::vector<int64_t>& done) {
  Rows rows;
  for (int64_t s = 0; s < c.sequences; ++s) {
    if (Flip(random)) rows.of.emplace_back(-1, 0);
    int64_t& position = done[static_cast<size_t>(s)];
    for (int64_t n = std::min(Pick(random, 0, 40), c.length - position); n > 0; --n)
      rows.of.emplace_back(s, position++);
  }
  const auto count = std::ssize(rows.of);
  rows.at = memory.New(DType::kI32, {count});
  rows.slots = memory.New(DType::kI32, {count});
  for (int64_t r = 0; r < count; ++r) {
    const auto [sequence, position] = rows.of[static_cast<size_t>(r)];
    rows.at.as<int32_t>()[r] = static_cast<int32_t>(position);
    rows.slots.as<int32_t>()[r] =
        static_cast<int32_t>(sequence < 0 ? -1 : c.sequences - sequence);  // slot 0 is free
  }
  return rows;
}

// [R,n] of [S,T,n]; nobody's rows are 1.
TensorView Gathered(Memory& memory, const TensorView& of, const Rows& rows, Strides strides) {
  const TensorView x = memory.New(of.dtype(), {std::ssize(rows.of), of.dim(2)}, strides);
  ForEach(x.layout, [&](const Index& i) {
    const auto [sequence, position] = rows.of[static_cast<size_t>(i[0])];
    Set(x, i, sequence < 0 ? 1 : Get(of, sequence, position, i[1]));
  });
  return x;
}

// Elements of `got` [R,n] that are not those of `whole` [S,T,n]; nobody's are to be 0.
int64_t Others(const TensorView& got, const TensorView& whole, const Rows& rows) {
  int64_t others = 0;
  ForEach(got.layout, [&](const Index& i) {
    const auto [sequence, position] = rows.of[static_cast<size_t>(i[0])];
    others += Get(got, i) != (sequence < 0 ? 0 : Get(whole, sequence, position, i[1]));
  });
  return others;
}

TensorView Cleared(Memory& memory, DType dtype, std::initializer_list<int64_t> dims) {
  const TensorView view = memory.New(dtype, dims);
  ForEach(view.layout, [&](const Index& i) { Set(view, i, 0); });
  return view;
}

}  // namespace

void MambaConvRowsContract(const Subject& subject) {
  Random random(95);
  for (int repeat = 0; repeat < 25; ++repeat) {
    Memory memory;
    const Case c = PickCase(random);
    MambaConvOp<TensorView> whole{};
    whole.dt_min = 0.05f, whole.dt_max = Flip(random) ? 0.8f : 100.0f;
    whole.x = memory.NewRandom(random, c.dtype, {c.sequences, c.length, c.width()});
    whole.dt_raw = memory.NewRandom(random, c.dtype, {c.sequences, c.length, c.heads});
    whole.weight = memory.NewRandom(random, PickFloat(random), {c.width(), c.taps});
    whole.bias = memory.NewRandom(random, PickFloat(random), {c.width()});
    whole.dt_bias = memory.NewRandom(random, PickFloat(random), {c.heads});
    whole.out = memory.New(c.dtype, {c.sequences, c.length, c.width()});
    whole.dt = memory.New(DType::kF32, {c.sequences, c.length, c.heads});
    Run(subject, memory, subject.table.mamba_conv, whole);
    MambaConvRowsOp<TensorView> op{};
    op.dt_min = whole.dt_min, op.dt_max = whole.dt_max;
    op.weight = whole.weight, op.bias = whole.bias, op.dt_bias = whole.dt_bias;
    op.inputs = memory.New(c.dtype, {c.sequences + 1, c.taps, c.width()});
    std::vector<int64_t> done(static_cast<size_t>(c.sequences));
    for (int step = 0; step < 4; ++step) {
      const Rows rows = NextRows(memory, random, c, done);
      if (rows.of.empty()) continue;
      op.at = rows.at, op.slots = rows.slots;
      op.x = Gathered(memory, whole.x, rows, PickRowStrides(random));
      op.dt_raw = Gathered(memory, whole.dt_raw, rows, PickRowStrides(random));
      op.out = memory.New(c.dtype, {std::ssize(rows.of), c.width()});
      op.dt = memory.New(DType::kF32, {std::ssize(rows.of), c.heads});
      Run(subject, memory, subject.table.mamba_conv_rows, op);
      if (subject.backend == Backend::kCpu) {
        CHECK(Others(op.out, whole.out, rows) == 0);
        CHECK(Others(op.dt, whole.dt, rows) == 0);
        continue;
      }
      // Both are sums of taps + 1 terms of at most 1, and a logistic function of them.
      Reference out, dt;
      const auto near = [&](const TensorView& of, double bound, Reference& reference) {
        return [&, bound](const Index& i) {
          const auto [sequence, position] = rows.of[static_cast<size_t>(i[0])];
          const double value = sequence < 0 ? 0 : Get(of, sequence, position, i[1]);
          const double stored = of.dtype() == DType::kBF16 ? 0x1p-8 * std::abs(value) : 0;
          reference.push_back({value, sequence < 0 ? 0 : bound + stored});
        };
      };
      const auto terms = static_cast<double>(c.taps + 1);
      ForEach(op.out.layout, near(whole.out, (terms * terms + 16) * terms * kU, out));
      ForEach(op.dt.layout, near(whole.dt, 16 * kU, dt));
      CheckNear(op.out, out, "convolved rows");
      CheckNear(op.dt, dt, "steps of rows");
    }
  }
}

void SsdScanRowsContract(const Subject& subject) {
  Random random(96);
  for (int repeat = 0; repeat < 25; ++repeat) {
    Memory memory;
    const Case c = PickCase(random);
    const TensorView xbc = memory.NewRandom(random, c.dtype, {c.sequences, c.length, c.width()});
    const auto columns = [&](int64_t first, int64_t heads, int64_t each) {
      TensorView view = xbc;
      view.data += first * Bytes(c.dtype);
      view.layout = DenseLayout(c.dtype, {c.sequences, c.length, heads, each});
      view.layout.strides = {xbc.stride(0), xbc.stride(1), each, 1};
      return view;
    };
    SsdScanOp<TensorView> whole{};
    whole.chunk = c.chunk;
    whole.x = columns(0, c.heads, c.channels);
    whole.b = columns(c.inner(), c.groups, c.states);
    whole.c = columns(c.inner() + c.groups * c.states, c.groups, c.states);
    whole.dt = memory.NewRandom(random, DType::kF32, {c.sequences, c.length, c.heads},
                                Strides::kDense, 0.5);
    ForEach(whole.dt.layout, [&](const Index& i) { Set(whole.dt, i, std::abs(Get(whole.dt, i))); });
    whole.a_log = memory.NewRandom(random, PickFloat(random), {c.heads}, Strides::kDense, 1.3);
    whole.d = memory.NewRandom(random, PickFloat(random), {c.heads});
    const TensorView out = memory.New(c.dtype, {c.sequences, c.length, c.inner()});
    whole.out = out;
    whole.out.layout = DenseLayout(c.dtype, {c.sequences, c.length, c.heads, c.channels});
    Run(subject, memory, subject.table.ssd_scan, whole);

    SsdScanRowsOp<TensorView> op{};
    op.groups = c.groups, op.states = c.states, op.chunk = c.chunk, op.length = c.length;
    op.a_log = whole.a_log, op.d = whole.d;
    const int64_t slots = c.sequences + 1;
    op.state = memory.New(DType::kF32, {slots, c.heads, c.channels, c.states});
    op.rows = Cleared(memory, c.dtype, {slots, c.chunk, c.width()});
    op.steps = Cleared(memory, DType::kF32, {slots, c.chunk, c.heads});
    std::vector<int64_t> done(static_cast<size_t>(c.sequences));
    for (int step = 0; step < 4; ++step) {
      const Rows rows = NextRows(memory, random, c, done);
      if (rows.of.empty()) continue;
      op.at = rows.at, op.slots = rows.slots;
      op.xbc = Gathered(memory, xbc, rows, PickRowStrides(random));
      op.dt = Gathered(memory, whole.dt, rows, Strides::kDense);
      op.out = memory.New(c.dtype, {std::ssize(rows.of), c.inner()});
      Run(subject, memory, subject.table.ssd_scan_rows, op);
      if (subject.backend == Backend::kCpu) {
        CHECK(Others(op.out, out, rows) == 0);
        continue;
      }
      const auto values = [](const TensorView& view) {
        std::vector<double> all;
        ForEach(view.layout, [&](const Index& i) { all.push_back(Get(view, i)); });
        return all;
      };
      SsdProblem problem{.batch = c.sequences,
                         .length = c.length,
                         .heads = c.heads,
                         .channels = c.channels,
                         .groups = c.groups,
                         .states = c.states};
      problem.x = values(whole.x), problem.b = values(whole.b), problem.c = values(whole.c);
      problem.dt = values(whole.dt), problem.a_log = values(whole.a_log);
      problem.d = values(whole.d);
      problem.d_out.assign(problem.x.size(), 0);
      const SsdReference reference = SsdByRecurrence(problem);
      const auto terms = static_cast<double>(c.length + c.channels + c.states + c.heads);
      const double relative = (terms + 4 * reference.longest_decay + 32) * kU;
      Reference expected;
      ForEach(op.out.layout, [&](const Index& i) {
        const auto [sequence, position] = rows.of[static_cast<size_t>(i[0])];
        if (sequence < 0) return expected.push_back({});
        const Tracked& t =
            reference.out[static_cast<size_t>((sequence * c.length + position) * c.inner() + i[1])];
        expected.push_back({t.value, relative * t.magnitude});
      });
      CheckNear(op.out, expected, "scanned rows");
    }
  }
}

}  // namespace millrace::test
