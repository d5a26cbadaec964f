// comm/nccl: what its sums are, against the host implementation and against bounds.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "comm/host_collectives.h"
#include "runtime/base/cpu/host_device.h"
#include "tests/comm/nccl/gpu_case.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

enum class Kind { kReduceScatter, kAllReduce };

double ToDouble(float value) { return value; }
double ToDouble(double value) { return value; }
double ToDouble(BFloat16 value) { return ToFloat(value); }
double ToDouble(Float16 value) { return ToFloat(value); }

constexpr int64_t kMost = int64_t{1} << 20;  // elements of a shard

// One communicator for the sums of a case.
class DeviceSums {
 public:
  explicit DeviceSums(GpuRank& rank)
      : rank_(rank),
        comm_(rank.nccl.Make(rank.Everyone(), "world")),
        arena_(rank, {comm_.get()}, (rank.world() + 1) * kMost * 8 + 4096),
        stream_(rank.device.MakeStream(StreamRole::kCollectives)) {}

  GpuRank& rank() const { return rank_; }

  // The operand of this rank is value(i) for i in [0, world * n); returns its shard
  // of the sum, or the whole.
  template <typename T, typename Value>
  std::vector<T> Sum(Kind kind, int64_t n, Value value) {
    arena_.Reset();
    const TensorView full = arena_.Take(DTypeOf<T>(), rank_.world() * n);
    const TensorView shard = arena_.Take(DTypeOf<T>(), n);
    std::vector<T> operand(static_cast<size_t>(full.numel()));
    for (int64_t i = 0; i < full.numel(); ++i) operand[i] = value(i);
    ToDevice(rank_, operand, full, *stream_);
    if (kind == Kind::kAllReduce) {
      comm_->AllReduceSum(full, {}, *stream_);
      return ToHost<T>(rank_, full, *stream_);
    }
    comm_->ReduceScatterSum(full, shard, {}, *stream_);
    return ToHost<T>(rank_, shard, *stream_);
  }

 private:
  GpuRank& rank_;
  const std::unique_ptr<Communicator> comm_;
  TestArena arena_;
  const std::unique_ptr<Stream> stream_;
};

template <typename T, typename Value>
std::vector<T> HostSum(GpuRank& rank, Kind kind, int64_t n, Value value) {
  const auto comm = rank.host.Make(rank.Everyone(), "world");
  std::vector<T> full(static_cast<size_t>(rank.world() * n)), shard(static_cast<size_t>(n));
  for (int64_t i = 0; i < rank.world() * n; ++i) full[i] = value(i);
  std::vector<double> scratch(static_cast<size_t>(ScratchBytes(rank.world()) / 8));
  const TensorView scratch_view = scratch.empty() ? TensorView{} : View(scratch);
  const auto stream = MakeHostDevice()->MakeStream(StreamRole::kCompute);
  if (kind == Kind::kAllReduce) {
    comm->AllReduceSum(View(full), scratch_view, *stream);
    return full;
  }
  comm->ReduceScatterSum(View(full), View(shard), scratch_view, *stream);
  return shard;
}

template <typename T>
void SameAsHost(DeviceSums& sums, bool windows) {
  GpuRank& rank = sums.rank();
  const auto whole = [&](int64_t i) { return WholeAs<T>(Whole(rank.rank(), i)); };
  // Slices between windows are whole words.
  const int64_t word = windows && sizeof(T) < 4 ? 4 / static_cast<int64_t>(sizeof(T)) : 1;
  for (const int64_t n : {word, word * 1021, kMost})
    for (const Kind kind : {Kind::kReduceScatter, Kind::kAllReduce}) {
      const std::vector<T> device = sums.Sum<T>(kind, n, whole),
                           host = HostSum<T>(rank, kind, n, whole);
      int64_t different = 0;
      for (size_t i = 0; i < host.size(); ++i) different += !SameBits(device[i], host[i]);
      rank.report.Expect(different == 0,
                         "{}, n {}, kind {}: {} of {} elements differ from the host's",
                         Name(DTypeOf<T>()), n, static_cast<int>(kind), different, host.size());
    }
}

TEST_CASE("sums of whole numbers are the host implementation's, bit for bit", "[comm][gpu]") {
  for (const NcclOptions& options : PlainAndSymmetric())
    OnGpuRanks(options, [&options](GpuRank& rank) {
      DeviceSums sums(rank);
      SameAsHost<float>(sums, options.symmetric);
      SameAsHost<BFloat16>(sums, options.symmetric);
      SameAsHost<Float16>(sums, options.symmetric);
      SameAsHost<double>(sums, options.symmetric);
    });
}

// Unit roundoff u of a dtype, 2^-p with p bits in the significand.
template <typename T>
constexpr double kRoundoff = 0;
template <>
constexpr double kRoundoff<float> = 0x1p-24;
template <>
constexpr double kRoundoff<double> = 0x1p-53;
template <>
constexpr double kRoundoff<BFloat16> = 0x1p-8;
template <>
constexpr double kRoundoff<Float16> = 0x1p-11;

struct Excess {
  double sequential = 0;  // largest error over the bound for any order of additions in the dtype
  double once = 0;        // over the bound for f32 accumulation and one rounding to the dtype
};

