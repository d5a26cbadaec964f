#include "comm/local/run_ranks.h"

#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "runtime/base/error.h"

namespace millrace {
namespace {

class FirstFailure {
 public:
  void Record(std::exception_ptr failure, bool provoked) {
    const std::lock_guard lock(mutex_);
    std::exception_ptr& slot = provoked ? provoked_ : real_;
    if (!slot) slot = failure;
  }
  void Rethrow() const {
    if (real_) std::rethrow_exception(real_);
    if (provoked_) std::rethrow_exception(provoked_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr real_, provoked_;
};

// Returns what the rank's exception says, and records it.
std::string RecordCurrent(FirstFailure& failure) {
  try {
    throw;
  } catch (const Error& error) {
    failure.Record(std::current_exception(), error.code() == ErrorCode::kPeerLost);
    return error.what();
  } catch (const std::exception& error) {
    failure.Record(std::current_exception(), false);
    return error.what();
  } catch (...) {
    failure.Record(std::current_exception(), false);
    return "an exception of unknown type";
  }
}

}  // namespace

void RunRanks(LocalWorld& world, const std::function<void(CommFactory& factory)>& fn) {
  FirstFailure failure;
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < world.world_size(); ++r)
      threads.emplace_back([&world, &fn, &failure, r] {
        try {
          const std::unique_ptr<CommFactory> factory = world.Factory(r);
          fn(*factory);
        } catch (...) {
          world.Abort(fmt::format("rank {} failed: {}", r, RecordCurrent(failure)));
        }
      });
  }
  failure.Rethrow();
}

void RunRanks(int world_size, const std::function<void(Communicator& comm)>& fn,
              const HostCommOptions& options) {
  LocalWorld world(world_size, options);
  std::vector<int> ranks(static_cast<size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  RunRanks(world, [&](CommFactory& factory) { fn(*factory.Make(ranks, "world")); });
}

}  // namespace millrace
