#include "comm/mpi/mpi_exchange.h"

#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;

// How a waiting rank spends its time. With a core for each rank it polls; with more ranks than
// cores the one that is waited for needs this core, so it naps early: measured on 2 cores, that
// halves the time of large reductions on 8 ranks and would cost 2 ranks a factor of 5. After a few
// milliseconds (a checkpoint, text generation on rank 0) it naps longer. A nap also delays the
// messages that pass through it.
class Idler {
 public:
  explicit Idler(bool oversubscribed)
      : spins_(oversubscribed ? 0 : 32), yields_(oversubscribed ? 32 : 1024) {}

  void Pause() {
    ++polls_;
    if (polls_ <= spins_) return;
    if (polls_ <= spins_ + yields_)
      sched_yield();
    else
      std::this_thread::sleep_for(
          std::chrono::microseconds(polls_ <= kShortNaps + spins_ + yields_ ? 50 : 200));
  }
  void Reset() { polls_ = 0; }

 private:
  static constexpr int kShortNaps = 100;
  const int spins_, yields_;
  int polls_ = 0;
};

class MpiExchange final : public ByteExchange {
 public:
  MpiExchange(std::shared_ptr<MpiRuntime::State> mpi, MpiExchangeSpec spec)
      : mpi_(std::move(mpi)), spec_(std::move(spec)) {
    const size_t expected = 2 * spec_.peers.size();
    requests_.reserve(expected);
    transfers_.reserve(expected);
    done_.reserve(expected);
    statuses_.reserve(expected);
  }

  ~MpiExchange() override {
    if (spec_.ownership == CommOwnership::kOwned && !failed_ && !mpi_->finalized)
      MPI_Comm_free(&spec_.comm);
  }

  int rank() const noexcept override { return spec_.own_rank; }
  int world_size() const noexcept override { return static_cast<int>(spec_.peers.size()); }
  const std::string& label() const noexcept override { return spec_.label; }
  MovedBytes moved() const noexcept override { return moved_; }

  void Abort(const std::string& reason) noexcept override {
    mpi_->Abort(reason, ExitCode(ErrorCode::kPeerLost));
  }

  void Exchange(CommOp op, std::span<const SendPiece> sends,
                std::span<const RecvPiece> recvs) override {
    MR_REQUIRE(ErrorCode::kPeerLost, !failed_, "{}: this communicator has failed before",
               Where(op));
    try {
      Start(op, sends, recvs);
      Finish(op);
    } catch (...) {
      failed_ = true;
      mpi_->failed = true;
      CancelReceives();
      throw;
    }
  }

 private:
  // The text is put together only for an error: this runs for each message.
  void Check(int code, const char* call, CommOp op) const {
    if (code != MPI_SUCCESS) [[unlikely]]
      CheckMpi(code, call, Where(op));
  }

  enum class Direction : uint8_t { kReceive, kSend };
  // What requests_[i] moves.
  struct Transfer {
    int peer;
    Direction direction;
    int bytes;
  };

  // Messages of one pair arrive in the order sent, so equal tags would do; different ones keep a
  // rank that is in another call, or a call ahead, from being mistaken for one in step: that ends
  // in a time-out that names both.
  int NextTag(CommOp op) {
    return static_cast<int>(op) << 16 | static_cast<int>(calls_++ & 0xffff);
  }

