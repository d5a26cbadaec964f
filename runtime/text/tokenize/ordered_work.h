// Many items worked on by threads, and their results used in the items' order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace millrace {

// next(item) fills the next item, false when there is none; worker = make_worker() is one per
// thread, and result = worker(item); use(result) is called in the items' order. next and use are
// called by this thread alone; at most 4 items per thread wait at a time.
//
// Errors  The first in the items' order leaves, after the results before it were used.
template <typename Item, typename Result>
void RunInOrder(int threads, const std::function<bool(Item&)>& next,
                const std::function<std::function<Result(const Item&)>()>& make_worker,
                const std::function<void(Result&)>& use) {
  struct Task {
    Item item;
    std::optional<Result> result;
    std::exception_ptr error;
    bool done = false;
  };
  std::mutex mutex;
  std::condition_variable work, finished;
  std::deque<std::shared_ptr<Task>> waiting, ordered;
  bool closed = false;
  const auto serve = [&] {
    std::function<Result(const Item&)> worker;
    std::exception_ptr broken;
    try {
      worker = make_worker();
    } catch (...) {
      broken = std::current_exception();
    }
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return closed || !waiting.empty(); });
      if (waiting.empty()) return;
      const std::shared_ptr<Task> task = waiting.front();
      waiting.pop_front();
      lock.unlock();
      try {
        if (broken) std::rethrow_exception(broken);
        task->result.emplace(worker(task->item));
      } catch (...) {
        task->error = std::current_exception();
      }
      lock.lock();
      task->done = true;
      finished.notify_one();
    }
  };
  std::vector<std::jthread> pool;
  struct Close {  // before the threads are joined, also when something throws
    std::function<void()> close;
    ~Close() { close(); }
  } const close{[&] {
    const std::lock_guard lock(mutex);
    closed = true;
    waiting.clear();
    work.notify_all();
  }};
  for (int i = 0; i < threads; ++i) pool.emplace_back(serve);
  std::exception_ptr unreadable;  // what next() threw; the results before it are used first
  for (bool more = true;;) {
    while (more && std::ssize(ordered) < int64_t{4} * threads) {
      auto task = std::make_shared<Task>();
      try {
        more = next(task->item);
      } catch (...) {
        unreadable = std::current_exception();
        more = false;
      }
      if (!more) break;
      ordered.push_back(task);
      const std::lock_guard lock(mutex);
      waiting.push_back(task);
      work.notify_one();
    }
    if (ordered.empty()) break;
    const std::shared_ptr<Task> task = ordered.front();
    ordered.pop_front();
    {
      std::unique_lock lock(mutex);
      finished.wait(lock, [&] { return task->done; });
    }
    if (task->error) std::rethrow_exception(task->error);
    use(*task->result);
  }
  if (unreadable) std::rethrow_exception(unreadable);
}

}  // namespace millrace
