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

// The threads of RunInOrder, and what waits for them.
template <typename Item, typename Result>
class OrderedPool {
 public:
  using Worker = std::function<Result(const Item&)>;
  struct Task {
    Item item;
    std::optional<Result> result;
    std::exception_ptr error;
    bool done = false;
  };

  explicit OrderedPool(const std::function<Worker()>& make_worker) : make_worker_(make_worker) {}
  // What waits is given up, and the threads are joined.
  ~OrderedPool() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    waiting_.clear();
    work_.notify_all();
  }

  void AddThread() {
    threads_.emplace_back([this] { Serve(); });
  }
  void Give(std::shared_ptr<Task> task) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
    work_.notify_one();
  }
  void Await(const Task& task) {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return task.done; });
  }

 private:
  void Serve() {
    Worker worker;
    std::exception_ptr broken;
    try {
      worker = make_worker_();
    } catch (...) {
      broken = std::current_exception();
    }
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::shared_ptr<Task> task = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      try {
        if (broken) std::rethrow_exception(broken);
        task->result.emplace(worker(task->item));
      } catch (...) {
        task->error = std::current_exception();
      }
      lock.lock();
      task->done = true;
      finished_.notify_one();
    }
  }

  const std::function<Worker()>& make_worker_;
  std::mutex mutex_;
  std::condition_variable work_, finished_;
  std::deque<std::shared_ptr<Task>> waiting_;
  bool closed_ = false;
  std::vector<std::jthread> threads_;  // joined first
};

// next(item) fills the next item, false when there is none; worker = make_worker() is one per
// thread, and result = worker(item); use(result) is called in the items' order. next and use are
// called by this thread alone; at most 4 items per thread wait at a time.
//
// Errors  The first in the items' order leaves, after the results before it were used.
template <typename Item, typename Result>
void RunInOrder(int threads, const std::function<bool(Item&)>& next,
                const std::function<std::function<Result(const Item&)>()>& make_worker,
                const std::function<void(Result&)>& use) {
  using Pool = OrderedPool<Item, Result>;
  Pool pool(make_worker);
  for (int i = 0; i < threads; ++i) pool.AddThread();
  std::deque<std::shared_ptr<typename Pool::Task>> ordered;
  std::exception_ptr unreadable;  // what next() threw; the results before it are used first
  for (bool more = true;;) {
    while (more && std::ssize(ordered) < int64_t{4} * threads) {
      auto task = std::make_shared<typename Pool::Task>();
      try {
        more = next(task->item);
      } catch (...) {
        unreadable = std::current_exception();
        more = false;
      }
      if (!more) break;
      ordered.push_back(task);
      pool.Give(task);
    }
    if (ordered.empty()) break;
    const std::shared_ptr<typename Pool::Task> task = ordered.front();
    ordered.pop_front();
    pool.Await(*task);
    if (task->error) std::rethrow_exception(task->error);
    use(*task->result);
  }
  if (unreadable) std::rethrow_exception(unreadable);
}

}  // namespace millrace
