#include "tests/comm/communicator_contract.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm/host_collectives.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "tests/comm/rank_data.h"

namespace millrace::testing {
namespace {

// 0, 1, odd, prime, one chunk of f32 and its neighbours, several chunks.
constexpr int64_t kSizes[] = {0, 1, 3, 127, 255, 256, 257, 1000, 2053};

// What a call needs besides its operands.
struct Bench {
  explicit Bench(int world, int64_t chunk_bytes = kContractChunkBytes)
      : stream(MakeHostDevice()->MakeStream(StreamRole::kCompute)),
        scratch_data(static_cast<size_t>(ScratchBytes(world, chunk_bytes)) / sizeof(double)),
        scratch(scratch_data.empty() ? TensorView{} : View(scratch_data)) {}
  std::unique_ptr<Stream> stream;
  std::vector<double> scratch_data;
  TensorView scratch;
};

template <typename T>
std::vector<T> Patterns(int rank, int64_t n) {
  std::vector<T> data(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) data[i] = Pattern<T>(rank, i);
  return data;
}

template <typename T>
std::vector<T> Terms(int rank, int64_t n) {
  std::vector<T> data(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) data[i] = TermAs<T>(rank, i);
  return data;
}

template <typename T>
void ExpectGathered(const std::vector<T>& full, int world, int64_t n, Report& report) {
  for (int r = 0; r < world; ++r)
    for (int64_t i = 0; i < n; ++i)
      report.Expect(SameBits(full[r * n + i], Pattern<T>(r, i)),
                    "{} of world {}, n {}: element {} of rank {} is wrong", Name(DTypeOf<T>()),
                    world, n, i, r);
}

template <typename T>
void GatherOne(Communicator& comm, Report& report) {
  const int world = comm.world_size(), rank = comm.rank();
  Bench bench(world);
  for (const int64_t n : kSizes) {
    std::vector<T> shard = Patterns<T>(rank, n);
    std::vector<T> full(static_cast<size_t>(world * n), Pattern<T>(99, 0));
    comm.AllGather(View(shard), View(full), {}, *bench.stream);
    ExpectGathered(full, world, n, report);

    std::fill(full.begin(), full.end(), Pattern<T>(99, 1));
    std::copy(shard.begin(), shard.end(), full.begin() + rank * n);
    comm.AllGather(View(full, rank * n, n), View(full), {}, *bench.stream);
    ExpectGathered(full, world, n, report);
    report.Expect(true, "a world of no elements has nothing to compare");
  }
}

void Gather(Communicator& comm, Report& report) {
  GatherOne<float>(comm, report);
  GatherOne<BFloat16>(comm, report);
  GatherOne<double>(comm, report);
  GatherOne<int32_t>(comm, report);
  GatherOne<int64_t>(comm, report);
  GatherOne<uint8_t>(comm, report);
}

template <typename T>
void ReduceScatterOne(Communicator& comm, Report& report) {
  const int world = comm.world_size(), rank = comm.rank();
  Bench bench(world);
  for (const int64_t n : kSizes) {
    std::vector<T> full = Terms<T>(rank, world * n);
    const std::vector<T> before = full;
    // A guard element on each side of the shard.
    std::vector<T> out(static_cast<size_t>(n + 2), Pattern<T>(rank, -1));
    comm.ReduceScatterSum(View(full), View(out, 1, n), bench.scratch, *bench.stream);
    for (int64_t i = 0; i < n; ++i)
      report.Expect(SameBits(out[1 + i], RankOrderOracle<T>(world, rank * n + i)),
                    "{} of world {}, n {}: element {} of rank {}'s sum is wrong",
                    Name(DTypeOf<T>()), world, n, i, rank);
    report.Expect(
        SameBits(out.front(), Pattern<T>(rank, -1)) && SameBits(out.back(), Pattern<T>(rank, -1)),
        "n {}: written outside the shard", n);
    report.Expect(std::equal(full.begin(), full.end(), before.begin(), SameBits<T>),
                  "n {}: full was changed", n);
  }
}

void ReduceScatter(Communicator& comm, Report& report) {
  ReduceScatterOne<float>(comm, report);
  ReduceScatterOne<BFloat16>(comm, report);
  ReduceScatterOne<Float16>(comm, report);
  ReduceScatterOne<double>(comm, report);
}

template <typename T>
void AllReduceOne(Communicator& comm, Report& report) {
  const int world = comm.world_size(), rank = comm.rank();
  Bench bench(world);
  std::vector<int64_t> sizes(std::begin(kSizes), std::end(kSizes));
  for (const int64_t n : {2 * world - 1, 2 * world, 2 * world + 1, 5 * world}) sizes.push_back(n);
  for (const int64_t n : sizes) {
    std::vector<T> buffer = Terms<T>(rank, n + 2);
    comm.AllReduceSum(View(buffer, 1, n), bench.scratch, *bench.stream);
    for (int64_t i = 0; i < n; ++i)
      report.Expect(SameBits(buffer[1 + i], RankOrderOracle<T>(world, 1 + i)),
                    "{} of world {}, n {}: element {} of the sum is wrong on rank {}",
                    Name(DTypeOf<T>()), world, n, i, rank);
    report.Expect(SameBits(buffer.front(), TermAs<T>(rank, 0)) &&
                      SameBits(buffer.back(), TermAs<T>(rank, n + 1)),
                  "n {}: written outside the buffer", n);
  }
}

void AllReduce(Communicator& comm, Report& report) {
  AllReduceOne<float>(comm, report);
  AllReduceOne<BFloat16>(comm, report);
  AllReduceOne<Float16>(comm, report);
  AllReduceOne<double>(comm, report);
}

template <typename T>
void AllToAllOne(Communicator& comm, Report& report) {
  const int world = comm.world_size(), rank = comm.rank();
  Bench bench(world);
  for (const int64_t n : kSizes) {
    std::vector<T> sent(static_cast<size_t>(world * n));
    for (int64_t i = 0; i < world * n; ++i) sent[i] = Pattern<T>(rank, i);
    const std::vector<T> before = sent;
    std::vector<T> received(static_cast<size_t>(world * n + 2), Pattern<T>(rank, -1));
    comm.AllToAll(View(sent), View(received, 1, world * n), {}, *bench.stream);
    for (int64_t i = 0; i < world * n; ++i)
      report.Expect(
          SameBits(received[1 + i], Pattern<T>(static_cast<int>(i / n), rank * n + i % n)),
          "{} of world {}, n {}: element {} of what rank {} receives is wrong", Name(DTypeOf<T>()),
          world, n, i, rank);
    report.Expect(SameBits(received.front(), Pattern<T>(rank, -1)) &&
                      SameBits(received.back(), Pattern<T>(rank, -1)),
                  "n {}: written outside what is received", n);
    report.Expect(std::equal(sent.begin(), sent.end(), before.begin(), SameBits<T>),
                  "n {}: what is sent was changed", n);
  }
}

void AllToAll(Communicator& comm, Report& report) {
  AllToAllOne<float>(comm, report);
  AllToAllOne<BFloat16>(comm, report);
  AllToAllOne<int32_t>(comm, report);
}

template <typename T>
std::vector<T> Wholes(int rank, int64_t n) {
  std::vector<T> data(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) data[i] = WholeAs<T>(Whole(rank, i));
  return data;
}

template <typename T>
void WholeSumsOne(Communicator& comm, Report& report) {
  const int world = comm.world_size(), rank = comm.rank();
  Bench bench(world);
  for (const int64_t n : kSizes) {
    std::vector<T> full = Wholes<T>(rank, world * n);
    const std::vector<T> before = full;
    std::vector<T> out(static_cast<size_t>(n + 2), Pattern<T>(rank, -1));
    comm.ReduceScatterSum(View(full), View(out, 1, n), bench.scratch, *bench.stream);
    for (int64_t i = 0; i < n; ++i)
      report.Expect(SameBits(out[1 + i], WholeAs<T>(WholeSum(world, rank * n + i))),
                    "{} of world {}, n {}: element {} of rank {}'s sum is wrong",
                    Name(DTypeOf<T>()), world, n, i, rank);
    report.Expect(
        SameBits(out.front(), Pattern<T>(rank, -1)) && SameBits(out.back(), Pattern<T>(rank, -1)),
        "n {}: written outside the shard", n);
    report.Expect(std::equal(full.begin(), full.end(), before.begin(), SameBits<T>),
                  "n {}: full was changed", n);

    std::vector<T> buffer = Wholes<T>(rank, n + 2);
    comm.AllReduceSum(View(buffer, 1, n), bench.scratch, *bench.stream);
    for (int64_t i = 0; i < n; ++i)
      report.Expect(SameBits(buffer[1 + i], WholeAs<T>(WholeSum(world, 1 + i))),
                    "{} of world {}, n {}: element {} of the sum over all is wrong",
                    Name(DTypeOf<T>()), world, n, i);
    report.Expect(SameBits(buffer.front(), WholeAs<T>(Whole(rank, 0))) &&
                      SameBits(buffer.back(), WholeAs<T>(Whole(rank, n + 1))),
                  "n {}: written outside the buffer", n);
  }
}

void WholeSums(Communicator& comm, Report& report) {
  WholeSumsOne<float>(comm, report);
  WholeSumsOne<BFloat16>(comm, report);
  WholeSumsOne<Float16>(comm, report);
  WholeSumsOne<double>(comm, report);
}

// A communicator that runs ahead, or mixes up two calls, shows here: calls of changing kind and
// size with ranks out of step. `values` gives the operands: of numbers whose sum depends on the
// order where the order is promised.
template <std::vector<float> (*values)(int rank, int64_t n)>
void Mixture(Communicator& comm, Report& report) {
  const int world = comm.world_size(), rank = comm.rank();
  Bench bench(world);
  for (int round = 0; round < 60; ++round) {
    const int64_t n = static_cast<int64_t>(Mixed(0, round) % 300);
    if ((Mixed(rank, round) & 7) == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
    std::vector<float> full = values(rank, world * n), shard(static_cast<size_t>(n));
    comm.ReduceScatterSum(View(full), View(shard), bench.scratch, *bench.stream);
    std::vector<float> gathered(static_cast<size_t>(world * n));
    comm.AllGather(View(shard), View(gathered), {}, *bench.stream);
    comm.AllReduceSum(View(full), bench.scratch, *bench.stream);
    bool all_equal = true;
    for (int64_t i = 0; i < world * n; ++i) all_equal = all_equal && SameBits(gathered[i], full[i]);
    report.Expect(all_equal, "round {}, n {}: reduce-scatter and all-gather differ from all-reduce",
                  round, n);
    const std::string said =
        comm.HostBroadcast(fmt::format("rank {} round {}", rank, round), round % world);
    report.Expect(said == fmt::format("rank {} round {}", round % world, round),
                  "round {}: heard '{}'", round, said);
  }
}

// Calls `fn`, which must throw kInvalidArgument with all of `parts` in its text.
template <typename Fn>
void ExpectRefused(Report& report, const char* what, const std::vector<std::string>& parts, Fn fn) {
  try {
    fn();
    report.Expect(false, "{}: accepted", what);
  } catch (const Error& error) {
    const std::string text = error.what();
    report.Expect(error.code() == ErrorCode::kInvalidArgument, "{}: code {}", what,
                  Name(error.code()));
    for (const std::string& part : parts)
      report.Expect(text.find(part) != std::string::npos, "{}: '{}' is not in '{}'", what, part,
                    text);
  }
}

void WrongArguments(Communicator& comm, Report& report) {
  const int world = comm.world_size(), rank = comm.rank();
  Bench bench(world);
  Stream& stream = *bench.stream;
  const CommCounters before = comm.counters();
  std::vector<float> full = Terms<float>(rank, world * 40 + 40), shard = Terms<float>(rank, 40);
  std::vector<double> wide(40);
  std::vector<int32_t> integers(static_cast<size_t>(world * 40)), integer_shard(40);
  const std::string sizes[] = {std::to_string(world * 40 + 1), std::to_string(world * 40),
                               "'world'"};

  ExpectRefused(report, "gather into one too many", {sizes[0], sizes[1], sizes[2], "all_gather"},
                [&] { comm.AllGather(View(shard), View(full, 0, world * 40 + 1), {}, stream); });
  ExpectRefused(
      report, "reduce from one too many", {sizes[0], sizes[1], sizes[2], "reduce_scatter"}, [&] {
        comm.ReduceScatterSum(View(full, 0, world * 40 + 1), View(shard), bench.scratch, stream);
      });
  ExpectRefused(report, "two dtypes", {"f64", "f32", "'world'"},
                [&] { comm.AllGather(View(wide), View(full, 0, world * 40), {}, stream); });
  ExpectRefused(report, "sum of integers", {"i32", "bf16", "'world'"}, [&] {
    comm.ReduceScatterSum(View(integers), View(integer_shard), bench.scratch, stream);
  });
  ExpectRefused(report, "sum of integers", {"i32", "'world'"},
                [&] { comm.AllReduceSum(View(integers), bench.scratch, stream); });
  ExpectRefused(
      report, "shard one element after its place", {"overlaps", "'world'", "shard", "full"}, [&] {
        comm.AllGather(View(full, rank * 40 + 1, 40), View(full, 0, world * 40), {}, stream);
      });
  ExpectRefused(report, "reduce in place", {"overlaps", "'world'"}, [&] {
    comm.ReduceScatterSum(View(full, 0, world * 40), View(full, rank * 40, 40), bench.scratch,
                          stream);
  });
  TensorView strided = View(shard, 0, 20);
  strided.layout.strides[0] = 2;
  ExpectRefused(report, "strided view", {"contiguous", "'world'"},
                [&] { comm.AllReduceSum(strided, bench.scratch, stream); });
  ExpectRefused(report, "no address", {"without an address"}, [&] {
    comm.AllReduceSum(TensorView{nullptr, DenseLayout(DType::kF32, {3})}, bench.scratch, stream);
  });
  ExpectRefused(report, "a root outside", {std::to_string(world), "'world'"},
                [&] { comm.HostBroadcast("x", world); });
  std::vector<std::byte> bytes(7);
  std::vector<SendPiece> sends(static_cast<size_t>(world));
  std::vector<RecvPiece> recvs(sends.size() + 1);
  ExpectRefused(report, "a piece too many", {std::to_string(world + 1), "'world'"},
                [&] { comm.HostAllToAll(sends, recvs); });
  recvs.pop_back();
  sends[static_cast<size_t>(rank)] = {bytes.data(), 7};
  ExpectRefused(report, "a piece for itself that it does not expect", {"7 bytes", "expects 0"},
                [&] { comm.HostAllToAll(sends, recvs); });
  ExpectRefused(report, "a negative root", {"-1"}, [&] { comm.HostBroadcast("x", -1); });
  // Nothing moved, nothing counted, and the group still works.
  report.Expect(comm.counters() == before, "refused calls were counted");
  bool untouched = true;
  for (int64_t i = 0; i < world * 40; ++i)
    untouched = untouched && SameBits(full[i], TermAs<float>(rank, i));
  report.Expect(untouched, "a refused call changed full");
  std::vector<float> wholes = Wholes<float>(rank, 40);
  comm.AllReduceSum(View(wholes), bench.scratch, stream);
  report.Expect(wholes[7] == static_cast<float>(WholeSum(world, 7)),
                "a sum after refused calls is wrong");
}

void WrongScratch(Communicator& comm, Report& report) {
  const int world = comm.world_size(), rank = comm.rank();
  Bench bench(world);
  Stream& stream = *bench.stream;
  const CommCounters before = comm.counters();
  std::vector<float> full = Terms<float>(rank, world * 40), shard = Terms<float>(rank, 40);
  if (world > 1) {
    const int64_t needed = ScratchBytes(world, kContractChunkBytes);
    ExpectRefused(report, "no scratch", {"0 bytes", std::to_string(needed), "'world'"},
                  [&] { comm.AllReduceSum(View(shard), {}, stream); });
    ExpectRefused(report, "short scratch", {std::to_string(needed - 8), std::to_string(needed)},
                  [&] {
                    comm.ReduceScatterSum(View(full, 0, world * 40), View(shard),
                                          View(bench.scratch_data, 0, needed / 8 - 1), stream);
                  });
    ExpectRefused(report, "scratch over the operand", {"scratch", "overlaps"}, [&] {
      comm.AllReduceSum(View(bench.scratch_data, 3, 5), bench.scratch, stream);
    });
  }
  report.Expect(comm.counters() == before, "refused calls were counted");
  comm.AllReduceSum(View(shard), bench.scratch, stream);
  report.Expect(SameBits(shard[7], RankOrderOracle<float>(world, 7)),
                "a sum after refused calls is wrong");
}

std::string Payload(int rank) {
  // Rank 0 sends nothing; the others bytes of all values, unequal in number and more than a chunk.
  std::string payload(static_cast<size_t>(rank * 1777), '\0');
  for (size_t i = 0; i < payload.size(); ++i)
    payload[i] = static_cast<char>(Mixed(rank, static_cast<int64_t>(i)));
  return payload;
}

void HostHelpers(Communicator& comm, Report& report) {
  const int world = comm.world_size(), rank = comm.rank();
  const std::vector<std::string> all = comm.HostAllGather(Payload(rank));
  report.Expect(static_cast<int>(all.size()) == world, "{} payloads of {}", all.size(), world);
  for (int r = 0; r < world; ++r)
    report.Expect(all[r] == Payload(r), "payload of rank {} is wrong", r);
  for (const std::string& empty : comm.HostAllGather(""))
    report.Expect(empty.empty(), "an empty payload came back longer");
  for (int root = 0; root < world; ++root)
    report.Expect(comm.HostBroadcast(Payload(rank), root) == Payload(root),
                  "broadcast from rank {} is wrong", root);
}

// Pieces of unequal sizes, between some ranks none; what lies around them stays.
void HostExchange(Communicator& comm, Report& report) {
  const int world = comm.world_size(), rank = comm.rank();
  const auto piece = [](int from, int to, int round) {
    std::string bytes(static_cast<size_t>((from * 5 + to * 3 + round) % 4 * 999), '\0');
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<char>(Mixed(from * 100 + to, static_cast<int64_t>(i) + round));
    return bytes;
  };
  for (int round = 0; round < 5; ++round) {
    std::vector<std::string> sent, received;
    std::vector<SendPiece> sends;
    std::vector<RecvPiece> recvs;
    for (int r = 0; r < world; ++r) {
      sent.push_back(piece(rank, r, round));
      received.emplace_back(piece(r, rank, round).size() + 2, '#');
    }
    for (size_t r = 0; r < sent.size(); ++r) {
      sends.push_back({reinterpret_cast<const std::byte*>(sent[r].data()), std::ssize(sent[r])});
      recvs.push_back(
          {reinterpret_cast<std::byte*>(received[r].data()) + 1, std::ssize(received[r]) - 2});
    }
    comm.HostAllToAll(sends, recvs);
    for (int r = 0; r < world; ++r)
      report.Expect(received[static_cast<size_t>(r)] == "#" + piece(r, rank, round) + "#",
                    "round {}: the piece of rank {} is wrong", round, r);
  }
}

int64_t NowNs() {  // one clock for all threads and processes of the machine
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Terms of many binades, so that nearly all of them round. T: bf16 or f16.
template <typename T>
void GatherRoundsOne(Communicator& comm, Report& report) {
  const std::string name(Name(DTypeOf<T>()));
  const int world = comm.world_size(), rank = comm.rank();
  Bench bench(world);
  const CommCounters before = comm.counters();
  int64_t gathers = 0, bytes = 0, rounded = 0;
  for (const int64_t n : kSizes) {
    std::vector<float> shard = Terms<float>(rank, n);
    std::vector<T> full(static_cast<size_t>(world * n), Pattern<T>(99, 0));
    if (!comm.RoundsInGathers()) {
      ExpectRefused(report, "f32 into 16 bits", {"f32", name, "'world'"},
                    [&] { comm.AllGather(View(shard), View(full), {}, *bench.stream); });
      continue;
    }
    comm.AllGather(View(shard), View(full), {}, *bench.stream);
    ++gathers;
    bytes += (world - 1) * n * 2;
    for (int r = 0; r < world; ++r)
      for (int64_t i = 0; i < n; ++i) {
        const float term = TermAs<float>(r, i);
        rounded += ToFloat(TermAs<T>(r, i)) != term;
        report.Expect(SameBits(full[r * n + i], TermAs<T>(r, i)),
                      "{} of world {}, n {}: element {} of rank {} is wrong", name, world, n, i, r);
      }
  }
  const CommCounters counted = comm.counters() - before;
  report.Expect(counted.all_gathers == gathers && counted.gathered_bytes == bytes,
                "counts {} gathers, {} bytes", counted.all_gathers, counted.gathered_bytes);
  if (!comm.RoundsInGathers()) return;
  report.Expect(rounded > 0, "nothing was rounded");
  std::vector<float> own = Terms<float>(rank, 40), other(static_cast<size_t>(world) * 40);
  std::vector<T> full(static_cast<size_t>(world) * 40), narrow(40);
  ExpectRefused(
      report, "f32 into one too few of 16 bits", {std::to_string(world * 40 - 1), "'world'"},
      [&] { comm.AllGather(View(own), View(full, 0, world * 40 - 1), {}, *bench.stream); });
  report.Expect(std::all_of(full.begin(), full.end(), [](T value) { return SameBits(value, T{}); }),
                "a refused gather changed full");
  ExpectRefused(report, "16 bits into f32", {name, "f32", "'world'"},
                [&] { comm.AllGather(View(narrow), View(other), {}, *bench.stream); });
}

void GatherRounds(Communicator& comm, Report& report) {
  GatherRoundsOne<BFloat16>(comm, report);
  GatherRoundsOne<Float16>(comm, report);
}

void BarrierHolds(Communicator& comm, Report& report) {
  for (int round = 0; round < 3; ++round) {
    if (comm.rank() == round % comm.world_size())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const int64_t came = NowNs();
    comm.Barrier();
    const int64_t left = NowNs();
    int64_t last_came = 0;
    for (const std::string& other : comm.HostAllGather(std::to_string(came)))
      last_came = std::max<int64_t>(last_came, std::stoll(other));
    report.Expect(left >= last_came, "left the barrier {} ns before the last rank came",
                  last_came - left);
  }
}

void Counters(Communicator& comm, Report& report) {
  const int64_t world = comm.world_size();
  Bench bench(comm.world_size());
  Stream& stream = *bench.stream;
  std::vector<BFloat16> halves(static_cast<size_t>(world * 1000)), half_shard(1000);
  std::vector<float> floats(static_cast<size_t>(world * 333)), float_shard(333),
      received(floats.size());
  std::vector<double> doubles(420);  // of which each rank of 1 to 7 has as many
  std::vector<std::byte> bytes(static_cast<size_t>(7 * (world + 1)));
  const CommCounters before = comm.counters();
  comm.AllGather(View(half_shard), View(halves), {}, stream);
  comm.AllGather(View(halves, comm.rank() * 1000, 1000), View(halves), {}, stream);
  comm.AllGather(View(half_shard, 0, 0), View(halves, 0, 0), {}, stream);
  comm.ReduceScatterSum(View(floats), View(float_shard), bench.scratch, stream);
  comm.AllReduceSum(View(doubles), bench.scratch, stream);
  comm.AllReduceSum(View(doubles, 0, 0), bench.scratch, stream);
  comm.AllToAll(View(floats), View(received), {}, stream);
  comm.AllToAll(View(floats, 0, 0), View(received, 0, 0), {}, stream);
  comm.HostAllGather("not counted");
  comm.HostBroadcast("nor this", 0);
  const std::vector<SendPiece> sends(static_cast<size_t>(world), {bytes.data(), 7});
  std::vector<RecvPiece> recvs;
  for (int r = 0; r < world; ++r) recvs.push_back({bytes.data() + 7 * (r + 1), 7});
  comm.HostAllToAll(sends, recvs);
  comm.Barrier();
  const CommCounters expected = {.all_gathers = 3,
                                 .reduce_scatters = 1,
                                 .all_reduces = 2,
                                 .gathered_bytes = (world - 1) * 4000,
                                 .reduced_bytes = (world - 1) * 1332,
                                 .all_reduced_bytes = 2 * (world - 1) * 3360 / world,
                                 .all_to_alls = 2,
                                 .exchanged_bytes = (world - 1) * 1332};
  const CommCounters got = comm.counters() - before;
  report.Expect(got == expected, "counts {} {} {} {}, bytes {} {} {} {}", got.all_gathers,
                got.reduce_scatters, got.all_reduces, got.all_to_alls, got.gathered_bytes,
                got.reduced_bytes, got.all_reduced_bytes, got.exchanged_bytes);
}

// By hand: 17 doubles in slices of 17; 9, 8; 6, 6, 5; 5, 5, 5, 2; 4, 4, 4, 4, 1; 3, 3, 3, 3, 3, 2;
// 3, 3, 3, 3, 3, 2, 0. On two ranks each sends all of them; else the 17 less its own slice, and
// then that slice's sums to everybody. Of one double each sends it to everybody.
void UnevenAllReduce(Communicator& comm, Report& report) {
  constexpr int64_t kSent[8][7] = {{},
                                   {0},
                                   {17, 17},
                                   {23, 23, 22},
                                   {27, 27, 27, 21},
                                   {29, 29, 29, 29, 20},
                                   {29, 29, 29, 29, 29, 25},
                                   {32, 32, 32, 32, 32, 27, 17}};
  const int world = comm.world_size(), rank = comm.rank();
  Bench bench(world);
  std::vector<double> doubles(17);
  const auto sent = [&](int64_t numel) {
    const int64_t before = comm.counters().all_reduced_bytes;
    comm.AllReduceSum(View(doubles, 0, numel), bench.scratch, *bench.stream);
    return comm.counters().all_reduced_bytes - before;
  };
  const int64_t many = sent(17), one = sent(1);
  report.Expect(many == 8 * kSent[world][rank], "17 doubles: {} bytes, not {}", many,
                8 * kSent[world][rank]);
  report.Expect(one == 8 * (world - 1), "one double: {} bytes", one);
}

template <typename T>
void Absorb(const std::vector<T>& data, uint64_t& hash) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
  for (size_t i = 0; i < data.size() * sizeof(T); ++i)
    hash = (hash ^ bytes[i]) * 0x100000001b3ull;  // FNV-1a
}

template <typename T>
void DigestOf(Communicator& comm, Bench& bench, uint64_t& hash) {
  const int world = comm.world_size(), rank = comm.rank();
  for (const int64_t n : {1, 3, 127, 1000, 2053}) {
    std::vector<T> full = Terms<T>(rank, world * n), shard(static_cast<size_t>(n));
    comm.ReduceScatterSum(View(full), View(shard), bench.scratch, *bench.stream);
    Absorb(shard, hash);
    comm.AllReduceSum(View(full), bench.scratch, *bench.stream);
    Absorb(full, hash);
    std::vector<T> gathered(static_cast<size_t>(world * n));
    comm.AllGather(View(shard), View(gathered), {}, *bench.stream);
    Absorb(gathered, hash);
  }
}

}  // namespace

const std::vector<ContractCase>& CommunicatorContract() {
  constexpr Promise every = Promise::kEvery, ordered = Promise::kRankOrder, host = Promise::kHost;
  static const std::vector<ContractCase> cases = {
      {every, "all-gather puts the shard of rank r at place r, bit for bit, in place and not",
       Gather},
      {every, "a gather of f32 shards into 16 bits rounds on the way, or is refused", GatherRounds},
      {every, "sums that are exact in any order are exact, of slices and over all", WholeSums},
      {ordered, "reduce-scatter leaves rank r the sum of slice r, added in rank order",
       ReduceScatter},
      {ordered, "all-reduce leaves every rank the same sum, added in rank order", AllReduce},
      {every, "all-to-all puts piece p of rank r at place r on rank p, bit for bit", AllToAll},
      {every, "calls of changing kind and size stay in step", Mixture<Wholes<float>>},
      {ordered, "reduce-scatter and all-gather together are an all-reduce, bit for bit",
       Mixture<Terms<float>>},
      {every, "wrong arguments are refused by name before anything moves", WrongArguments},
      {host, "wrong scratch is refused by name before anything moves", WrongScratch},
      {every, "host payloads of unequal sizes, empty ones included, arrive at every rank",
       HostHelpers},
      {every, "host pieces of any size arrive where they are meant to, and nowhere else",
       HostExchange},
      {every, "no rank leaves a barrier before the last has come", BarrierHolds},
      {every, "counters follow the closed forms and count no host helper", Counters},
      {host, "an all-reduce that does not divide counts what this rank has sent", UnevenAllReduce},
  };
  return cases;
}

std::string ResultDigest(Communicator& comm, int64_t chunk_bytes) {
  Bench bench(comm.world_size(), chunk_bytes);
  uint64_t hash = 0xcbf29ce484222325ull;
  DigestOf<float>(comm, bench, hash);
  DigestOf<BFloat16>(comm, bench, hash);
  DigestOf<double>(comm, bench, hash);
  return fmt::format("{:016x}", hash);
}

}  // namespace millrace::testing
