// Two ranks as threads of this program train one model: each holds half of it. Statuses become
// exceptions, handles are owned.
#include <millrace.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kWorld = 2, kRows = 8, kRowTokens = 17, kVocab = 61, kSteps = 60;

constexpr char kConfig[] = R"({
  "model": {"family": "llama", "layers": 2, "d_model": 32, "heads": 2, "ffn": 64, "seq_len": 16,
            "vocab": 61},
  "train": {"steps": 60, "micro_batch": 8, "accumulate": 1},
  "optimizer": {"lr": 0.01}})";

void Check(mr_status* status) {
  const std::unique_ptr<mr_status, decltype(&mr_status_free)> owned(status, mr_status_free);
  if (status != nullptr) throw std::runtime_error(mr_status_message(status));
}

struct Destroy {
  void operator()(mr_run* run) const { mr_status_free(mr_run_destroy(run)); }
};
using Run = std::unique_ptr<mr_run, Destroy>;

// How the ranks find each other. With MPI the body of Exchange would be MPI_Allgather.
class Hall {
 public:
  static mr_status* Exchange(void* user, void* buffer, size_t each) {
    auto& [hall, rank] = *static_cast<Seat*>(user);
    auto* const bytes = static_cast<char*>(buffer);
    std::unique_lock lock(hall->mutex_);
    const int round = hall->round_;
    hall->board_.resize(each * kWorld);
    std::copy_n(bytes + each * rank, each, hall->board_.begin() + each * rank);
    if (++hall->here_ == kWorld) {
      hall->here_ = 0;
      ++hall->round_;
      hall->full_ = hall->board_;
      hall->all_here_.notify_all();
    }
    hall->all_here_.wait(lock, [&, hall = hall] { return hall->round_ > round; });
    std::copy(hall->full_.begin(), hall->full_.end(), bytes);
    return nullptr;
  }
  struct Seat {
    Hall* hall;
    size_t rank;
  };

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<char> board_, full_;
  int here_ = 0, round_ = 0;
};

std::vector<int32_t> Tokens(int step, int rank) {
  std::vector<int32_t> tokens;
  for (int row = rank * kRows; row < (rank + 1) * kRows; ++row)
    for (int i = 0; i < kRowTokens; ++i)
      tokens.push_back((7 * step + 13 * row + i * (1 + row % 5)) % kVocab);
  return tokens;
}

// The losses of this rank's steps: those of all ranks' rows.
std::vector<double> Train(Hall& hall, int rank) {
  Hall::Seat seat{&hall, static_cast<size_t>(rank)};
  mr_run_options options{};
  options.size = sizeof options;
  options.config = kConfig;
  options.rank = rank;
  options.world = kWorld;
  options.user = &seat;
  options.exchange = Hall::Exchange;
  mr_run* created = nullptr;
  Check(mr_run_create(&options, &created));
  const Run run(created);
  Check(mr_init(run.get()));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<int32_t> tokens = Tokens(step, rank);
    mr_batch batch{};
    batch.size = sizeof batch;
    batch.tokens = tokens.data();
    batch.sequences = kRows;
    mr_step_result result{};
    result.size = sizeof result;
    Check(mr_step(run.get(), &batch, &result));
    losses.push_back(result.loss);
  }
  return losses;
}

}  // namespace

int main() {
  Hall hall;
  std::vector<double> losses[kWorld];
  std::string trouble[kWorld];
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        losses[rank] = Train(hall, rank);
      } catch (const std::exception& error) {
        trouble[rank] = error.what();
      }
    });
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& text : trouble)
    if (!text.empty()) return std::fprintf(stderr, "%s\n", text.c_str()), 1;
  std::printf("Millrace %s, %d ranks: loss %.4f -> %.4f in %d steps\n", mr_version(), kWorld,
              losses[0].front(), losses[0].back(), kSteps);
  return losses[0] == losses[1] && losses[0].back() < losses[0].front() / 2 ? 0 : 1;
}