// Summing W terms x_r in any order, each addition rounded with roundoff u, errs by at most
// (W-1) u / (1 - (W-1) u) * sum |x_r| (Higham, Accuracy and Stability of Numerical Algorithms,
// 4.2). Accumulated in f32 and rounded once it errs by at most u |S| + (1 + u) times that bound
// with f32's roundoff.
template <typename T>
Excess ExcessOf(DeviceSums& device, Kind kind) {
  GpuRank& rank = device.rank();
  const int64_t n = 100'006;  // slices are words, but not pairs of them
  const int world = rank.world();
  const std::vector<T> sums =
      device.Sum<T>(kind, n, [&](int64_t i) { return TermAs<T>(rank.rank(), i); });
  const auto gamma = [&](double u) { return (world - 1) * u / (1 - (world - 1) * u); };
  const int64_t first = kind == Kind::kReduceScatter ? rank.rank() * n : 0;
  Excess excess;
  for (int64_t i = 0; i < static_cast<int64_t>(sums.size()); ++i) {
    long double exact = 0, magnitude = 0;
    for (int r = 0; r < world; ++r) {
      const long double term = ToDouble(TermAs<T>(r, first + i));
      exact += term;
      magnitude += std::fabs(term);
    }
    const double error = static_cast<double>(std::fabs(ToDouble(sums[i]) - exact));
    const double any_order = gamma(kRoundoff<T>) * static_cast<double>(magnitude) * (1 + 1e-6);
    const double rounded_once =
        (kRoundoff<T> * static_cast<double>(std::fabs(exact)) +
         (1 + kRoundoff<T>)*gamma(0x1p-24) * static_cast<double>(magnitude)) *
        (1 + 1e-6);
    if (error > 0) {
      excess.sequential = std::max(excess.sequential, error / any_order);
      excess.once = std::max(excess.once, error / rounded_once);
    }
  }
  return excess;
}

template <typename T>
void WithinBound(DeviceSums& sums) {
  GpuRank& rank = sums.rank();
  for (const Kind kind : {Kind::kReduceScatter, Kind::kAllReduce}) {
    const Excess excess = ExcessOf<T>(sums, kind);
    rank.report.Expect(excess.sequential <= 1, "{}, kind {}: an error is {} times the bound",
                       Name(DTypeOf<T>()), static_cast<int>(kind), excess.sequential);
    // Terms of 24 binades round in nearly every sum; no error at all would mean that nothing was
    // added.
    rank.report.Expect(rank.world() == 1 || excess.sequential > 0,
                       "{}, kind {}: no rounding at all", Name(DTypeOf<T>()),
                       static_cast<int>(kind));
  }
}

TEST_CASE("sums of arbitrary numbers lie within the bound for additions in any order",
          "[comm][gpu]") {
  for (const NcclOptions& options : PlainAndSymmetric())
    OnGpuRanks(options, [](GpuRank& rank) {
      DeviceSums sums(rank);
      WithinBound<float>(sums);
      WithinBound<BFloat16>(sums);
      WithinBound<Float16>(sums);
      WithinBound<double>(sums);
    });
}

// Also shows that windows are used: from three ranks on, staged bf16 sums break this bound, as the
// next case proves.
TEST_CASE("16 bits between windows are accumulated in f32 and rounded once", "[comm][gpu]") {
  OnGpuRanks(PlainAndSymmetric().back(), [](GpuRank& rank) {
    DeviceSums sums(rank);
    for (const Kind kind : {Kind::kReduceScatter, Kind::kAllReduce})
      for (const Excess& excess : {ExcessOf<BFloat16>(sums, kind), ExcessOf<Float16>(sums, kind)})
        rank.report.Expect(excess.once <= 1, "kind {}: an error is {} times the bound",
                           static_cast<int>(kind), excess.once);
  });
}

TEST_CASE("bf16 without windows is rounded at each addition", "[comm][gpu]") {
  OnGpuRanks(PlainAndSymmetric().front(), [](GpuRank& rank) {
    DeviceSums sums(rank);
    const Excess excess = ExcessOf<BFloat16>(sums, Kind::kReduceScatter);
    const bool rounds_more = excess.once > 1;
    rank.report.Expect(rounds_more == (rank.world() > 2),
                       "world {}: an error is {} times the bound of one rounding", rank.world(),
                       excess.once);
  });
}

TEST_CASE("an all-reduce leaves the same bits on every rank", "[comm][gpu]") {
  for (const NcclOptions& options : PlainAndSymmetric())
    OnGpuRanks(options, [](GpuRank& rank) {
      DeviceSums device(rank);
      const auto meet = rank.host.Make(rank.Everyone(), "compare");
      for (const int64_t n : {1, 3, 1021, 100'003}) {
        const std::vector<float> sums = device.Sum<float>(
            Kind::kAllReduce, n, [&](int64_t i) { return TermAs<float>(rank.rank(), i); });
        const std::string bytes(reinterpret_cast<const char*>(sums.data()),
                                sums.size() * sizeof(float));
        for (const std::string& other : meet->HostAllGather(bytes))
          rank.report.Expect(other == bytes, "n {}: the sums of two ranks differ", n);
      }
    });
}

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) { return millrace::testing::GpuTestMain(argc, argv); }
