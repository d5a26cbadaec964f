#include "comm/local/local_exchange.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using Lock = std::unique_lock<std::mutex>;

class LocalExchange final : public ByteExchange {
 public:
  LocalExchange(std::shared_ptr<LocalGroup> group, int rank, std::chrono::milliseconds timeout,
                std::function<void(const std::string&)> abort_world)
      : group_(std::move(group)),
        rank_(rank),
        timeout_(timeout),
        abort_world_(std::move(abort_world)) {}

  ~LocalExchange() override {
    // Unwinding: whoever catches the exception aborts with its message, which tells peers more than
    // that this rank has gone.
    if (std::uncaught_exceptions() > exceptions_at_birth_) return;
    const Lock lock(group_->mutex);
    group_->ranks[rank_].gone = true;
    group_->WakeAll();
  }

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return static_cast<int>(group_->ranks.size()); }
  const std::string& label() const noexcept override { return group_->label; }
  MovedBytes moved() const noexcept override { return moved_; }
  void Abort(const std::string& reason) noexcept override { abort_world_(reason); }
  void CheckHealth() const override {
    const Lock lock(group_->mutex);
    if (!group_->aborted) return;
    throw Error(ErrorCode::kPeerLost, fmt::format("'{}', rank {} of {}: aborted: {}", group_->label,
                                                  rank_, world_size(), group_->reason));
  }

  void Exchange(CommOp op, std::span<const SendPiece> sends,
                std::span<const RecvPiece> recvs) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    const int world = world_size();
    const int64_t number = ++exchanges_;
    Lock lock(group_->mutex);
    ThrowIfAborted(op, lock);
    LocalGroup::Rank& own = group_->ranks[rank_];
    std::copy(sends.begin(), sends.end(), own.sends.begin());
    own.op = op;
    own.posted = number;
    group_->Wake(own.posted);

    // Starting with the next rank spreads the ranks over the memory that they read.
    for (int k = 1; k < world; ++k) {
      const int p = (rank_ + k) % world;
      if (recvs[p].bytes == 0) continue;
      LocalGroup::Rank& peer = group_->ranks[p];
      WaitFor(lock, deadline, op, p, peer.posted, number, "has not come");
      const SendPiece piece = peer.sends[rank_];
      if (peer.posted != number || peer.op != op || piece.bytes != recvs[p].bytes)
        Fail(lock, ErrorCode::kComm, op,
             fmt::format("expects {} bytes from rank {}, which sends {} in {}", recvs[p].bytes, p,
                         piece.bytes, Name(peer.op)));
      ++group_->copying;
      lock.unlock();
      std::memcpy(recvs[p].data, piece.data, static_cast<size_t>(piece.bytes));
      lock.lock();
      peer.taken_bytes += piece.bytes;
      moved_.received += piece.bytes;
      --group_->copying;
      if (group_->aborted && group_->copying == 0) group_->copied.notify_all();
      ThrowIfAborted(op, lock);
    }
    own.copied = number;
    group_->Wake(own.copied);
    for (int p = 0; p < world; ++p) {
      if (p == rank_ || sends[p].bytes == 0) continue;
      const LocalGroup::Rank& peer = group_->ranks[p];
      WaitFor(lock, deadline, op, p, peer.copied, number, "has not taken its bytes");
    }
    moved_.sent = own.taken_bytes;
  }

 private:
  // Until `progress` of the peer is at least `number`.
  void WaitFor(Lock& lock, std::chrono::steady_clock::time_point deadline, CommOp op, int peer,
               const int64_t& progress, int64_t number, const char* trouble) {
    LocalGroup::Rank& own = group_->ranks[rank_];
    own.awaited = &progress;
    own.number = number;
    const bool woken = own.woken.wait_until(lock, deadline, [&] {
      return group_->aborted || progress >= number || group_->ranks[peer].gone;
    });
    own.awaited = nullptr;
    ThrowIfAborted(op, lock);
    if (progress >= number) return;
    if (woken) Fail(lock, ErrorCode::kPeerLost, op, fmt::format("rank {} has gone", peer));
    Fail(lock, ErrorCode::kTimeout, op,
         fmt::format("rank {} {} within {} ms", peer, trouble, timeout_.count()));
  }

  void ThrowIfAborted(CommOp op, Lock& lock) {
    if (!group_->aborted) return;
    DrainCopies(lock);
    throw Error(ErrorCode::kPeerLost, fmt::format("{}: aborted: {}", Where(op), group_->reason));
  }

  // This rank's own failure: the world stops with it.
  [[noreturn]] void Fail(Lock& lock, ErrorCode code, CommOp op, const std::string& trouble) {
    const std::string message = fmt::format("{}: {}", Where(op), trouble);
    lock.unlock();
    abort_world_(message);
    lock.lock();
    DrainCopies(lock);
    throw Error(code, message);
  }

  void DrainCopies(Lock& lock) {
    group_->copied.wait(lock, [&] { return group_->copying == 0; });
  }

  std::string Where(CommOp op) const {
    return fmt::format("{} on '{}', rank {} of {}", Name(op), group_->label, rank_, world_size());
  }

  const std::shared_ptr<LocalGroup> group_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
  const std::function<void(const std::string&)> abort_world_;
  const int exceptions_at_birth_ = std::uncaught_exceptions();
  int64_t exchanges_ = 0;  // so far; the number of the current one
  MovedBytes moved_;
};

}  // namespace

void LocalGroup::Abort(const std::string& why) noexcept {
  const Lock lock(mutex);
  if (aborted) return;
  aborted = true;
  reason = why;
  WakeAll();
}

void LocalGroup::Wake(const int64_t& progress) {
  for (Rank& rank : ranks)
    if (rank.awaited == &progress && progress >= rank.number) rank.woken.notify_one();
}

void LocalGroup::WakeAll() {
  for (Rank& rank : ranks) rank.woken.notify_one();
}

std::unique_ptr<ByteExchange> MakeLocalExchange(
    std::shared_ptr<LocalGroup> group, int rank, std::chrono::milliseconds timeout,
    std::function<void(const std::string& reason)> abort_world) {
  return std::make_unique<LocalExchange>(std::move(group), rank, timeout, std::move(abort_world));
}

}  // namespace millrace
