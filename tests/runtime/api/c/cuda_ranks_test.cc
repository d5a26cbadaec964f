// Processes of a program with a GPU each, behind millrace.h and the program's own MPI.
#include <cuda_runtime_api.h>
#include <mpi.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/runtime/api/c/answers.h"
#include "third_party/catch2/session.h"

namespace millrace::test {
namespace {

constexpr int64_t kLength = 64, kSequences = 4, kWords = 61;

int Rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int World() {
  int world = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  return world;
}

bool HaveGpus() {
  int visible = 0;
  if (cudaGetDeviceCount(&visible) == cudaSuccess && visible >= World()) return true;
  if (Rank() == 0)  // once, not for each rank
    SkipCase("needs " + std::to_string(World()) + " GPUs, " + std::to_string(visible) + " visible");
  return false;
}

std::string ConfigOn(const std::string& backend, int64_t accumulate,
                     const std::string& parallel = "") {
  return R"({"model": {"family": "llama", "layers": 3, "d_model": 128, "heads": 2, "ffn": 256,
             "seq_len": 64, "vocab": 61},
             "optimizer": {"lr": 0.002},
             "inference": {"slots": 4, "prefill": [32], "decode": [1, 4]},
             "train": {"steps": 50, "micro_batch": 2, "accumulate": )" +
         std::to_string(accumulate) + R"(}, "execution": {"backend": ")" + backend + "\"}" +
         (parallel.empty() ? "" : ", \"parallel\": {" + parallel + "}") + "}";
}

// Other rows for each step and rank.
std::vector<int32_t> RowsOf(int64_t step, int rank) {
  std::vector<int32_t> tokens;
  for (int64_t row = 0; row < kSequences; ++row)
    for (int64_t i = 0; i <= kLength; ++i)
      tokens.push_back(static_cast<int32_t>((i * (row + 1 + 5 * rank) + 7 * step) % kWords));
  return tokens;
}

double LossOf(mr_run* run, const std::vector<int32_t>& tokens, int64_t sequences) {
  mr_batch batch = Sized<mr_batch>();
  batch.tokens = tokens.data();
  batch.sequences = sequences;
  mr_step_result result = Sized<mr_step_result>();
  REQUIRE_CODE(mr_step(run, &batch, &result), MR_OK);
  return result.loss;
}
double LossHere(mr_run* run, int64_t step) { return LossOf(run, RowsOf(step, Rank()), kSequences); }

// One rank has the rows of all of them.
double LossOfAll(mr_run* run, int64_t step) {
  std::vector<int32_t> tokens;
  for (int rank = 0; rank < World(); ++rank) {
    const std::vector<int32_t> own = RowsOf(step, rank);
    tokens.insert(tokens.end(), own.begin(), own.end());
  }
  return LossOf(run, tokens, kSequences * World());
}

template <class T>
void RequireSameOnAllRanks(std::vector<T> values) {
  std::vector<T> first = values;
  MPI_Bcast(first.data(), static_cast<int>(first.size() * sizeof(T)), MPI_BYTE, 0, MPI_COMM_WORLD);
  REQUIRE(values == first);
}

// A run of all ranks of the program.
class OfAll {
 public:
  explicit OfAll(const std::string& config) : options_(WithInference(config)) {
    mpi_.comm = &comm_;
    options_.mpi = &mpi_;
    run_ = std::make_unique<Linked>(options_);
    INFO(run_->created().message);
    REQUIRE(run_->created().code == MR_OK);
  }
  operator mr_run*() const { return *run_; }

 private:
  MPI_Comm comm_ = MPI_COMM_WORLD;
  mr_mpi mpi_ = Sized<mr_mpi>();
  mr_run_options options_;
  std::unique_ptr<Linked> run_;
};

TEST_CASE("a GPU to each process: one model, the losses of a CPU that has all rows",
          "[api][c][gpu]") {
  if (!HaveGpus()) return;
  const std::string gpus = ConfigOn("cuda", 2), cpu = ConfigOn("cpu", 2 * World());
  std::vector<double> losses;
  {
    const OfAll run(gpus);
    REQUIRE_CODE(mr_init(run), MR_OK);
    const Linked alone(cpu);
    REQUIRE_CODE(mr_init(alone), MR_OK);
    for (int64_t step = 0; step < 6; ++step) {
      losses.push_back(LossHere(run, step));
      CHECK(losses.back() == Approx(LossOfAll(alone, step)).epsilon(1e-4));
    }
    RequireSameOnAllRanks(losses);
    REQUIRE(losses.back() < losses.front());
  }
  // Memory that GPUs exchange is not given back, and nothing has changed: the same bits.
  const OfAll again(gpus);
  REQUIRE_CODE(mr_init(again), MR_OK);
  for (int64_t step = 0; step < 6; ++step) {
    if (step == 2) REQUIRE_CODE(mr_release(again, MR_PART_ALL, nullptr), MR_UNSUPPORTED);
    REQUIRE(LossHere(again, step) == losses[static_cast<size_t>(step)]);
  }
}

TEST_CASE("GPUs along tensor draw the same answers to the same requests", "[api][c][gpu]") {
  if (!HaveGpus()) return;
  const std::string config = ConfigOn("cuda", 2, "\"tensor\": " + std::to_string(World()));
  const OfAll run(config);
  REQUIRE_CODE(mr_init(run), MR_OK);
  const std::vector<int32_t> first = {5, 17, 3}, second = {60, 1, 2, 3, 4};
  const std::vector<Answer> answers =
      Generate(run, {RequestOf(first, 24, 0), RequestOf(second, 19, 1)});
  REQUIRE(answers.size() == 2);
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  for (const Answer& answer : answers) {
    tokens.insert(tokens.end(), answer.tokens.begin(), answer.tokens.end());
    logprobs.insert(logprobs.end(), answer.logprobs.begin(), answer.logprobs.end());
  }
  REQUIRE(tokens.size() == 24 + 19);
  RequireSameOnAllRanks(tokens);
  RequireSameOnAllRanks(logprobs);
}

}  // namespace
}  // namespace millrace::test

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int failed = millrace::RunCatchSession(argc, argv);
  MPI_Finalize();
  return failed;
}
