// comm/socket: the contract over sockets, the bits of threads, and peers that are gone, late,
// elsewhere or strangers.
#include "comm/socket/socket_world.h"

#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <numeric>
#include <thread>

#include "comm/local/run_ranks.h"
#include "runtime/base/error.h"
#include "tests/comm/communicator_contract.h"

namespace millrace::testing {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;

std::vector<int> Everyone(const CommFactory& factory) {
  std::vector<int> ranks(static_cast<size_t>(factory.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Each rank on a thread, with its door; what each throws, as "<code>: <text>".
std::vector<std::string> RunOverSockets(int world, const HostCommOptions& options,
                                        const std::function<void(CommFactory&)>& fn) {
  std::vector<std::unique_ptr<SocketDoor>> doors;
  std::vector<SocketAddress> addresses;
  for (int rank = 0; rank < world; ++rank) {
    doors.push_back(std::make_unique<SocketDoor>(world));
    addresses.push_back(doors.back()->address());
  }
  std::vector<std::string> thrown(static_cast<size_t>(world), "nothing");
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        fn(*MakeSocketCommFactory(*doors[rank], rank, addresses, options));
      } catch (const Error& error) {
        thrown[rank] = fmt::format("{}: {}", Name(error.code()), error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

HostCommOptions SmallChunks() {
  return {.timeout = std::chrono::seconds(60), .chunk_bytes = kContractChunkBytes};
}

TEST_CASE("sockets keep the communicator's contract", "[comm][contract]") {
  const int world = GENERATE(1, 2, 3);
  for (const ContractCase& contract : CommunicatorContract()) {
    std::vector<Report> reports(static_cast<size_t>(world));
    const std::vector<std::string> thrown =
        RunOverSockets(world, SmallChunks(), [&](CommFactory& factory) {
          contract.run(*factory.Make(Everyone(factory), "world"), reports[factory.rank()]);
        });
    for (int rank = 0; rank < world; ++rank) {
      INFO(contract.name << ": world " << world << ", rank " << rank << ": " << reports[rank].Text()
                         << thrown[rank]);
      CHECK(reports[rank].ok());
    }
  }
}

TEST_CASE("sockets keep the factory's contract", "[comm][contract]") {
  const int world = GENERATE(2, 4);
  for (const FactoryCase& contract : FactoryContract()) {
    std::vector<Report> reports(static_cast<size_t>(world));
    const std::vector<std::string> thrown = RunOverSockets(
        world, {}, [&](CommFactory& factory) { contract.run(factory, reports[factory.rank()]); });
    for (int rank = 0; rank < world; ++rank) {
      INFO(contract.name << ": world " << world << ", rank " << rank << ": " << reports[rank].Text()
                         << thrown[rank]);
      CHECK(reports[rank].ok());
    }
  }
}

TEST_CASE("sockets and threads give the same bits", "[comm]") {
  const int world = 3;
  std::vector<std::string> over_sockets(world), in_process(world);
  RunOverSockets(world, {}, [&](CommFactory& factory) {
    over_sockets[factory.rank()] =
        ResultDigest(*factory.Make(Everyone(factory), "world"), kDefaultChunkBytes);
  });
  RunRanks(world, [&](Communicator& comm) { in_process[comm.rank()] = ResultDigest(comm, 64); },
           {.chunk_bytes = 64});
  REQUIRE(!over_sockets[0].empty());
  REQUIRE(over_sockets == in_process);
}

TEST_CASE("pieces larger than a socket holds go both ways at once", "[comm]") {
  const std::vector<std::string> thrown = RunOverSockets(2, {}, [](CommFactory& factory) {
    const auto comm = factory.Make(Everyone(factory), "world");
    const auto text = [](int rank) {
      std::string bytes(5 << 20, ' ');
      for (size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<char>(i * 31 + static_cast<size_t>(rank) * 7 + i / 251);
      return bytes;
    };
    const std::vector<std::string> all = comm->HostAllGather(text(factory.rank()));
    MR_CHECK(all[0] == text(0) && all[1] == text(1), "other bytes on rank {}", factory.rank());
  });
  REQUIRE(thrown == std::vector<std::string>(2, "nothing"));
}

TEST_CASE("a peer that is gone, late or elsewhere is an error on the others", "[comm]") {
  const auto run = [](const std::function<void(CommFactory&, Communicator&)>& fn,
                      milliseconds timeout = std::chrono::seconds(60)) {
    return RunOverSockets(2, {.timeout = timeout}, [&](CommFactory& factory) {
      const auto comm = factory.Make(Everyone(factory), "world");
      comm->Barrier();
      fn(factory, *comm);
    });
  };
  const std::vector<std::string> gone = run([](CommFactory& factory, Communicator& comm) {
    if (factory.rank() == 0) comm.Barrier();
  });
  REQUIRE_THAT(gone[0], Contains("peer_lost") && Contains("rank 1 has closed its connection"));
  std::promise<void> given_up;
  const std::vector<std::string> late = run(
      [&](CommFactory& factory, Communicator& comm) {
        if (factory.rank() == 1) {
          given_up.get_future().wait_for(std::chrono::seconds(60));
          return comm.Barrier();
        }
        try {
          comm.Barrier();
        } catch (const Error&) {
          given_up.set_value();
          throw;
        }
      },
      milliseconds(1500));
  REQUIRE_THAT(late[0], Contains("timeout") && Contains("waiting for rank 1"));
  REQUIRE_THAT(late[1], Contains("peer_lost"));
  const std::vector<std::string> elsewhere = run([](CommFactory& factory, Communicator& comm) {
    const auto other = factory.Make(Everyone(factory), "other");
    factory.rank() == 0 ? comm.Barrier() : other->Barrier();
  });
  REQUIRE((elsewhere[0] + elsewhere[1]).find("is elsewhere") != std::string::npos);
  const std::vector<std::string> aborted = run([](CommFactory& factory, Communicator& comm) {
    if (factory.rank() == 1) comm.Abort("a test says so");
    comm.Barrier();
  });
  REQUIRE_THAT(aborted[0], Contains("peer_lost"));
  REQUIRE_THAT(aborted[1], Contains("a test says so"));
}

TEST_CASE("who does not know the secret of a door does not come in", "[comm]") {
  SocketDoor first(2), second(2);
  SocketAddress wrong = first.address();
  ++wrong.secret;
  std::string stranger;
  std::thread outside([&] {
    try {
      const auto factory = MakeSocketCommFactory(second, 1, {wrong, second.address()},
                                                 {.timeout = milliseconds(20000)});
      factory->Make({0, 1}, "world")->Barrier();
    } catch (const Error& error) {
      stranger = Name(error.code());
    }
  });
  REQUIRE_THROWS_WITH(MakeSocketCommFactory(first, 0, {first.address(), second.address()},
                                            {.timeout = milliseconds(2000)}),
                      Contains("waiting for ranks above it"));
  outside.join();
  REQUIRE(stranger == "peer_lost");
}

}  // namespace
}  // namespace millrace::testing
