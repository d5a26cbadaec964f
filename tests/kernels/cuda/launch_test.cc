#include "runtime/base/cuda/launch.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/step/statistics.h"
#include "runtime/base/cuda/cuda_check.h"
#include "tests/kernels/cuda/matmul_operands.h"

namespace millrace::test {
namespace {

class Fixture {
 public:
  explicit Fixture(EarlyLaunch early, StreamRole main = StreamRole::kCompute,
                   StreamRole other = StreamRole::kCollectives)
      : main_(device_.MakeStream(main)), other_(device_.MakeStream(other)) {
    device_.Attached<cuda::LaunchPolicy>().early = early;
  }

  CudaDevice& device() { return device_; }
  DeviceOperands& operands() { return operands_; }
  Stream& main() { return *main_; }
  Stream& other() { return *other_; }

  template <class T>
  TensorView From(DType dtype, const std::vector<T>& values) {
    const TensorView view =
        operands_.New(DenseLayout(dtype, {static_cast<int64_t>(values.size())}));
    device_.CopyFromHost(view.data, values.data(), view.bytes(), *main_);
    return view;
  }

 private:
  CudaDevice device_{0};
  const std::unique_ptr<Stream> main_, other_;
  DeviceOperands operands_{device_, *main_};
};

cudaStream_t Raw(Stream& stream) { return AsCuda(stream).get(); }

// Of a graph: its edges, and those over which a kernel begins early.
struct Edges {
  size_t all = 0, at_end = 0, at_begin = 0, not_between_kernels = 0;
  size_t early() const { return at_end + at_begin; }
};

template <class F>
Edges EdgesOf(Stream& origin, F&& issue) {
  MR_CUDA(cudaStreamBeginCapture(Raw(origin), cudaStreamCaptureModeRelaxed));
  issue();
  cudaGraph_t graph = nullptr;
  MR_CUDA(cudaStreamEndCapture(Raw(origin), &graph));
  Edges edges;
  MR_CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges.all));
  std::vector<cudaGraphNode_t> from(edges.all), to(edges.all);
  std::vector<cudaGraphEdgeData> data(edges.all);
  MR_CUDA(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &edges.all));
  const auto is_kernel = [](cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    MR_CUDA(cudaGraphNodeGetType(node, &type));
    return type == cudaGraphNodeTypeKernel;
  };
  for (size_t i = 0; i < edges.all; ++i) {
    if (!is_kernel(from[i]) || !is_kernel(to[i])) ++edges.not_between_kernels;
    if (data[i].type != cudaGraphDependencyTypeProgrammatic) continue;
    edges.at_end += data[i].from_port == cudaGraphKernelNodePortProgrammatic;
    edges.at_begin += data[i].from_port == cudaGraphKernelNodePortLaunchCompletion;
  }
  cudaGraphExec_t executable = nullptr;
  MR_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  MR_CUDA(cudaGraphLaunch(executable, Raw(origin)));
  MR_CUDA(cudaStreamSynchronize(Raw(origin)));
  MR_CUDA(cudaGraphExecDestroy(executable));
  MR_CUDA(cudaGraphDestroy(graph));
  return edges;
}

// main: 1, 2, then 3 after 2 and `other`'s 2; `other`: 1 after main's 1, and 2.
Edges ForkOf(Fixture& f) {
  const TensorView x = f.operands().Random(DenseLayout(DType::kF32, {5000}));
  const TensorView y = f.operands().Random(DenseLayout(DType::kF32, {5000}));
  const TensorView z = f.operands().Random(DenseLayout(DType::kF32, {5000}));
  const auto event = f.device().MakeEvent(), back = f.device().MakeEvent();
  return EdgesOf(f.main(), [&] {
    CudaAdd({{}, x, y, x}, f.main());
    f.main().Record(*event);
    f.other().Wait(*event);
    for (int i = 0; i < 2; ++i) CudaAdd({{}, z, y, z}, f.other());
    f.other().Record(*back);
    CudaAdd({{}, x, y, x}, f.main());
    f.main().Wait(*back);
    CudaAdd({{}, x, y, x}, f.main());
  });
}

TEST_CASE("a kernel begins early behind one kernel of its graph, and behind nothing else") {
  for (const EarlyLaunch early : {EarlyLaunch::kOff, EarlyLaunch::kEnd, EarlyLaunch::kBegin}) {
    Fixture f(early);
    const TensorView x = f.operands().Random(DenseLayout(DType::kF32, {5000}));
    const TensorView y = f.operands().Random(DenseLayout(DType::kF32, {5000}));
    const auto add = [&](Stream& stream) { CudaAdd({{}, x, y, x}, stream); };
    const size_t at_end = early == EarlyLaunch::kEnd ? 1 : 0,
                 at_begin = early == EarlyLaunch::kBegin ? 1 : 0;

    const Edges chain = EdgesOf(f.main(), [&] {
      for (int i = 0; i < 4; ++i) add(f.main());
    });
    CHECK(chain.all == 3);
    CHECK(chain.at_end == 3 * at_end);
    CHECK(chain.at_begin == 3 * at_begin);

    const Edges fill = EdgesOf(f.main(), [&] {
      add(f.main());
      f.device().EnqueueFill(x.data, std::byte{0}, x.bytes(), f.main());
      add(f.main());
      add(f.main());
    });
    CHECK(fill.all == 3);
    CHECK(fill.not_between_kernels == 2);
    CHECK(fill.early() == at_end + at_begin);

    CHECK(ForkOf(f).all == 5);
    CHECK(ForkOf(f).early() == at_end + at_begin);
    // What runs beside a chain is compute as well.
    Fixture beside(early, StreamRole::kChain, StreamRole::kCompute);
    CHECK(ForkOf(beside).all == 5);
    CHECK(ForkOf(beside).early() == 3 * (at_end + at_begin));
  }
}