  void Start(CommOp op, std::span<const SendPiece> sends, std::span<const RecvPiece> recvs) {
    requests_.clear();
    transfers_.clear();
    const int tag = NextTag(op);
    const int world = world_size();
    for (int k = 1; k < world; ++k) {
      const int p = (spec_.own_rank + k) % world;
      for (int64_t begin = 0; begin < recvs[p].bytes; begin += spec_.max_message_bytes) {
        const int bytes =
            static_cast<int>(std::min(spec_.max_message_bytes, recvs[p].bytes - begin));
        Add({p, Direction::kReceive, bytes});
        Check(MPI_Irecv(recvs[p].data + begin, bytes, MPI_BYTE, spec_.peers[p], tag, spec_.comm,
                        &requests_.back()),
              "MPI_Irecv", op);
      }
    }
    for (int k = 1; k < world; ++k) {
      const int p = (spec_.own_rank + world - k) % world;
      for (int64_t begin = 0; begin < sends[p].bytes; begin += spec_.max_message_bytes) {
        const int bytes =
            static_cast<int>(std::min(spec_.max_message_bytes, sends[p].bytes - begin));
        Add({p, Direction::kSend, bytes});
        Check(MPI_Isend(sends[p].data + begin, bytes, MPI_BYTE, spec_.peers[p], tag, spec_.comm,
                        &requests_.back()),
              "MPI_Isend", op);
      }
    }
    done_.resize(requests_.size());
    statuses_.resize(requests_.size());
  }

  void Add(const Transfer& transfer) {
    requests_.push_back(MPI_REQUEST_NULL);
    transfers_.push_back(transfer);
  }

  void Finish(CommOp op) {
    const auto deadline = Clock::now() + spec_.timeout;
    const int count = static_cast<int>(requests_.size());
    int left = count;
    Idler idler(mpi_->oversubscribed);
    while (left > 0) {
      int finished = 0;
      const int code =
          MPI_Testsome(count, requests_.data(), &finished, done_.data(), statuses_.data());
      if (finished > 0) {
        for (int i = 0; i < finished; ++i)
          CheckTransfer(op, code, transfers_[done_[i]], statuses_[i]);
        left -= finished;
        idler.Reset();
        continue;
      }
      Check(code, "MPI_Testsome", op);
      if (Clock::now() >= deadline) ThrowTimeout(op);
      idler.Pause();
    }
  }

  void CheckTransfer(CommOp op, int code, const Transfer& transfer, const MPI_Status& status) {
    if (code == MPI_ERR_IN_STATUS)
      CheckMpi(status.MPI_ERROR, transfer.direction == Direction::kSend ? "MPI_Isend" : "MPI_Irecv",
               fmt::format("{}, peer {}", Where(op), transfer.peer));
    if (transfer.direction == Direction::kSend) {
      moved_.sent += transfer.bytes;
      return;
    }
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    MR_REQUIRE(ErrorCode::kComm, bytes == transfer.bytes,
               "{}: expects {} bytes from rank {}, which sends {}", Where(op), transfer.bytes,
               transfer.peer, bytes);
    moved_.received += bytes;
  }

  [[noreturn]] void ThrowTimeout(CommOp op) {
    std::vector<int> silent, unread;
    for (size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL)
        (transfers_[i].direction == Direction::kReceive ? silent : unread)
            .push_back(transfers_[i].peer);
    throw Error(
        ErrorCode::kTimeout,
        fmt::format(
            "{}: not done within {} ms: nothing came from ranks [{}]; not taken by ranks [{}]",
            Where(op), spec_.timeout.count(), fmt::join(silent, ", "), fmt::join(unread, ", ")));
  }

  // So that MPI does not write into memory that the caller frees while the error unwinds.
  void CancelReceives() noexcept {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL || transfers_[i].direction != Direction::kReceive)
        continue;
      MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
    }
  }

  std::string Where(CommOp op) const {
    return fmt::format("{} on '{}', rank {} of {}", Name(op), spec_.label, spec_.own_rank,
                       world_size());
  }

  const std::shared_ptr<MpiRuntime::State> mpi_;
  MpiExchangeSpec spec_;
  uint32_t calls_ = 0;
  bool failed_ = false;
  MovedBytes moved_;
  // Of the exchange under way; kept so that a step allocates nothing.
  std::vector<MPI_Request> requests_;
  std::vector<Transfer> transfers_;
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace

std::unique_ptr<ByteExchange> MakeMpiExchange(std::shared_ptr<MpiRuntime::State> mpi,
                                              MpiExchangeSpec spec) {
  return std::make_unique<MpiExchange>(std::move(mpi), std::move(spec));
}

}  // namespace millrace
