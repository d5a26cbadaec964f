#include "comm/mpi/mpi_factory.h"

#include <climits>
#include <numeric>
#include <utility>

#include "comm/mpi/mpi_exchange.h"
#include "comm/mpi/mpi_state.h"

namespace millrace {
namespace {

class MpiCommFactory final : public CommFactory {
 public:
  MpiCommFactory(std::shared_ptr<MpiRuntime::State> mpi, const MpiCommOptions& options)
      : mpi_(std::move(mpi)), options_(options) {}

  int rank() const noexcept override { return mpi_->rank; }
  int world_size() const noexcept override { return mpi_->world_size; }

  std::unique_ptr<Communicator> Make(const std::vector<int>& ranks,
                                     const std::string& label) override {
    const int own = CheckedGroupRank(ranks, label, mpi_->rank, mpi_->world_size);
    MeetMembers(ranks, label, own);
    MpiExchangeSpec spec = Spec(own, label);
    spec.comm = CreateComm(ranks, label);
    spec.ownership = CommOwnership::kOwned;
    spec.peers.resize(ranks.size());
    std::iota(spec.peers.begin(), spec.peers.end(),
              0);  // the new communicator's ranks are in the order of `ranks`
    return MakeHostCommunicator(MakeMpiExchange(mpi_, std::move(spec)), options_);
  }

 private:
  MpiExchangeSpec Spec(int own_rank, const std::string& label) const {
    MpiExchangeSpec spec;
    spec.own_rank = own_rank;
    spec.label = label;
    spec.timeout = options_.timeout;
    spec.max_message_bytes = options_.max_message_bytes;
    return spec;
  }

  // MPI_Comm_create_group blocks without a time-out; after this all members are about to call it.
  void MeetMembers(const std::vector<int>& ranks, const std::string& label, int own) {
    MpiExchangeSpec spec = Spec(own, label);
    spec.comm = mpi_->control;
    spec.ownership = CommOwnership::kBorrowed;
    spec.peers = ranks;
    const std::unique_ptr<ByteExchange> control = MakeMpiExchange(mpi_, std::move(spec));
    std::vector<std::byte> tokens(ranks.size());
    std::vector<SendPiece> sends(ranks.size(), SendPiece{&tokens[own], 1});
    std::vector<RecvPiece> recvs;
    for (std::byte& token : tokens) recvs.push_back({&token, 1});
    control->Exchange(CommOp::kConnect, sends, recvs);
  }

  MPI_Comm CreateComm(const std::vector<int>& ranks, const std::string& label) {
    const std::string where = fmt::format("communicator '{}', rank {}", label, mpi_->rank);
    MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    CheckMpi(MPI_Comm_group(mpi_->control, &world), "MPI_Comm_group", where);
    CheckMpi(MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &group),
             "MPI_Group_incl", where);
    CheckMpi(MPI_Comm_create_group(mpi_->control, group, 0, &comm), "MPI_Comm_create_group", where);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    CheckMpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", where);
    return comm;
  }

  const std::shared_ptr<MpiRuntime::State> mpi_;
  const MpiCommOptions options_;
};

}  // namespace

std::unique_ptr<CommFactory> MakeMpiCommFactory(MpiRuntime& runtime,
                                                const MpiCommOptions& options) {
  MR_REQUIRE(ErrorCode::kInvalidArgument,
             options.max_message_bytes >= 1 && options.max_message_bytes <= INT_MAX,
             "max_message_bytes is {}; 1 to {} are allowed", options.max_message_bytes, INT_MAX);
  return std::make_unique<MpiCommFactory>(runtime.state(), options);
}

}  // namespace millrace
