#include "comm/local/local_world.h"

#include <map>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include "comm/local/local_exchange.h"
#include "runtime/base/error.h"

namespace millrace {

struct LocalWorld::State {
  State(int size, const HostCommOptions& comm_options) : world_size(size), options(comm_options) {
    sequences.resize(static_cast<size_t>(size));
  }

  // Which group a rank asks for: its label, its ranks, and how many of the same
  // this rank has made before.
  using Key = std::tuple<std::string, std::vector<int>, int>;

  std::shared_ptr<LocalGroup> Join(int rank, const std::vector<int>& ranks,
                                   const std::string& label) {
    const std::lock_guard lock(mutex);
    const int occurrence = sequences[rank][{label, ranks}]++;
    std::shared_ptr<LocalGroup>& group = groups[{label, ranks, occurrence}];
    if (!group) {
      group = std::make_shared<LocalGroup>(static_cast<int>(ranks.size()), label);
      if (aborted) group->Abort(reason);
    }
    return group;
  }

  void Abort(const std::string& why) noexcept {
    const std::lock_guard lock(mutex);
    if (aborted) return;
    aborted = true;
    reason = why;
    for (auto& [key, group] : groups) group->Abort(why);
  }

  const int world_size;
  const HostCommOptions options;
  std::mutex mutex;
  std::vector<std::map<std::pair<std::string, std::vector<int>>, int>> sequences;  // per rank
  std::map<Key, std::shared_ptr<LocalGroup>> groups;
  bool aborted = false;
  std::string reason;
};

namespace {

class LocalFactory final : public CommFactory {
 public:
  LocalFactory(std::shared_ptr<LocalWorld::State> state, int rank)
      : state_(std::move(state)), rank_(rank) {}

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return state_->world_size; }

  std::unique_ptr<Communicator> Make(const std::vector<int>& ranks,
                                     const std::string& label) override {
    const int group_rank = CheckedGroupRank(ranks, label, rank_, state_->world_size);
    return MakeHostCommunicator(
        MakeLocalExchange(state_->Join(rank_, ranks, label), group_rank, state_->options.timeout,
                          [state = state_](const std::string& reason) { state->Abort(reason); }),
        state_->options);
  }

 private:
  const std::shared_ptr<LocalWorld::State> state_;
  const int rank_;
};

}  // namespace

LocalWorld::LocalWorld(int world_size, const HostCommOptions& options) {
  MR_REQUIRE(ErrorCode::kInvalidArgument, world_size >= 1,
             "a world of {} ranks; at least 1 is needed", world_size);
  state_ = std::make_shared<State>(world_size, options);
}

LocalWorld::~LocalWorld() = default;

int LocalWorld::world_size() const noexcept { return state_->world_size; }

std::unique_ptr<CommFactory> LocalWorld::Factory(int rank) {
  MR_REQUIRE(ErrorCode::kInvalidArgument, rank >= 0 && rank < world_size(),
             "rank {} is not in a world of {}", rank, world_size());
  return std::make_unique<LocalFactory>(state_, rank);
}

void LocalWorld::Abort(const std::string& reason) noexcept { state_->Abort(reason); }

std::vector<std::unique_ptr<Communicator>> MakeLocalCommunicators(int world_size,
                                                                  const HostCommOptions& options) {
  LocalWorld world(world_size, options);
  std::vector<int> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int r = 0; r < world_size; ++r)
    communicators.push_back(world.Factory(r)->Make(ranks, "world"));
  return communicators;
}

}  // namespace millrace