// The priorities of kernels that are captured on a stream of each of the roles.
std::vector<int> PrioritiesOf(CudaDevice& device, const std::vector<StreamRole>& roles) {
  const auto words = device.AllocateHost(64, "words");
  std::vector<int> priorities;
  for (const StreamRole role : roles) {
    const auto stream = device.MakeStream(role);
    MR_CUDA(cudaStreamBeginCapture(Raw(*stream), cudaStreamCaptureModeRelaxed));
    device.EnqueueMark(words->data(), 1, *stream);
    cudaGraph_t graph = nullptr;
    MR_CUDA(cudaStreamEndCapture(Raw(*stream), &graph));
    cudaGraphNode_t node = nullptr;
    size_t count = 1;
    MR_CUDA(cudaGraphGetNodes(graph, &node, &count));
    REQUIRE(count == 1);
    cudaLaunchAttributeValue value{};
    MR_CUDA(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value));
    priorities.push_back(value.priority);
    MR_CUDA(cudaGraphDestroy(graph));
  }
  return priorities;
}

TEST_CASE("a chain is ahead of what computes beside it, and collectives of both") {
  CudaDevice device(0);
  int least = 0, greatest = 0;
  MR_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK(
      PrioritiesOf(device, {StreamRole::kCompute, StreamRole::kChain, StreamRole::kCollectives}) ==
      std::vector<int>{least, least - 1, greatest});
  CHECK(greatest < least - 1);  // of the GPUs that we know
}

// Every kernel reads what the one before it wrote, or writes what that one read; grids of many
// blocks and of few take turns. One that did not wait would find or leave old values.
TEST_CASE("kernels that begin early compute what they do one after the other") {
  Fixture f(GENERATE(EarlyLaunch::kEnd, EarlyLaunch::kBegin));
  constexpr int64_t kN = int64_t{3} << 20;
  constexpr int kTurns = 40;
  std::vector<float> begin(kN), step(kN);
  for (int64_t i = 0; i < kN; ++i)
    begin[i] = static_cast<float>(i % 61), step[i] = static_cast<float>(i % 3);
  const TensorView x = f.From(DType::kF32, begin), y = f.From(DType::kF32, step);
  const TensorView squares = f.operands().New(DenseLayout(DType::kF64, {kTurns}));
  const TensorView sums = f.operands().New(DenseLayout(DType::kF32, {kTurns, 512}));
  SumSquaresOp<TensorView> square{};
  square.x = x;
  const auto shape_of = [](const TensorView& view) {
    return Shape{view.layout, static_cast<bool>(view)};
  };
  square.out = {squares.data, DenseLayout(DType::kF64, {1})};
  square.scratch = f.operands().New(DenseLayout(
      DType::kU8, {WorkspaceBytes(ConvertOp<SumSquaresOp, TensorView, Shape>(square, shape_of),
                                  Backend::kCuda)}));
  ColumnSumOp<TensorView> column{};
  column.x = {x.data, DenseLayout(DType::kF32, {kN / 512, 512})};
  column.out = {sums.data, DenseLayout(DType::kF32, {512})};
  column.scratch = f.operands().New(DenseLayout(
      DType::kU8, {WorkspaceBytes(ConvertOp<ColumnSumOp, TensorView, Shape>(column, shape_of),
                                  Backend::kCuda)}));
  const Edges edges = EdgesOf(f.main(), [&] {
    for (int turn = 0; turn < kTurns; ++turn) {
      CudaAdd({{}, x, y, x}, f.main());
      square.out.data = squares.data + turn * 8;
      CudaSumSquares(square, f.main());
      CudaAdd({{}, x, y, x}, f.main());
      column.out.data = sums.data + turn * 512 * 4;
      CudaColumnSum(column, f.main());
    }
  });
  CHECK(edges.early() == edges.all);
  CHECK(edges.all == 5 * kTurns - 1);

  std::vector<float> last(kN), got_sums(kTurns * 512);
  std::vector<double> got_squares(kTurns);
  f.device().CopyToHost(last.data(), x.data, x.bytes(), f.main());
  f.device().CopyToHost(got_sums.data(), sums.data, sums.bytes(), f.main());
  f.device().CopyToHost(got_squares.data(), squares.data, squares.bytes(), f.main());
  // Whole numbers, and exact: squares in double, sums of columns below 2^24 in f32.
  int64_t wrong = 0;
  for (int64_t i = 0; i < kN; ++i) wrong += last[i] != begin[i] + 2 * kTurns * step[i];
  CHECK(wrong == 0);
  for (int turn = 0; turn < kTurns; ++turn) {
    double expected = 0;
    std::vector<double> columns(512);
    for (int64_t i = 0; i < kN; ++i) {
      const double odd = begin[i] + (2 * turn + 1) * step[i];
      expected += odd * odd;
      columns[i % 512] += odd + step[i];
    }
    INFO("turn " << turn);
    CHECK(got_squares[turn] == expected);
    CHECK(std::equal(columns.begin(), columns.end(), got_sums.begin() + turn * 512,
                     [](double a, float b) { return a == b; }));
  }
}

}  // namespace
}  // namespace millrace::test
