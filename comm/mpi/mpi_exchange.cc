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

// How a waiting rank spends its time. With more ranks than cores the one that is waited for needs this core,
// so spinning is short; a rank that waits for long (for a checkpoint, for text generation on rank 0) naps.
// Each nap also delays the messages that pass through it.
class Idler {
 public:
  void Pause() {
    ++polls_;
    if (polls_ < 32) return;
    if (polls_ < 1024) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(polls_ < 4096 ? 50 : 200));
  }
  void Reset() { polls_ = 0; }

 private:
  int polls_ = 0;
};

class MpiExchange final : public ByteExchange {
 public:
  MpiExchange(std::shared_ptr<MpiRuntime::State> mpi, MPI_Comm comm, CommOwnership ownership,
              std::vector<int> peers, int own_rank, const std::string& label, const HostCommOptions& options)
      : mpi_(std::move(mpi)),
        comm_(comm),
        ownership_(ownership),
        peers_(std::move(peers)),
        rank_(own_rank),
        label_(label),
        timeout_(options.timeout) {
    const size_t expected = 2 * peers_.size();
    requests_.reserve(expected);
    transfers_.reserve(expected);
    done_.reserve(expected);
    statuses_.reserve(expected);
  }

  ~MpiExchange() override {
    if (ownership_ == CommOwnership::kOwned && !failed_ && !mpi_->finalized) MPI_Comm_free(&comm_);
  }

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return static_cast<int>(peers_.size()); }
  const std::string& label() const noexcept override { return label_; }

  void Abort(const std::string& reason) noexcept override {
    mpi_->Abort(reason, ExitCode(ErrorCode::kPeerLost));
  }

  void Exchange(CommOp op, std::span<const SendPiece> sends, std::span<const RecvPiece> recvs) override {
    MR_REQUIRE(ErrorCode::kPeerLost, !failed_, "{}: this communicator has failed before", Where(op));
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
  enum class Direction : uint8_t { kReceive, kSend };
  // What requests_[i] moves.
  struct Transfer {
    int peer;
    Direction direction;
    int bytes;
  };

  // Messages of one pair arrive in the order sent, so equal tags would do; different ones keep a rank that is
  // in another call, or a call ahead, from being mistaken for one in step: that ends in a time-out that names
  // both.
  int NextTag(CommOp op) { return static_cast<int>(op) << 16 | static_cast<int>(calls_++ & 0xffff); }

  void Start(CommOp op, std::span<const SendPiece> sends, std::span<const RecvPiece> recvs) {
    requests_.clear();
    transfers_.clear();
    const int tag = NextTag(op);
    const int world = world_size();
    for (int k = 1; k < world; ++k) {
      const int p = (rank_ + k) % world;
      for (int64_t begin = 0; begin < recvs[p].bytes; begin += kMaxMessageBytes) {
        const int bytes = static_cast<int>(std::min(kMaxMessageBytes, recvs[p].bytes - begin));
        Add({p, Direction::kReceive, bytes});
        CheckMpi(MPI_Irecv(recvs[p].data + begin, bytes, MPI_BYTE, peers_[p], tag, comm_, &requests_.back()),
                 "MPI_Irecv", Where(op));
      }
    }
    for (int k = 1; k < world; ++k) {
      const int p = (rank_ + world - k) % world;
      for (int64_t begin = 0; begin < sends[p].bytes; begin += kMaxMessageBytes) {
        const int bytes = static_cast<int>(std::min(kMaxMessageBytes, sends[p].bytes - begin));
        Add({p, Direction::kSend, bytes});
        CheckMpi(MPI_Isend(sends[p].data + begin, bytes, MPI_BYTE, peers_[p], tag, comm_, &requests_.back()),
                 "MPI_Isend", Where(op));
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
    const auto deadline = Clock::now() + timeout_;
    const int count = static_cast<int>(requests_.size());
    int left = count;
    Idler idler;
    while (left > 0) {
      int finished = 0;
      const int code = MPI_Testsome(count, requests_.data(), &finished, done_.data(), statuses_.data());
      if (finished > 0) {
        for (int i = 0; i < finished; ++i) CheckTransfer(op, code, transfers_[done_[i]], statuses_[i]);
        left -= finished;
        idler.Reset();
        continue;
      }
      CheckMpi(code, "MPI_Testsome", Where(op));
      if (Clock::now() >= deadline) ThrowTimeout(op);
      idler.Pause();
    }
  }

  void CheckTransfer(CommOp op, int code, const Transfer& transfer, const MPI_Status& status) {
    if (code == MPI_ERR_IN_STATUS)
      CheckMpi(status.MPI_ERROR, transfer.direction == Direction::kSend ? "MPI_Isend" : "MPI_Irecv",
               fmt::format("{}, peer {}", Where(op), transfer.peer));
    if (transfer.direction == Direction::kSend) return;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    MR_REQUIRE(ErrorCode::kComm, bytes == transfer.bytes, "{}: expects {} bytes from rank {}, which sends {}",
               Where(op), transfer.bytes, transfer.peer, bytes);
  }

  [[noreturn]] void ThrowTimeout(CommOp op) {
    std::vector<int> silent, unread;
    for (size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL)
        (transfers_[i].direction == Direction::kReceive ? silent : unread).push_back(transfers_[i].peer);
    throw Error(
        ErrorCode::kTimeout,
        fmt::format("{}: not done within {} ms: nothing came from ranks [{}]; not taken by ranks [{}]",
                    Where(op), timeout_.count(), fmt::join(silent, ", "), fmt::join(unread, ", ")));
  }

  // So that MPI does not write into memory that the caller frees while the error unwinds.
  void CancelReceives() noexcept {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL || transfers_[i].direction != Direction::kReceive) continue;
      MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
    }
  }

  std::string Where(CommOp op) const {
    return fmt::format("{} on '{}', rank {} of {}", Name(op), label_, rank_, world_size());
  }

  const std::shared_ptr<MpiRuntime::State> mpi_;
  MPI_Comm comm_;
  const CommOwnership ownership_;
  const std::vector<int> peers_;
  const int rank_;
  const std::string label_;
  const std::chrono::milliseconds timeout_;
  uint32_t calls_ = 0;
  bool failed_ = false;
  // Of the exchange under way; kept so that a step allocates nothing.
  std::vector<MPI_Request> requests_;
  std::vector<Transfer> transfers_;
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace

std::unique_ptr<ByteExchange> MakeMpiExchange(std::shared_ptr<MpiRuntime::State> mpi, MPI_Comm comm,
                                              CommOwnership ownership, std::vector<int> peers, int own_rank,
                                              const std::string& label, const HostCommOptions& options) {
  return std::make_unique<MpiExchange>(std::move(mpi), comm, ownership, std::move(peers), own_rank, label,
                                       options);
}

}  // namespace millrace
